"""From changes to records, without I/O. ``values``, ``table``, ``outbox``: hot path."""
