"""Decodes the bytes of the stream into values. Performs no I/O."""
