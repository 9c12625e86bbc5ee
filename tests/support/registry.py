"""Clients of the stack's schema registry."""

from confluent_kafka.schema_registry import SchemaRegistryClient


def registry_client(url: str) -> SchemaRegistryClient:
    """
    Return a client that repeats a request without an answer.

    By itself it waits for ever, and the registry has lost single answers.
    """
    return SchemaRegistryClient({"url": url, "timeout": 20})
