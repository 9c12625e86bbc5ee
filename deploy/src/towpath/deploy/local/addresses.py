"""Where the parts of a running stack can be reached."""

from dataclasses import dataclass

from towpath.deploy.local import postgres, registry
from towpath.deploy.local.ports import LOOPBACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Ports of the five parts, and the addresses that follow from them."""

    postgres_port: int
    kafka_port: int
    registry_port: int
    opensearch_port: int
    redis_port: int

    def dsn(self, database: str) -> str:
        """Return the address of a database."""
        return postgres.dsn(self.postgres_port, database)

    @property
    def kafka(self) -> str:
        """Kafka's bootstrap server."""
        return f"{LOOPBACK}:{self.kafka_port}"

    @property
    def registry_url(self) -> str:
        """The registry, as Confluent's clients take it."""
        return registry.url(self.registry_port)

    @property
    def opensearch_url(self) -> str:
        """OpenSearch's HTTP interface."""
        return f"http://{LOOPBACK}:{self.opensearch_port}"

    @property
    def redis_url(self) -> str:
        """Redis, database 0."""
        return f"redis://{LOOPBACK}:{self.redis_port}/0"
