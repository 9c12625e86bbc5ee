"""
The Java archives of the stack and of Spark, by a lock file with their sha256.

``lock`` reads the file, ``maven`` and ``ivy`` fetch, ``store`` checks and lays out.
Whatever fetches them, only the bytes that the lock names are taken.
"""
