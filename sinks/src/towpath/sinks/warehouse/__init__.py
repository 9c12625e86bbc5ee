"""
The warehouse: Iceberg tables, one row per key, guarded by its position.

``sink`` takes batches, ``shelves`` makes tables follow their source, ``writing`` writes
rows, of which ``appending`` takes those with new keys past the engine, ``upkeeping``
compacts between batches, ``losses`` notices a table that was dropped, ``reader`` reads
back without the engine; ``connect`` opens the catalog for both.
``tables`` turns Postgres types into the warehouse's, ``rows`` turns changes into Arrow;
``ddl``, ``partitions``, ``merge`` and ``upkeep`` build the statements. Nothing else may
write these tables.
"""
