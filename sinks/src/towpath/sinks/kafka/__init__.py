"""Kafka clients of the sinks, beside Spark's own."""
