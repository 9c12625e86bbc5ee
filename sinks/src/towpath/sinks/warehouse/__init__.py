"""
The warehouse: Iceberg tables, one row per key, guarded by its position.

``sink`` writes, ``reader`` reads back by a second engine, ``tables`` turns Postgres
types into the warehouse's, ``rows`` turns changes into Arrow, ``ddl``, ``merge`` and
``compaction`` build the statements. Nothing else may write these tables.
"""
