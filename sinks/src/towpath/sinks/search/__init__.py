"""
The search index: one document per row or aggregate, guarded by its version.

``sink`` writes, ``reader`` reads back, ``fields`` tells what an index is made of (a
table's columns, or by ``documents`` an aggregate's events), ``mapping`` makes it,
``request`` and ``answer`` are the two sides of a bulk call. Deletes are documents too:
the index forgets the versions of documents that are really deleted after a minute.
"""
