"""A cache sink on a fake Redis that accepts every call, and a writer of batches."""

from types import SimpleNamespace
from unittest import mock

import redis

from support.dead_letters import Letters, context_of
from support.kafka_rows import batch_of, row, table
from support.parked_shop import ROUTES
from towpath.sinks.apply.batch import BatchResult, RecordWriter
from towpath.sinks.engine.writer import SinkWriter
from towpath.sinks.targets.cache.sink import CacheSink


class Connection:
    """Answers each call of the guard: one row applied, none stale."""

    def __init__(self) -> None:
        self.call_count = 0

    def send_packed_command(self, *_arguments: object, **_options: object) -> None:
        pass

    def read_response(self) -> list[int]:
        self.call_count += 1
        return [1, 0]

    def disconnect(self) -> None:
        pass


class Client:
    """A server with one connection, an append-only file, and no stored data."""

    def __init__(self) -> None:
        self.connection = Connection()
        self.connection_pool = SimpleNamespace(
            get_connection=lambda: self.connection, release=lambda _connection: None
        )

    def info(self, *_sections: str) -> dict[str, object]:
        return {"aof_enabled": 1}

    def config_get(self, *_names: str) -> dict[str, str]:
        return {}

    def hgetall(self, _name: str) -> dict[str, str]:
        return {}

    def function_load(self, *_code: object, **_options: object) -> None:
        pass


class CacheBench:
    """Writes batches of one record into a cache sink."""

    def __init__(self) -> None:
        self._client = Client()
        with mock.patch.object(redis.Redis, "from_url", return_value=self._client):
            self.sink = CacheSink("redis://unused", "p", tombstone_s=3600)
        self.sink.open()
        context = context_of(Letters())
        writer = RecordWriter(ROUTES, self.sink, context)
        self._writer = SinkWriter(writer, self.sink, context)

    def write(self, number: int) -> BatchResult:
        """Write a batch of one record: a different order for each number."""
        batch = table(row(number, "c", order=number, note="a"))
        return self._writer.write(batch_of(lambda: iter([batch]), 1), number)

    @property
    def call_count(self) -> int:
        """The number of guard calls that the server has answered."""
        return self._client.connection.call_count
