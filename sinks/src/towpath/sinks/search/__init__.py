"""
The search index: one document per row, guarded by its version.

``sink`` writes, ``reader`` reads back, ``mapping`` makes an index of a table's shape,
``request`` and ``answer`` are the two sides of a bulk call. Deletes are documents too:
the index forgets the versions of documents that are really deleted after a minute.
"""
