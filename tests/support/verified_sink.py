"""A relay, a sink that follows it, and classes that damage the target's rows."""

import json
from contextlib import contextmanager
from typing import Any

import redis
from opensearchpy import OpenSearch

from support.dead_letters import context_of
from support.follower import Follower
from support.snapshots import SnapshotRig
from support.waiting import until
from support.warehouse_tables import engines
from towpath.cli.app import run
from towpath.schemas.clock import SystemClock
from towpath.settings import Kafka, Settings, load
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.apply.replay import DeadLetterRequests
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.parked import ParkedKeys
from towpath.sinks.kafka.client import KafkaRelations, Topics
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic
from towpath.sinks.kafka.repairs import KafkaRepairs
from towpath.sinks.kinds import RoutedRelations
from towpath.sinks.targets.cache.sink import CacheSink
from towpath.sinks.targets.postgres.sink import PostgresSink
from towpath.sinks.targets.search.sink import SearchSink
from towpath.sinks.targets.warehouse.sink import WarehouseSink
from towpath.sinks.verify.progress import records_to_go

OLD = "0000000000000008.0000000000"
ABOVE_ALL = "003ffffffffffff8.0000000000"

_HIGHEST_VERSION = (0x003FFFFFFFFFFFF8 >> 3 << 12) | 1


class VerifiedRig(SnapshotRig):
    """Tables in a schema ``s``, their relay, and a sink of one kind."""

    follower: Follower
    follows: type[Follower] = Follower

    def prepare(
        self,
        sink: str,
        tables: dict[str, str],
        beginning: str = "",
        transforms: str = "",
    ) -> None:
        """
        Make the tables and write the configuration.

        Args:
            sink: The lines of ``[[sink]]`` except its name.
            tables: The column definitions of each table.
            beginning: The prefix of the routes' names.
            transforms: The sections below each route.
        """
        self.prepare_source(tables)
        routes = "".join(
            f'[[sink.route]]\ntopic = "{self.prefix}.s.{name}"\n'
            f'name = "{beginning}{name}"\n{transforms}'
            for name in tables
        )
        text = self.config.read_text()
        self.config.write_text(f'{text}\n[[sink]]\nname = "it"\n{sink}\n{routes}')
        self.init()

    def prepare_source(self, tables: dict[str, str]) -> None:
        """
        Make the tables and write the configuration without a sink.

        Args:
            tables: The column definitions of each table.
        """
        self.tables = tables
        self.execute("create schema s")
        for name, columns in tables.items():
            self.execute(f"create table s.{name} ({columns})")
        self.configure(
            "[relay.snapshot]\nchunk_rows = 500\n",
            tables=[f"s.{name}" for name in tables],
        )
        text = self.config.read_text().replace(
            "version = 1", f'version = 1\nstate_folder = "{self.folder}"'
        )
        self.config.write_text(text)

    @contextmanager
    def followed(self, session: Any = None) -> Any:
        """Start the relay, fill the sink with a snapshot, and keep following."""
        settings = load(self.config, {})
        relations = KafkaRelations(settings.kafka, self.prefix)
        target = self._target = _sink(settings, relations, session)
        rows = sum(self.one(f"select count(*) from s.{name}") for name in self.tables)  # noqa: S608 - the test's own
        self.start()
        self.signal("fill", data_collections=[f"s.{name}" for name in self.tables])
        self.wait_for_answer("fill")
        try:
            with self.follows(settings, settings.sink[0], target) as follower:
                self.follower = follower
                # The first batch of an engine that has just started is slow.
                # The rows may arrive twice: through the stream and through the
                # snapshot.
                until(
                    lambda: follower.applied_records >= rows and not self.is_behind(),
                    "the sink has the snapshot's rows",
                    timeout_s=150,
                )
                yield self
        finally:
            relations.close()

    @contextmanager
    def processing_requests(self) -> Any:
        """Process the sink's dead letter requests, as a driver does between batches."""
        settings = load(self.config, {})
        letters, parked = DeadLetterTopic(settings, "it"), ParkedKeys()
        parked.restore(letters.entries())
        repairs = KafkaRepairs(settings, settings.sink[0])
        context = context_of(letters, parked=parked, repairs=repairs)
        writer = RecordWriter(Routes(settings.sink[0]), self._target, context)
        requests = DeadLetterRequests(
            writer, letters, parked, context.repairs, SystemClock()
        )
        self.follower.process_requests = requests.process
        yield
        self.follower.process_requests = lambda: None
        letters.close()

    def is_behind(self) -> bool:
        """Return whether the sink has not yet applied all records."""
        cluster = Topics(Kafka(bootstrap_servers=self.kafka))
        topics = Routes(load(self.config, {}).sink[0]).matching(cluster.names())
        return bool(records_to_go(cluster.end_offsets(topics), self.follower.applied))

    def verify(self, capsys: Any, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run ``towpath verify``; return the exit code and its document."""
        capsys.readouterr()
        code = run(["verify", "it", "--json", "--config", str(self.config), *arguments])
        printed = capsys.readouterr().out
        # In tests, the log lines precede the document in the same stream.
        return code, json.loads(printed[printed.index("{\n") :])


def _sink(settings: Settings, relations: KafkaRelations, session: Any) -> Any:
    (sink,) = settings.sink
    routed = RoutedRelations(relations, sink.route)
    if sink.kind == "cache":
        return CacheSink(sink.url, settings.database.prefix, 3600)
    if sink.kind == "search":
        return SearchSink(sink.url, sink.route, routed, SystemClock())
    if sink.kind == "postgres":
        return PostgresSink(sink, routed)
    return WarehouseSink(sink, routed, engines(sink, session))


class CacheEditor:
    """Alters hashes of one route, bypassing the sink."""

    def __init__(self, url: str, prefix: str, route: str) -> None:
        self._url = url
        self._key_prefix = f"{prefix}:{route}:"

    def _run(self, verb: str, key: object, *arguments: Any, **named: Any) -> Any:
        with redis.Redis.from_url(self._url, decode_responses=True) as client:
            return getattr(client, verb)(
                f"{self._key_prefix}{key}", *arguments, **named
            )

    def names(self) -> list[str]:
        """Return all keys of the route, including tombstones."""
        with redis.Redis.from_url(self._url, decode_responses=True) as client:
            found = client.scan_iter(f"{self._key_prefix}*", count=1000)
            return sorted(name.removeprefix(self._key_prefix) for name in found)

    def alter(self, key: object, value: int, column: str = "v") -> None:
        """Write a different value to a column."""
        self._run("hset", key, column, value)

    def add_field(self, key: object) -> None:
        """Write a field that has no column."""
        self._run("hset", key, "stray", "x")

    def put(self, key: object, value: int, position: str) -> None:
        """Write a whole row, at any position."""
        self.lose(key)
        fields = {"id": str(key), "v": str(value), "_position": position}
        self._run("hset", key, mapping=fields)

    def put_text(self, key: object) -> None:
        """Replace a row with a string."""
        self._run("set", key, "x")

    def lose(self, key: object) -> None:
        """Remove a row."""
        self._run("delete", key)

    def is_deleted(self, key: object) -> bool:
        """Return whether the key has a tombstone."""
        return bool(self._run("hexists", key, "_x"))

    def revive(self, key: object) -> None:
        """Restore a deleted row at the position of its delete."""
        position = self._run("hget", key, "_position")
        self.put(key, 1, position)


class SearchEditor:
    """Alters documents of one index, bypassing the sink."""

    def __init__(self, url: str, index: str) -> None:
        self._url = url
        self._index = index

    def _run(self, verb: str, key: object, **named: Any) -> Any:
        client = OpenSearch(self._url)
        try:
            return getattr(client, verb)(index=self._index, id=str(key), **named)
        finally:
            client.close()

    def alter(self, key: object, value: int) -> None:
        """Write a different value to ``v``, and keep the document's position."""
        self._run("update", key, body={"doc": {"v": value}})

    def add_field(self, key: object) -> None:
        """Map a field that has no column, and write it."""
        client = OpenSearch(self._url)
        fields = {"properties": {"stray": {"type": "keyword"}}}
        client.indices.put_mapping(index=self._index, body=fields)
        client.close()
        self._run("update", key, body={"doc": {"stray": "x"}})

    def put(self, key: object, value: int, position: str) -> None:
        """Write a whole document; at ``ABOVE_ALL``, set its version too."""
        body = {"id": key, "v": value, "_position": position}
        versioned = {"version": _HIGHEST_VERSION, "version_type": "external_gte"}
        named = versioned if position == ABOVE_ALL else {}
        self._run("index", key, body=body, **named)

    def lose(self, key: object) -> None:
        """Delete a document and its version."""
        self._run("delete", key)

    def revive(self, key: object) -> None:
        """Restore a deleted document."""
        self._run("update", key, body={"doc": {"_deleted": False, "id": key, "v": 1}})


class WarehouseEditor:
    """Alters rows of one table, bypassing the sink."""

    def __init__(self, session: Any, table: str) -> None:
        self._session = session
        self._table = f"lake.{table}"

    def _run(self, statement: str) -> None:
        self._session.sql(statement.format(self._table))

    def alter(self, key: object, value: int) -> None:
        """Write a different value to ``v``."""
        self._run(f"UPDATE {{}} SET v = {value} WHERE id = {key}")  # noqa: S608 - the test's own

    def put(self, key: object, value: int, position: str) -> None:
        """Write a whole row, at any position."""
        self.lose(key)
        self._run(
            "INSERT INTO {} (id, v, _position, _is_deleted)"  # noqa: S608 - the test's own
            f" VALUES ({key}, {value}, '{position}', false)"
        )

    def lose(self, key: object) -> None:
        """Remove a row."""
        self._run(f"DELETE FROM {{}} WHERE id = {key}")  # noqa: S608 - the test's own

    def copy(self, key: object) -> None:
        """Insert a copy of a row."""
        self._run(f"INSERT INTO {{0}} SELECT * FROM {{0}} WHERE id = {key}")  # noqa: S608 - the test's own

    def revive(self, key: object) -> None:
        """Restore a deleted row."""
        self._run(f"UPDATE {{}} SET _is_deleted = false, v = 1 WHERE id = {key}")  # noqa: S608 - the test's own
