"""
Load and measurements from outside: over HTTP, SQL and the targets' own APIs.

Nothing here knows how the platform works inside. Two programs: ``run`` drives the shop
with locust's users until it is told to stop, ``latency`` samples how long a commit
takes to become readable in each target. Both write what they saw to a file, once a
second.
"""
