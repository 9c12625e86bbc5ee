"""The cache: one Redis hash per row, guarded by its position."""
