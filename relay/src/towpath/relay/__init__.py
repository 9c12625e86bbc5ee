"""
The relay tails the WAL, publishes to Kafka, and fills sinks by incremental snapshots.

From the outside in: ``__main__`` starts sessions, ``wiring`` builds a session's
pipeline; ``postgres`` and ``kafka`` own the drivers; ``loop``, ``stream`` and
``publish`` move records; ``recovery``, ``encode`` and ``snapshot`` decide and perform
no I/O; ``wal`` turns bytes into values. No inner package imports an outer one.
"""
