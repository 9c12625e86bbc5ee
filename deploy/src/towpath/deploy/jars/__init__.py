"""
The Java archives of the stack and of Spark, by a lock file with their sha256.

``fetch`` downloads them by Maven or Ivy; ``store`` reads the lock, checks every file
and lays it out. Only the bytes that the lock names are accepted.
"""
