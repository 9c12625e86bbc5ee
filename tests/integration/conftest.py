"""Fixtures shared by several modules: snapshot workers, and sources for the doctor."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.examined_source import TABLES, Source
from support.own_postgres import OwnPostgres
from towpath.relay.__main__ import init
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.worker import SnapshotWorker
from towpath.relay.snapshot import protocol
from towpath.relay.snapshot.shape import RowValues, ScanPlan, TableShape
from towpath.schemas import source_tables
from towpath.schemas.clock import Deadline, SystemClock

PREPARATION = (
    source_tables.schema_statement(),
    source_tables.signal().create_statement(),
    query("create_snapshot_table").decode(),
)


class Worker:
    """A snapshot worker, and methods that wait for its facts."""

    def __init__(self, dsn: str, **options: Any) -> None:
        self.has_facts = threading.Event()
        self.worker = SnapshotWorker(
            dsn, self.has_facts.set, publication="towpath", relay="towpath", **options
        )
        self.deadline = Deadline(SystemClock(), 60.0)

    def request(self, effect: protocol.WorkerEffect) -> protocol.WorkerFact:
        """Submit an effect and wait for its fact."""
        self.worker.submit(effect)
        [fact] = self.take(1)
        return fact

    def take(self, count: int) -> list[protocol.WorkerFact]:
        """Wait for a number of facts, and return them."""
        facts: list[protocol.WorkerFact] = []
        while len(facts) < count:
            facts += self.worker.facts()
            assert not self.deadline.passed(), facts
            if len(facts) < count:
                self.has_facts.wait(0.5)
                self.has_facts.clear()
        assert count == len(facts)
        return facts

    def shape(self, collection: str, *order_by: str) -> TableShape:
        """Inspect a table that can be read, and return its shape."""
        effect = protocol.InspectTables("s", (collection,), order_by=order_by)
        inspected = self.request(effect)
        assert {} == inspected.refusals
        return inspected.shapes[collection]

    def refusal(self, collection: str, *order_by: str) -> str:
        """Inspect a table that cannot be read, and return the reason."""
        effect = protocol.InspectTables("s", (collection,), order_by=order_by)
        inspected = self.request(effect)
        assert {} == inspected.shapes
        return inspected.refusals[collection]

    def request_plan(self, collection: str, **fields: Any) -> protocol.WorkerFact:
        """Inspect a table, request its plan, and return the fact."""
        shape = self.shape(collection, *fields.get("order_by", ()))
        return self.request(
            protocol.ReadPlan(1, collection, shape.relation.oid, **fields)
        )

    def plan(self, collection: str, **fields: Any) -> ScanPlan:
        """Inspect a table, and return its plan."""
        fact = self.request_plan(collection, **fields)
        assert isinstance(fact, protocol.PlanRead), fact
        return fact.plan

    def chunk(self, plan: ScanPlan, **fields: Any) -> protocol.WorkerFact:
        """Read a chunk of a plan."""
        return self.request(self.chunk_of(plan, **fields))

    def chunk_of(self, plan: ScanPlan, **fields: Any) -> protocol.ReadChunk:
        """Return the effect that requests a chunk of a plan."""
        usual: dict[str, Any] = {
            "chunk_id": 2,
            "shape": plan.shape,
            "low_token": '{"run":"r","request":2,"mark":"low"}',
            "high_token": '{"run":"r","request":2,"mark":"high"}',
            "after_key": None,
            "maximum_key": plan.maximum_key,
            "keys": (),
            "condition": None,
            "max_rows": 1000,
        }
        return protocol.ReadChunk(**usual | fields)

    def rows(self, plan: ScanPlan, max_rows: int, **fields: Any) -> list[RowValues]:
        """Read a table, or one range of it, chunk by chunk."""
        rows: list[RowValues] = []
        after_key = fields.pop("after_key", None)
        while True:
            wanted = {"after_key": after_key, "max_rows": max_rows} | fields
            fact = self.chunk(plan, **wanted)
            assert isinstance(fact, protocol.ChunkRead), fact
            rows += fact.chunk.rows
            after_key = fact.chunk.last_key or after_key
            if fact.chunk.is_last:
                return rows


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    """Provide a connection to a database prepared for signals and snapshots."""
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in PREPARATION:
            connection.execute(statement)
        connection.execute("create publication towpath for all tables")
        connection.execute("create schema s")
        yield connection


@pytest.fixture
def begin(
    connection: psycopg.Connection, database: str
) -> Iterator[Callable[..., Worker]]:
    """Provide a function that starts workers on the prepared database."""
    assert connection.info.dbname in database
    workers: list[Worker] = []

    def start(dsn: str = database, **options: Any) -> Worker:
        workers.append(Worker(dsn, **options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.worker.close()


@pytest.fixture
def worker(begin: Callable[..., Worker]) -> Worker:
    """Provide a worker."""
    return begin()


@pytest.fixture
def bare(stack, database: str, unique: str, tmp_path: Path) -> Iterator[Source]:
    """Provide a source with tables, but without the objects that relay init creates."""
    made = Source(stack, database, unique, tmp_path)
    made.execute(TABLES)
    yield made
    made.remove_slots()


@pytest.fixture
def source(bare: Source) -> Source:
    """Provide a prepared source."""
    init(bare.config, dry_run=False)
    return bare


@pytest.fixture
def server(tmp_path: Path, unique: str) -> Iterator[OwnPostgres]:
    """Provide a Postgres server that has not been started."""
    made = OwnPostgres(tmp_path / "own", unique)
    yield made
    made.purge()
