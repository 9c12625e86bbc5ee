"""The only package of the relay that uses confluent_kafka: producer, topics, state."""
