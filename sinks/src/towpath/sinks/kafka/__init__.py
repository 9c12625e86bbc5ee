"""The only package of the sinks that speaks to Kafka beside Spark."""
