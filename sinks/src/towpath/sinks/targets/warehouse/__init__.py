"""The warehouse: Iceberg tables, one row per key, guarded by its position."""
