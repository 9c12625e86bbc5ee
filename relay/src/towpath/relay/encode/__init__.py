"""Turns changes into records, without I/O. Hot path: ``outbox``, ``table``, codecs."""
