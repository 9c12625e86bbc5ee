"""
The relay: tails the WAL, publishes to Kafka, fills sinks by incremental snapshots.

From outside in: ``__main__`` wires; ``postgres`` and ``kafka`` own the drivers; the
``pipeline`` loops; ``routing``, ``snapshot`` and ``delivery`` decide and do nothing;
``wal`` turns bytes into values. Nothing inward imports anything outward.
"""
