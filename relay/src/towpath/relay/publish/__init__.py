"""The way into Kafka: records, their acknowledgements and checkpoints."""
