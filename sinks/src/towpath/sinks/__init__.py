"""
The sinks: carry the stream into a warehouse, a search index and a cache.

From outside in: ``__main__`` wires; ``jobs`` owns Spark, ``kafka`` the broker, and
``cache``, ``search`` and ``warehouse`` one target each, with the same file names; the
rules between them (``decode``, ``fold``, ``key_text``, ``routes``, ``relations``) are
pure. A sink knows nothing of Spark, and a rule knows nothing of any target.
"""
