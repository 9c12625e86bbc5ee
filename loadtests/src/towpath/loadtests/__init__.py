"""
Load tests, benchmarks and chaos runs, over HTTP, SQL and the targets' own APIs.

They do not depend on the platform's internals. Locust loads
``loadtests/locustfile.py``: ``load.users`` are its users, ``load.lead`` prepares a
run and reports on it, and ``load.sampler``, a separate process, measures how long a
commit takes to become readable in each target. ``bench`` compares relay, snapshots and
sinks with other systems; ``capture`` compares methods of capturing changes; ``chaos``
disturbs a source while its tables are read.
"""
