"""
A table or view that is dropped or altered between two catalog queries.

Each describing function runs several queries. Another session changes the table before
each of them in turn: the result is a shape or the function's own refusal, and other
collections of the same signal are still described.
"""

import psycopg
import pytest

from towpath.relay.postgres.exported_snapshots import ExportedSnapshots
from towpath.relay.postgres.views import CollectionCatalog
from towpath.relay.postgres.worker import SnapshotCommands
from towpath.relay.snapshot.protocol import InspectTables
from towpath.schemas.failure import TowpathError
from towpath.schemas.table_name import TableName
from towpath.settings.outbox import AggregateView
from towpath.sinks.verify.source import Source

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

TABLES = """
    drop table if exists s.a, s.b cascade;
    create table s.a (id int primary key, v s.mood);
    create table s.b (id int primary key);
    create view s.state as
        select id::text as aggregate_id, 'T'::text as type, '{}'::json as payload
        from s.a;
    drop publication if exists described;
    create publication described for table s.a, s.b;
"""
CHANGES = (
    "drop table s.a cascade",
    "alter table s.a drop constraint a_pkey cascade",
    "alter table s.a drop column id cascade",
    "alter table s.a rename to renamed; drop table s.renamed cascade",
    "alter table s.a drop constraint a_pkey cascade, add column k serial primary key",
    "drop view s.state",
)


class Racing:
    """A real connection; another session acts just before its n-th statement."""

    def __init__(self, connection: psycopg.Connection, other, at: int, change: str):
        self._connection = connection
        self._other = other
        self._at = at
        self._change = change
        self.count = 0

    def __getattr__(self, name: str):
        return getattr(self._connection, name)

    def execute(self, *args):
        """Run a statement; make the change before the n-th one."""
        if self.count == self._at:
            self._other.execute(self._change)
        self.count += 1
        return self._connection.execute(*args)


@pytest.fixture
def sessions(database: str):
    """Provide a session that describes tables, and one that changes them."""
    with (
        psycopg.connect(database, autocommit=True) as other,
        psycopg.connect(database, autocommit=True) as describing,
    ):
        other.execute("create schema s; create type s.mood as enum ('fine')")
        other.execute("set lock_timeout = '2s'")
        describing.execute("set search_path = pg_catalog")
        yield describing, other


def racing(sessions, change: str):
    """Yield a connection for each statement before which the change can happen."""
    describing, other = sessions
    at = 0
    while True:
        other.execute(TABLES)
        connection = Racing(describing, other, at, change)
        yield connection
        if connection.count <= at:
            return
        at += 1


@pytest.mark.parametrize("change", CHANGES)
def test_a_signal_describes_the_other_tables(sessions, change):
    """The changed table is described or refused with a reason; others are described."""
    view = AggregateView(aggregate_type="a", view="s.state")
    readable = CollectionCatalog("described", {view.collection: view})
    commands = SnapshotCommands(
        readable, ExportedSnapshots(lambda: sessions[0]), list, "towpath"
    )
    collections = ("s.a", view.collection, "s.b")
    runs = 0
    for connection in racing(sessions, change):
        found = commands.perform(connection, InspectTables("signal", collections))
        runs += 1

        assert {"s.b"} <= set(found.shapes)
        assert set(collections) == {*found.shapes, *found.refusals}
        assert all(found.refusals.values())
        assert all(len(each.key_columns) == 1 for each in found.shapes.values())

    assert runs > len(collections)


@pytest.mark.parametrize("change", CHANGES[:-1])
def test_the_verifier_finds_the_table_or_raises_its_own_error(
    sessions, change, database
):
    """The lookup returns the table with its key, or raises one of Towpath's errors."""
    with Source(database) as source:
        inner = source._connection  # runs the queries
        sessions = (inner, sessions[1])
        for connection in racing(sessions, change):
            source._connection = connection
            try:
                table = source.table(TableName("s", "a"))
            except TowpathError:
                continue
            finally:
                source._connection = inner
            assert len(table.key_indexes) == len(table.key)
