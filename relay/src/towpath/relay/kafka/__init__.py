"""The relay's Kafka clients, and the recovery of its state from topics."""
