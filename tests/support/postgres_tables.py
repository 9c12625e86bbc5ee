"""A schema of a separate Postgres for one test, and changes to its tables."""

import orjson
import psycopg

from support.record_table import table_of
from towpath.settings import Route, RouteKind, Sink
from towpath.sinks.change import ALL_PRESENT, Change, EventRow, Origin, Record
from towpath.sinks.changes.columns import plain_columns
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.changes.routing import Routes
from towpath.sinks.ports import Batch
from towpath.sinks.targets.postgres.read import PostgresReader
from towpath.sinks.targets.postgres.sink import PostgresSink
from towpath.testing.target import at

ID = Column("id", "bigint", nullable=False)
COLUMNS = (ID, Column("v", "integer"), Column("note", "text"))
TOPIC = "towpath.shop.orders"
ROUTE = "models.orders"


class Shapes:
    """The shapes of all tables, which a test may replace."""

    def __init__(self, columns=COLUMNS, key=("id",)):
        self.columns = columns
        self.key = key

    def shape(self, topic):
        name = topic.rpartition(".")[2]
        return RelationShape("shop", name, self.columns, self.key, "0")

    def refresh(self):
        """Do nothing: every shape is known."""


class Requests:
    """Records the routes that are requested."""

    def __init__(self):
        self.routes = []

    def request_all(self, route, _why):
        self.routes.append(route)
        return True


class Models:
    """A database, and the sinks that write to it."""

    def __init__(self, dsn, kind=RouteKind.TABLE):
        self.dsn = dsn
        is_document = kind is RouteKind.AGGREGATE
        states = {"state_types": ("OrderPlaced",)} if is_document else {}
        route = Route(topic=TOPIC, name=ROUTE, kind=kind, **states)
        self.sink_settings = Sink(name="it", kind="postgres", url=dsn, route=(route,))
        self.shapes = Shapes()
        self.reader = PostgresReader(self.sink_settings)
        self._made = []

    def sink(self, **more):
        """Open a new sink, as a driver or an executor does."""
        made = PostgresSink(self.sink_settings, self.shapes, **more)
        self._made.append(made)
        made.open()
        return made

    def sql(self, statement):
        """Run a statement as the target's owner; return its rows."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def rows(self):
        """Read the route back, by key."""
        return {row.key: row for row in self.reader.rows(ROUTE)}

    def live(self):
        """Read the view of the live rows, by key."""
        rows = self.sql("select to_jsonb(o) from models.orders_live o")
        return {row["id"]: row for (row,) in rows}

    def close(self):
        for one in [*self._made, self.reader]:
            one.close()


def change(row, number, *, key=("id",), unchanged=(), deleted=False):
    """Return a change to a row; ``number`` determines its position."""
    return Change(
        ROUTE,
        tuple(row[name] for name in key),
        tuple(key),
        at(number),
        None if deleted else row,
        frozenset(unchanged) or ALL_PRESENT,
        False,
        Origin(TOPIC, 0, number),
    )


def document(id_, number, text):
    """Return a change to an aggregate; without text it is a delete."""
    row = None if text is None else orjson.loads(text)
    encoded = None if text is None else text.encode()
    origin = Origin(TOPIC, 0, number)
    return Change(
        *(ROUTE, (id_,), (), at(number), row, ALL_PRESENT, False, origin, encoded)
    )


def event(id_, number):
    """Return an event."""
    texts = ("order", "1", "OrderPlaced", '{"total" : 1}', "{}", at(number))
    time = "2026-01-01T00:00:00.000001Z"
    return EventRow(ROUTE, id_, *texts, time, Origin(TOPIC, 0, number))


def write(sink, *changes, **more):
    """Apply changes as one batch, and return the sink's checkpoint."""
    sink.apply(Batch(0, changes, **more))
    return sink.flush()


def plain(sink, rows):
    """
    Return the columns of plain records.

    Args:
        sink: The block of the sink.
        rows: The row and the number of each record.
    """
    records = [
        Record(
            Origin(TOPIC, 0, number),
            orjson.dumps({"id": row["id"]}),
            orjson.dumps({"before": None, "after": row, "op": "c", "source": {}}),
            {"position": at(number).encode()},
        )
        for row, number in rows
    ]
    return plain_columns(table_of(records), Routes(sink))
