"""
The cache: one Redis hash per row, guarded by its position.

``sink`` writes, ``reader`` reads back, ``place`` names keys, ``guard.lua`` compares and
writes in one step inside the server. Nothing else may write these keys.
"""
