"""The relay's clients of Kafka; commands outside it use only the client's messages."""
