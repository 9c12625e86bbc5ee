"""Publishing to Kafka: records, their acknowledgements and checkpoints."""
