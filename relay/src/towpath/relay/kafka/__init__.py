"""The only home of confluent_kafka in the relay: producer, topics, state."""
