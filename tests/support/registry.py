"""Clients of the stack's schema registry."""

from confluent_kafka.schema_registry import SchemaRegistryClient


def registry_client(url: str) -> SchemaRegistryClient:
    """
    Return a client that repeats a request that gets no response.

    Without a timeout, it would wait forever if the registry lost a request, as it has.
    """
    return SchemaRegistryClient({"url": url, "timeout": 20})
