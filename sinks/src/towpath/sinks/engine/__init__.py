"""The engine: Spark sessions and supervised queries; the only users of PySpark."""
