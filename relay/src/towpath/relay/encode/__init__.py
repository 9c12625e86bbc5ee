"""From changes to records, without I/O. Hot path: ``outbox``, ``table``, codecs."""
