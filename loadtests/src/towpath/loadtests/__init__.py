"""
Load and measurements from outside: over HTTP, SQL and the targets' own APIs.

Nothing here knows how the platform works inside. ``loadtests/locustfile.py`` is what
locust loads: ``users`` are its customers, ``hooks`` registers the rest with locust's
events. ``lead`` prepares a run and reports on it; ``sampler``, a process beside
locust's, times how long a commit takes to become readable in each target.
"""
