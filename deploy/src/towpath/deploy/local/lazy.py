"""
A stack whose parts start when somebody first asks for their address.

Made for tests: a run that needs the cache only does not wait for OpenSearch.
"""

import threading
from pathlib import Path

from towpath.deploy.local.addresses import Addresses
from towpath.deploy.local.stack import NAMES, Stack


class LazyStack:
    """The addresses of a stack; asking for one starts the part behind it."""

    def __init__(self, state_folder: Path) -> None:
        self.stack = Stack(state_folder)
        self._started: set[str] = set()
        self._lock = threading.Lock()

    @property
    def state_folder(self) -> Path:
        """The state folder of the stack."""
        return self.stack.state.root

    def up(self, *names: str) -> Addresses:
        """Start the named parts, at once; all of them if none is named."""
        with self._lock:
            missing = [name for name in names or NAMES if name not in self._started]
            if missing:
                self.stack.up(missing)
                self._started.update(missing)
            return self.stack.addresses()

    def dsn(self, database: str) -> str:
        """Return the address of a database."""
        return self.up("postgres").dsn(database)

    @property
    def kafka(self) -> str:
        """Kafka's bootstrap server."""
        return self.up("kafka").kafka

    @property
    def registry_url(self) -> str:
        """The registry, as Confluent's clients take it."""
        return self.up("registry").registry_url

    @property
    def opensearch_url(self) -> str:
        """OpenSearch's HTTP interface."""
        return self.up("opensearch").opensearch_url

    @property
    def redis_url(self) -> str:
        """Redis, database 0."""
        return self.up("redis").redis_url
