"""Kafka clients of the sinks, in addition to Spark's own."""
