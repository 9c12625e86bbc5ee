"""The warehouse, beyond the contract: what only an Iceberg table can do wrong."""

import uuid

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from towpath.schemas.failure import UnavailableError
from towpath.settings import Route, RouteKind
from towpath.sinks.change import ALL_PRESENT, Change, EventRow, Origin
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.ports import Batch
from towpath.sinks.relations import Column, RelationShape
from towpath.sinks.warehouse import compaction
from towpath.sinks.warehouse.catalog import CATALOG, catalog_properties
from towpath.sinks.warehouse.errors import ForeignTableError
from towpath.sinks.warehouse.reader import WarehouseReader
from towpath.sinks.warehouse.sink import WarehouseSink
from towpath.sinks.warehouse.tables import lake_name

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]

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
    """One table's shape."""

    def __init__(self, columns=COLUMNS, key=("id",)):
        self.columns = columns
        self.key = key

    def shape(self, _topic):
        return RelationShape("shop", "orders", self.columns, self.key, "0")

    def refresh(self):
        """Everything is known already."""


class Lake:
    """A warehouse with one table and one event log of the test's own."""

    def __init__(self, described, session):
        unique = uuid.uuid4().hex[:8]
        self.orders = f"shop.orders_{unique}"
        self.events = f"shop.events_{unique}"
        routes = (
            Route(topic="t", name=self.orders),
            Route(topic="e.*", name=self.events, kind=RouteKind.EVENT_LOG),
        )
        self.described = described.model_copy(update={"route": routes})
        self.session = session
        self.relations = Relations()
        self.reader = WarehouseReader(self.described)

    def sink(self, session=None):
        """Open another sink on the same tables."""
        opened = WarehouseSink(self.described, self.relations, session or self.session)
        opened.open()
        return opened

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
        """Make an event; its id, payload and time follow from its number."""
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
        """Read the table back by the second engine."""
        return {row.key: row for row in self.reader.rows(self.orders)}


def write(sink, changes=(), events=()):
    """Apply one batch and return what became of it."""
    sink.apply(Batch(0, tuple(changes), tuple(events)))
    return sink.flush()


@pytest.fixture
def warehouse(lake):
    """Lend tables of the test's own."""
    lent = Lake(*lake)
    yield lent
    lent.reader.close()


def test_every_type_is_read_back_equal_by_a_second_engine(warehouse):
    """Values are typed in the table, and come back exactly as the record had them."""
    nothing = dict.fromkeys(ROW)
    write(
        warehouse.sink(), [warehouse.change(8, 1, ROW), warehouse.change(8, 2, nothing)]
    )
    catalog = SqlCatalog(CATALOG, **catalog_properties(warehouse.described))
    table = catalog.load_table(tuple(lake_name(warehouse.orders)))
    types = {field.name: str(field.field_type) for field in table.schema().fields}
    catalog.close()

    assert types == {
        "id": "int",
        "total": "decimal(12, 2)",
        "weight": "string",
        "paid": "boolean",
        "body": "string",
        "note": "string",
        "placed_at": "timestamptz",
        "local_at": "timestamp",
        "day": "date",
        "ratio": "double",
        "raw": "binary",
        "_position": "string",
        "_is_deleted": "boolean",
    }
    assert {"1": {"id": 1, **ROW}, "2": {"id": 2, **nothing}} == {
        key: dict(row.fields) for key, row in warehouse.rows().items()
    }


def test_a_row_is_found_by_its_key(warehouse):
    """One key is looked up without reading the rest; what is not there is nothing."""
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, n, {"note": str(n)}) for n in range(3)])
    write(sink, [warehouse.change(16, 2, None)])
    found = [warehouse.reader.get(warehouse.orders, (n,)) for n in (1, 2, 3)]

    assert [("1", False), (None, True), None] == [
        row and (row.fields["note"], row.is_deleted) for row in found
    ]


def test_a_table_that_does_not_exist_holds_nothing(warehouse):
    """Before its first record a route has no table, and that is no failure."""
    assert [] == list(warehouse.reader.rows("shop.never"))


def test_a_catalog_that_does_not_answer_is_unavailable(warehouse, unused_port):
    """A reader that cannot read says so, and never that there is nothing."""
    url = f"postgresql://nobody@127.0.0.1:{unused_port}/warehouse"
    reader = WarehouseReader(warehouse.described.model_copy(update={"url": url}))

    with pytest.raises(TargetUnavailableError, match="catalog"):
        list(reader.rows(warehouse.orders))


def test_the_view_shows_live_rows_only(warehouse):
    """A tombstone stays in the table and leaves the view."""
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, n, {"note": "x"}) for n in (1, 2)])
    write(sink, [warehouse.change(16, 1, None)])
    live = f"SELECT id FROM lake.{warehouse.orders}_live"  # noqa: S608 - our own name
    view = warehouse.session.sql(live)

    assert ([2], True) == (
        view.column("id").to_pylist(),
        warehouse.rows()["1"].is_deleted,
    )


def test_the_log_has_each_event_once(warehouse):
    """A replayed batch, or a part of it, adds nothing; new events are taken."""
    sink = warehouse.sink()
    first = write(sink, events=[warehouse.event(n) for n in range(100)])
    replay = write(
        warehouse.sink(), events=[warehouse.event(n) for n in range(50, 120)]
    )
    ids = [row.key for row in warehouse.reader.rows(warehouse.events)]

    assert (100, 20, 50) == (first.applied, replay.applied, replay.stale)
    assert sorted(ids) == [str(uuid.UUID(int=n)) for n in range(120)]


def test_an_event_keeps_all_it_carried(warehouse):
    """Payload and headers stay as texts, the time as a time."""
    write(warehouse.sink(), events=[warehouse.event(7)])
    (row,) = warehouse.reader.rows(warehouse.events)

    assert dict(row.fields) == {
        "id": str(uuid.UUID(int=7)),
        "aggregate_type": "order",
        "aggregate_id": "7",
        "type": "OrderPlaced",
        "payload": '{"number": 7}',
        "headers": '{"schema": "a:1"}',
        "position": "0000000000000007.0000000000",
        "occurred_at": "2026-01-01T00:07:00.000000Z",
    }


class FaultySession:
    """Loses the answer of the first statement of a kind, after it was carried out."""

    def __init__(self, session, begins):
        self._session = session
        self._begins = begins

    def sql(self, text):
        answer = self._session.sql(text)
        if self._begins and text.startswith(self._begins):
            self._begins = ""
            message = "the answer was lost"
            raise UnavailableError(message)
        return answer

    def register(self, name, table):
        self._session.register(name, table)


@pytest.mark.parametrize("begins", ["INSERT INTO", "SELECT snapshot_id"])
def test_a_first_append_whose_outcome_is_unknown_is_not_repeated(warehouse, begins):
    """The same batch again finds a table with rows, and appends no second copy."""
    changes = [warehouse.change(8, n, {"note": "x"}) for n in range(3)]
    events = [warehouse.event(n) for n in range(3)]
    sink = warehouse.sink(FaultySession(warehouse.session, begins))
    with pytest.raises(UnavailableError, match="lost"):
        write(sink, changes, events)
    write(sink, changes, events)
    read = [*warehouse.reader.rows(warehouse.orders)]
    read += warehouse.reader.rows(warehouse.events)

    assert 6 == len(read)


def test_a_column_is_widened_when_its_values_outgrow_it(warehouse):
    """An integer that became a bigint is announced, and its rows are not refused."""
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, 1, {"note": "x"})])
    warehouse.relations.columns = (Column("id", "bigint"), *COLUMNS[1:])
    checkpoint = write(sink, [warehouse.change(16, 2**40, {"note": "y"})])

    assert ((), {"1", str(2**40)}) == (checkpoint.refused, set(warehouse.rows()))


def test_a_column_that_the_source_dropped_stays_null(warehouse):
    """An older record's column that no shape has any more is left out."""
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, 1, {"note": "x", "gone": "y"})])

    assert "gone" not in warehouse.rows()["1"].fields


def test_another_key_stops_the_sink(warehouse):
    """A table filled by one key cannot be guarded by another."""
    warehouse.sink()
    warehouse.relations.columns = (Column("other", "integer"), *COLUMNS)
    warehouse.relations.key = ("id", "other")

    with pytest.raises(ForeignTableError, match="its key is"):
        warehouse.sink()


def test_compaction_keeps_the_contents(warehouse, monkeypatch):
    """Few files are left, every row and tombstone stays, and the guard still holds."""
    monkeypatch.setattr(compaction, "FILES_BEFORE_COMPACTION", 8)
    sink = warehouse.sink()
    for number in range(1, 7):
        told = {"note": str(number)}
        write(sink, [warehouse.change(number * 8, key, told) for key in range(number)])
    write(sink, [warehouse.change(80, 0, None)])
    listed = f"SELECT content FROM lake.{warehouse.orders}.files"  # noqa: S608 - our own name
    files = warehouse.session.sql(listed).num_rows
    write(sink, [warehouse.change(8, key, {"note": "stale"}) for key in range(6)])

    assert files < 8
    assert {"0": None, "1": "6", "2": "6", "3": "6", "4": "6", "5": "6"} == {
        key: row.fields["note"] for key, row in warehouse.rows().items()
    }
    assert warehouse.rows()["0"].is_deleted
