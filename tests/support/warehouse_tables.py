"""A warehouse with a table and an event log for one test."""

import uuid
from functools import partial

from pyspark.sql import SparkSession

from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UnavailableError
from towpath.settings import Route, RouteKind, WarehouseOptions
from towpath.sinks.change import ALL_PRESENT, Change, EventRow, Origin
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.ports import Batch
from towpath.sinks.targets.warehouse.append import LakeAppender
from towpath.sinks.targets.warehouse.client import catalog_conf
from towpath.sinks.targets.warehouse.read import WarehouseReader
from towpath.sinks.targets.warehouse.sink import WarehouseSink
from towpath.sinks.targets.warehouse.write import Engines

COLUMNS = (
    Column("id", "integer", nullable=False),
    Column("total", "numeric", (12 << 16 | 2) + 4),
    Column("weight", "numeric"),
    Column("paid", "boolean"),
    Column("body", "jsonb"),
    Column("note", "text"),
    Column("placed_at", "timestamp with time zone"),
    Column("local_at", "timestamp without time zone"),
    Column("day", "date"),
    Column("ratio", "double precision"),
    Column("raw", "bytea"),
)
ROW = {
    "total": "-9999999999.99",
    "weight": "1234567890123456789012345678901234567890.5",
    "paid": True,
    "body": '{"a": "😀", "b": [1.0, null]}',
    "note": "quo'te, \\ and\nline, ä",
    "placed_at": "2026-03-29T01:30:00.000001Z",
    "local_at": "1066-10-14T09:00:00.999999",
    "day": "2026-02-28",
    "ratio": 0.1,
    "raw": "AAH/",
}


class Relations:
    """The shape of one table."""

    def __init__(self, columns=COLUMNS, key=("id",)):
        self.columns = columns
        self.key = key

    def shape(self, _topic):
        return RelationShape("shop", "orders", self.columns, self.key, "0")

    def refresh(self):
        """Do nothing: every shape is known."""


class Repairs:
    """Records the requested repairs."""

    def __init__(self):
        self.requested = []

    def request_keys(self, route, keys):
        self.requested.append((route, tuple(keys)))
        return True

    def request_all(self, route, why):
        self.requested.append((route, why))
        return True


class OffsetClock(SystemClock):
    """The system's clock, with a monotonic time that the test can advance."""

    ahead_s = 0.0

    def monotonic_s(self):
        return super().monotonic_s() + self.ahead_s


class Stepping:
    """
    Both engines that write to a lake; all calls but ``register`` run in ``step``.

    A step is a statement or the name of a call; a subclass may run it, skip it or fail.
    """

    def __init__(self, lake):
        self._session = lake.session
        self._appender = LakeAppender(lake.sink_settings)

    def sql(self, text):
        return self.step(text, partial(self._session.sql, text))

    def append(self, table, rows, on):
        return self.step("append", partial(self._appender.append, table, rows, on))

    def append_files(self, *arguments):
        run = partial(self._appender.append_files, *arguments)
        return self.step("append files", run)

    def register(self, name, table):
        self._session.register(name, table)

    def newest_commit(self, table, branch):
        run = partial(self._session.newest_commit, table, branch)
        return self.step("newest_commit", run)

    def start_branch(self, *arguments):
        return self.step(
            "start_branch", partial(self._session.start_branch, *arguments)
        )

    def fast_forward(self, *arguments):
        return self.step(
            "fast_forward", partial(self._session.fast_forward, *arguments)
        )

    def expire_snapshots(self, table):
        run = partial(self._session.expire_snapshots, table)
        return self.step("expire_snapshots", run)


class Faulty(Stepping):
    """Fails once, before or after the first step that begins with a given text."""

    def __init__(self, lake, begins, *, after=True):
        super().__init__(lake)
        self._begins = begins
        self._after = after

    def step(self, text, run):
        if not self._begins or not text.startswith(self._begins):
            return run()
        self._begins = ""
        if self._after:
            run()
        message = "the response was lost"
        raise UnavailableError(message)


def session_of(sink):
    """Return a session on the test worker's Spark engine, with a sink's catalog."""
    session = SparkSession.getActiveSession().newSession()
    for name, value in catalog_conf(sink).items():
        if name.startswith("spark.sql.catalog."):
            session.conf.set(name, value)
    return session


def engines(sink, session):
    """Return both engines that write to a warehouse."""
    return Engines(session, LakeAppender(sink))


class Lake:
    """A warehouse with one table and one event log for a test."""

    def __init__(self, sink_settings, session, **options):
        unique = uuid.uuid4().hex[:8]
        self.orders = f"shop.orders_{unique}"
        self.events = f"shop.events_{unique}"
        routes = (
            Route(topic="t", name=self.orders),
            Route(topic="e.*", name=self.events, kind=RouteKind.EVENT_LOG),
        )
        self.sink_settings = sink_settings.model_copy(update={"route": routes})
        self.session = session
        self.relations = Relations()
        self.repairs = Repairs()
        self.known = None
        self.clock = OffsetClock()
        self.reader = WarehouseReader(self.sink_settings)
        self.set(**options)

    def set(self, **options):
        """Configure the warehouse for sinks that are opened later."""
        chosen = WarehouseOptions(**options)
        self.sink_settings = self.sink_settings.model_copy(update={"warehouse": chosen})

    def sink(self, engine=None):
        """Open a new sink on the same tables; ``engine`` may replace both engines."""
        own = engines(self.sink_settings, self.session)
        opened = WarehouseSink(
            self.sink_settings,
            self.relations,
            own if engine is None else Engines(engine, engine),
            self.repairs,
            self.clock,
            self.known,
        )
        opened.open()
        return opened

    def sql(self, text):
        """Query the engine; ``{t}`` is the table, ``{e}`` the log."""
        statement = text.format(t=f"lake.{self.orders}", e=f"lake.{self.events}")
        return self.session.sql(statement).to_pylist()

    def notes(self):
        """Return the note of each key's live row."""
        rows = self.rows().items()
        return {k: row.fields["note"] for k, row in rows if not row.is_deleted}

    def change(self, log_lsn, key, row, unchanged=()):
        """Make a change."""
        full = None if row is None else {"id": key, **row}
        return Change(
            self.orders,
            (key,),
            ("id",),
            f"{log_lsn:016x}.0000000000",
            full,
            frozenset(unchanged) or ALL_PRESENT,
            False,
            Origin("t", 0, 0),
        )

    def event(self, number):
        """Make an event whose id, payload and time depend on its number."""
        return EventRow(
            self.events,
            str(uuid.UUID(int=number)),
            "order",
            str(number),
            "OrderPlaced",
            f'{{"number": {number}}}',
            '{"schema": "a:1"}',
            f"{number:016x}.0000000000",
            f"2026-01-01T00:{number % 60:02d}:00.000000Z",
            Origin("e", 0, number),
        )

    def rows(self):
        """Read the table through the warehouse reader."""
        return {row.key: row for row in self.reader.rows(self.orders)}


def write(sink, changes=(), events=(), safe=None):
    """Apply one batch and return its result."""
    sink.apply(Batch(0, tuple(changes), tuple(events), safe=safe))
    return sink.flush()
