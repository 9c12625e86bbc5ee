"""
Load and measurements from outside: over HTTP, SQL and the targets' own APIs.

Nothing here knows how the platform works inside. ``loadtests/locustfile.py`` is what
locust loads: ``load.users`` are its customers, ``load.lead`` prepares a run and reports
on it; ``load.sampler``, a process beside locust's, times how long a commit takes to
become readable in each target. ``bench`` measures relay, snapshots and sinks beside
others; ``chaos`` disturbs a source while its tables are read.
"""
