"""The engine: Spark sessions and queries; only it and ``__main__`` use PySpark."""
