"""The engine's sessions and queries; only this package and ``__main__`` use PySpark."""
