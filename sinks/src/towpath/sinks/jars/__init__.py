"""
The Java archives of the stack and of Spark, pinned by a lock file with their sha256.

``fetch`` downloads them with Maven or Ivy; ``store`` reads the lock, checks every file
and puts it in place. Only files with the locked sha256 are accepted.
"""
