"""
The verifier finds every planted defect in each real sink, and nothing else.

A small shop is written into Postgres with SQL, and into the sink by the sink itself;
then one row is altered with the target's own client.
"""

import json

import psycopg
import pytest
import redis
from opensearchpy import OpenSearch
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from support.published import MemoryProgress
from support.waiting import CLOCK
from support.warehouse_tables import engines
from towpath.cli import app
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UnavailableError
from towpath.settings import load
from towpath.sinks.change import ALL_PRESENT, Change, EventRow, Origin
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.ports import Batch
from towpath.sinks.targets.cache.sink import CacheSink
from towpath.sinks.targets.postgres.sink import PostgresSink
from towpath.sinks.targets.search.sink import SearchSink
from towpath.sinks.targets.warehouse.sink import WarehouseSink
from towpath.sinks.verify import __main__ as verifier
from towpath.sinks.verify import source
from towpath.sinks.verify.__main__ import VerifyOptions
from towpath.sinks.verify.progress import PendingSnapshots, SourceLog

CACHE = pytest.param("cache", marks=pytest.mark.timeout(90))
SEARCH = pytest.param("search", marks=pytest.mark.timeout(90))
WAREHOUSE = pytest.param(
    "warehouse", marks=[pytest.mark.spark, pytest.mark.timeout(180)]
)
POSTGRES = pytest.param("postgres", marks=pytest.mark.timeout(90))
KINDS = [CACHE, SEARCH, POSTGRES, WAREHOUSE]

pytestmark = [pytest.mark.integration]

SHOP = """
    create schema shop;
    create type shop.status as enum ('placed', 'paid');
    create table shop.orders (
        id bigint primary key, customer uuid, status shop.status, total numeric(12,2),
        weight numeric, paid boolean, body jsonb, note text, placed_at timestamptz,
        local_at timestamp, day date, ratio double precision, share real, raw bytea,
        code character(4), tags text[], ratios real[],
        doubled numeric generated always as (total * 2) stored);
    create table shop.lines (
        order_id bigint, sku text, quantity int, primary key (sku, order_id));
    create schema towpath;
    create table towpath.outbox (
        id uuid primary key, aggregate_type text not null, aggregate_id text not null,
        type text not null, payload json, headers json, traceparent text,
        occurred_at timestamptz not null default now());
    insert into shop.orders values
        (1, '6f2c1f9e-0000-4000-8000-00000000000a', 'paid', 12.50, 1.050, true,
         '{"b": 1, "a": [null, "😀"]}', E'quo''te \\\\ and\\nline',
         '2026-03-29 03:30:00.5+02', '1066-10-14 09:00', '2026-02-28', 0.1, 0.1,
         '\\x0001ff', 'ab', '{a,"b \\"c",NULL}', '{0.1,1e20,NaN,2}'),
        (2, null, null, null, null, null, null, null, null, null, null, null, null,
         null, null, null, null),
        (3, '6f2c1f9e-0000-4000-8000-00000000000b', 'placed', 0, 100, false, 'null', '',
         '0987-12-31 23:59:59.999999+00', '9999-12-31 23:59:59.999999', '0001-01-01',
         1e20, 'NaN', '', '', '{}', null);
    insert into shop.lines values (1, 'a:b', 2), (1, '', 1), (3, 'a%3Ab', 5);
    insert into towpath.outbox values
        ('00000000-0000-4000-8000-000000000001', 'order', '1', 'OrderPlaced',
         '{"total" : "12.50"}', null, null, '2026-01-01 00:00:00.000001+00'),
        ('00000000-0000-4000-8000-000000000002', 'order', '1', 'OrderPaid',
         null, null, null, '2026-01-02 00:00:00+00'),
        ('00000000-0000-4000-8000-000000000003', 'invoice', '9', 'Sent',
         '{}', null, null, '2026-01-02 00:00:00+00');
"""
NULLS = dict.fromkeys(
    (
        *("customer", "status", "total", "weight", "paid", "body", "note"),
        *("placed_at", "local_at", "day", "ratio", "share", "raw", "code"),
        *("tags", "ratios"),
    )
)
# The rows as they appear in their records, written by hand.
ORDERS = [
    {
        "id": 1,
        "customer": "6f2c1f9e-0000-4000-8000-00000000000a",
        "status": "paid",
        "total": "12.50",
        "weight": "1.050",
        "paid": True,
        "body": '{"a": [null, "😀"], "b": 1}',
        "note": "quo'te \\ and\nline",
        "placed_at": "2026-03-29T01:30:00.500000Z",
        "local_at": "1066-10-14T09:00:00.000000",
        "day": "2026-02-28",
        "ratio": 0.1,
        "share": 0.1,
        "raw": "AAH/",
        "code": "ab  ",
        "tags": ["a", 'b "c', None],
        "ratios": [0.1, 1e20, "NaN", 2],
    },
    {"id": 2, **NULLS},
    {
        "id": 3,
        "customer": "6f2c1f9e-0000-4000-8000-00000000000b",
        "status": "placed",
        "total": "0.00",
        "weight": "100",
        "paid": False,
        "body": "null",
        "note": "",
        "placed_at": "0987-12-31T23:59:59.999999Z",
        "local_at": "9999-12-31T23:59:59.999999",
        "day": "0001-01-01",
        "ratio": 1e20,
        "share": "NaN",
        "raw": "",
        "code": "    ",
        "tags": [],
        "ratios": None,
    },
]
LINES = [
    {"order_id": 1, "sku": "a:b", "quantity": 2},
    {"order_id": 1, "sku": "", "quantity": 1},
    {"order_id": 3, "sku": "a%3Ab", "quantity": 5},
]
SHAPES = {
    "orders": RelationShape(
        "shop",
        "orders",
        (
            Column("id", "bigint"),
            Column("customer", "uuid"),
            Column("status", "shop.status"),
            Column("total", "numeric", (12 << 16 | 2) + 4),
            Column("weight", "numeric"),
            Column("paid", "boolean"),
            Column("body", "jsonb"),
            Column("note", "text"),
            Column("placed_at", "timestamp with time zone"),
            Column("local_at", "timestamp without time zone"),
            Column("day", "date"),
            Column("ratio", "double precision"),
            Column("share", "real"),
            Column("raw", "bytea"),
            Column("code", "character", 8),
            Column("tags", "text[]"),
            Column("ratios", "real[]"),
        ),
        ("id",),
        "0",
    ),
    "lines": RelationShape(
        "shop",
        "lines",
        (
            Column("order_id", "bigint"),
            Column("sku", "text"),
            Column("quantity", "integer"),
        ),
        ("sku", "order_id"),
        "0",
    ),
}
POSITION = "0000000000000008.0000000000"
LATER = "0000000000000010.0000000000"


class Relations:
    """The shapes of the shop's tables, by the last part of their topics."""

    def shape(self, topic):
        return SHAPES[topic.rpartition(".")[2]]

    def refresh(self):
        """Do nothing, because every shape is known."""

    def close(self):
        """Do nothing, because nothing is open."""


def change(route, kind, row, *, position=POSITION, deleted=False):
    """Make a change to a row; ``kind`` is the source table."""
    key = SHAPES[kind].key
    return Change(
        route,
        tuple(row[name] for name in key),
        key,
        position,
        None if deleted else row,
        ALL_PRESENT,
        False,
        Origin("t", 0, 0),
    )


def event(route, number, type_, payload, occurred_at):
    """Make an event of the first order."""
    event_id = f"00000000-0000-4000-8000-{number:012d}"
    origin = Origin("e", 0, number)
    return EventRow(
        *(route, event_id, "order", "1", type_, payload, "{}", POSITION, occurred_at),
        origin,
    )


def order_events(log):
    """Make the two events of the order."""
    placed = ("OrderPlaced", '{"total" : "12.50"}', "2026-01-01T00:00:00.000001Z")
    paid = ("OrderPaid", None, "2026-01-02T00:00:00.000000Z")
    return [event(log, 1, *placed), event(log, 2, *paid)]


class AtRest:
    """Replaces the wait for the sink, which is already up to date."""

    def __init__(self, *_, **_parts):
        """Ignore the arguments."""

    def wait(self, poll=None):
        """Return at once, because the sink has everything."""

    def wait_until_seen(self):
        """Return at once, because nothing is being written."""


class Rig:
    """A sink of one kind, filled with the shop, and the means to alter it."""

    def __init__(self, config, stack, lake):
        self.config = config
        self.settings = load(config, {})
        (self.sink_settings,) = self.settings.sink
        self.route = {
            kind: route.name
            for kind, route in zip(
                ("orders", "lines", "events"), self.sink_settings.route, strict=False
            )
        }
        self.stack = stack
        self.lake = lake
        self.fill()

    def fill(self):
        """Write the shop, a deleted order, and the events if the sink has a log."""
        sink = self.sink()
        sink.open()
        changes = [change(self.route["orders"], "orders", row) for row in ORDERS]
        changes += [change(self.route["lines"], "lines", row) for row in LINES]
        gone = change(self.route["orders"], "orders", {"id": 4}, deleted=True)
        sink.apply(Batch(0, (*changes, gone), tuple(self.events())))
        checkpoint = sink.flush()
        sink.close()

        assert ((), 0) == (checkpoint.refused, checkpoint.stale)

    def events(self):
        """Return no events, because this kind keeps none."""
        return []

    def overwrite(self, key, row, position):
        """Replace a row with a different version, bypassing the guard."""
        self.lose(key)
        sink = self.sink()
        sink.open()
        stale = change(self.route["orders"], "orders", row, position=position)
        sink.apply(Batch(3, (stale,)))
        checkpoint = sink.flush()
        sink.close()

        assert (1, 0) == (checkpoint.applied, checkpoint.stale)


class CacheRig(Rig):
    """A cache in Redis."""

    def sink(self):
        return CacheSink(self.sink_settings.url, self.settings.database.prefix, 3600)

    def _run(self, name, key, *arguments):
        cache_key = f"{self.settings.database.prefix}:orders:{key}"
        with redis.Redis.from_url(self.sink_settings.url) as client:
            getattr(client, name)(cache_key, *arguments)

    def alter(self, key, column, value):
        self._run("hset", key, column, value)

    def lose(self, key):
        self._run("delete", key)

    def invent(self, key):
        with redis.Redis.from_url(self.sink_settings.url) as client:
            cache_key = f"{self.settings.database.prefix}:orders:{key}"
            client.hset(cache_key, mapping={"id": str(key), "_position": POSITION})

    def revive(self, key):
        self._run("hdel", key, "_x")


class SearchRig(Rig):
    """An index in OpenSearch."""

    def sink(self):
        routes = self.sink_settings.route
        return SearchSink(self.sink_settings.url, routes, Relations(), SystemClock())

    def _run(self, name, key, **arguments):
        client = OpenSearch(self.sink_settings.url)
        getattr(client, name)(index=self.route["orders"], id=str(key), **arguments)
        client.close()

    def alter(self, key, column, value):
        self._run("update", key, body={"doc": {column: value}})

    def lose(self, key):
        self._run("delete", key)

    def invent(self, key):
        self._run("index", key, body={"id": key, "_position": POSITION})

    def overwrite(self, key, row, position):
        self._run("index", key, body=row | {"_position": position})

    def revive(self, key):
        self._run("index", key, body=ORDERS[0] | {"id": 4, "_position": POSITION})


class PostgresRig(Rig):
    """A different schema in the source's database."""

    def sink(self):
        return PostgresSink(self.sink_settings, Relations())

    def events(self):
        return order_events(self.route["events"])

    def run(self, statement, table="orders"):
        with psycopg.connect(self.sink_settings.url) as connection:
            connection.execute(statement.format(self.route[table]))

    def alter(self, key, column, value):
        self.run(f"update {{}} set {column} = {value} where id = {key}")  # noqa: S608

    def lose(self, key):
        self.run(f"delete from {{}} where id = {key}")  # noqa: S608

    def invent(self, key):
        values = f"values ({key}, '{POSITION}', false)"
        self.run("insert into {} (id, _position, _deleted) " + values)

    def revive(self, key):
        self.run(f"update {{}} set _deleted = false where id = {key}")  # noqa: S608


class WarehouseRig(Rig):
    """A warehouse of Iceberg tables."""

    def sink(self):
        return WarehouseSink(
            *(self.sink_settings, Relations()),
            engines(self.sink_settings, self.lake[1]),
        )

    def events(self):
        return order_events(self.route["events"])

    def run(self, statement, table="orders"):
        self.lake[1].sql(statement.format(f"lake.{self.route[table]}"))

    def alter(self, key, column, value):
        self.run(f"UPDATE {{}} SET {column} = {value} WHERE id = {key}")  # noqa: S608

    def lose(self, key):
        self.run(f"DELETE FROM {{}} WHERE id = {key}")  # noqa: S608

    def invent(self, key):
        values = f"VALUES ({key}, '{POSITION}', false)"
        self.run("INSERT INTO {} (id, _position, _is_deleted) " + values)

    def revive(self, key):
        self.run(f"UPDATE {{}} SET _is_deleted = false WHERE id = {key}")  # noqa: S608


RIGS = {
    "cache": CacheRig,
    "search": SearchRig,
    "postgres": PostgresRig,
    "warehouse": WarehouseRig,
}


def configuration(kind, url, dsn, unique, folder):
    """Return the configuration of one sink; some kinds also keep the order events."""
    prefix = f"shop.{unique}_" if kind == "warehouse" else f"{unique}-"
    if kind in {"cache", "postgres"}:
        prefix = "" if kind == "cache" else "models."
    routes = [(f"{unique}.shop.{t}", f"{prefix}{t}", "table") for t in SHAPES]
    if kind in {"postgres", "warehouse"}:
        routes.append(("outbox.event.order", f"{prefix}events", "event_log"))
    listed = "".join(
        f'[[sink.route]]\ntopic = "{topic}"\nname = "{name}"\nkind = "{route_kind}"\n'
        for topic, name, route_kind in routes
    )
    return (
        f'version = 1\nstate_folder = "{folder}"\n'
        f'[[source]]\ndsn = "{dsn}"\nprefix = "{unique}"\nslot = "{unique}"\n'
        'tables = ["shop.orders", "shop.lines"]\n'
        '[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[registry]\nurl = "http://x"\n'
        f'[[sink]]\nname = "it"\nkind = "{kind}"\nurl = "{url}"\n'
        + (f'folder = "{folder}"\n' if kind == "warehouse" else "")
        + listed
    )


@pytest.fixture
def rig(request, stack, database, unique, tmp_path, monkeypatch):
    """Provide a filled sink of one kind, to which nothing is written."""
    monkeypatch.setattr(verifier, "CatchUpWaiter", AtRest)
    monkeypatch.setattr(verifier, "ProgressTopic", lambda *_: MemoryProgress(CLOCK))
    monkeypatch.setattr(verifier, "KafkaRelations", lambda *_: Relations())
    with psycopg.connect(database) as connection:
        connection.execute(SHOP)
    kind = request.param
    lake = request.getfixturevalue("lake") if kind == "warehouse" else None
    url = {
        "cache": lambda: stack.redis_url,
        "search": lambda: stack.opensearch_url,
        "postgres": lambda: database,
        "warehouse": lambda: lake[0].url,
    }[kind]()
    folder = lake[0].folder if lake else tmp_path
    config = tmp_path / "towpath.toml"
    config.write_text(configuration(kind, url, database, unique, folder))
    return RIGS[kind](config, stack, lake)


@pytest.fixture
def verify(rig, capsys):
    """
    Provide a function that verifies the sink; it returns the exit code and the report.
    """

    def run(**options):
        code = verifier.verify(rig.config, "it", VerifyOptions(as_json=True, **options))
        return code, json.loads(capsys.readouterr().out)

    return run


def differences(report):
    """Return the kind, the key and the column of every listed difference."""
    return [
        (d["kind"], d["key"], d["column"])
        for route in report["routes"]
        for d in route["first"]
    ]


PLANTED = {("changed", "1", "total"), ("changed", "3", "total"), ("missing", "2", None)}

on_each = pytest.mark.parametrize("rig", KINDS, indirect=True)


@on_each
def test_a_sink_that_holds_the_shop_is_equal(verify):
    """Values of every type, nulls, odd keys and tombstones compare equal."""
    code, report = verify()

    assert (0, "equal", []) == (code, report["result"], differences(report))
    assert [3, 3] == [route["source_rows"] for route in report["routes"][:2]]


@on_each
def test_a_changed_value_is_found(rig, verify):
    """One altered value gives exit code 1, with its key, its column and both values."""
    rig.alter(1, "total", "99.99")
    code, report = verify()
    (found,) = report["routes"][0]["first"]

    assert (1, {"kind": "changed", "key": "1", "column": "total"}) == (
        code,
        {name: found[name] for name in ("kind", "key", "column")},
    )
    assert ("12.50", "99.99") == (found["source"], found["sink"])


@on_each
def test_a_missing_row_is_found(rig, verify):
    """A row deleted only in the sink's target gives exit code 1, with its key."""
    rig.lose(2)
    code, report = verify()

    assert (1, [("missing", "2", None)]) == (code, differences(report))


@on_each
def test_an_extra_row_is_found(rig, verify):
    """A row that never existed gives exit code 1, with its key."""
    rig.invent(77)
    code, report = verify()

    assert (1, [("extra", "77", None)]) == (code, differences(report))


@on_each
def test_a_resurrected_row_is_found(rig, verify):
    """A deleted row that is live again gives exit code 1, with its key."""
    rig.revive(4)
    code, report = verify()

    assert (1, [("extra", "4", None)]) == (code, differences(report))


@on_each
def test_a_delete_that_never_happened_is_found(rig, verify):
    """A row that is deleted only in the sink gives exit code 1, with its key."""
    sink = rig.sink()
    sink.open()
    gone = change(
        rig.route["orders"], "orders", ORDERS[2], position=LATER, deleted=True
    )
    sink.apply(Batch(2, (gone,)))
    sink.flush()
    sink.close()
    code, report = verify()

    assert (1, [("deleted", "3", None)]) == (code, differences(report))


@on_each
@pytest.mark.parametrize("position", [POSITION, "0f00000000000000.0000000000"])
def test_a_stale_version_is_found(rig, verify, position):
    """
    Old content is found with the row's own position, and with a newer one.
    """
    stale = ORDERS[2] | {"status": "paid", "total": "0.01"}
    rig.overwrite(3, stale, position)
    code, report = verify()

    assert (1, [("changed", "3", "status"), ("changed", "3", "total")]) == (
        code,
        differences(report),
    )


@pytest.mark.parametrize("rig", [CACHE], indirect=True)
@pytest.mark.parametrize("sample", ["3", "99.9%"])
def test_a_sample_finds_the_defects_in_it(rig, verify, sample):
    """A sample of nearly all rows finds a changed value; other routes are not read."""
    rig.alter(1, "total", "99.99")
    rig.alter(3, "total", "99.99")
    rig.lose(2)
    code, report = verify(sample=sample, names=("orders",))
    (route,) = report["routes"]

    assert (1, True) == (code, set(differences(report)) <= PLANTED)
    assert 1 <= route["differences"] <= route["source_rows"] <= 3


@pytest.mark.parametrize("rig", [CACHE], indirect=True)
def test_even_the_smallest_sample_finds_an_emptied_sink(rig, verify):
    """A percentage that amounts to less than one row still samples some rows."""
    for key in (1, 2, 3):
        rig.lose(key)
    code, report = verify(sample="0.0001%", names=("orders",))

    assert (1, [("missing", key, None) for key in "123"]) == (
        code,
        sorted(differences(report)),
    )


@pytest.mark.parametrize("rig", [CACHE], indirect=True)
def test_one_table_is_verified_by_name(rig, verify):
    """Differences of other routes are not reported."""
    rig.alter(1, "total", "99.99")
    code, report = verify(names=("shop.lines",))

    assert (0, ["lines"]) == (code, [route["route"] for route in report["routes"]])


@pytest.mark.parametrize("rig", [CACHE], indirect=True)
@pytest.mark.usefixtures("rig")
def test_a_table_is_read_in_many_chunks(verify, monkeypatch):
    """Chunks join without a gap, even for keys of several columns and odd strings."""
    monkeypatch.setattr(source, "ROWS_AT_ONCE", 1)
    code, report = verify()

    assert (0, [3, 3]) == (code, [route["source_rows"] for route in report["routes"]])


@pytest.mark.parametrize("rig", [CACHE], indirect=True)
def test_a_foreign_row_is_reported_as_an_extra_row(rig, verify):
    """
    A key that no row of the table can have is an extra row like any other.
    """
    rig.invent("not a number")
    rig.invent("1:2")
    rig.lose(2)
    code, report = verify()

    assert (1, [("missing", "2"), ("extra", "not a number"), ("extra", "1:2")]) == (
        code,
        sorted((d[:2] for d in differences(report)), reverse=True),
    )


@pytest.mark.parametrize("rig", [WAREHOUSE], indirect=True)
def test_a_row_that_occurs_twice_is_found(rig, verify):
    """A second copy of a row or of an event gives exit code 1, with its key."""
    rig.run("INSERT INTO {0} SELECT * FROM {0} WHERE id = 1")
    rig.run("INSERT INTO {0} SELECT * FROM {0} WHERE id LIKE '%1'", "events")
    code, report = verify()

    assert (1, [("twice", "1"), ("twice", "00000000-0000-4000-8000-000000000001")]) == (
        code,
        [d[:2] for d in differences(report)],
    )


@pytest.mark.parametrize("rig", [WAREHOUSE], indirect=True)
def test_a_log_that_lacks_or_alters_an_event_is_found(rig, verify, database):
    """The log is compared with the ids and payloads of its aggregates in the outbox."""
    rig.run("DELETE FROM {} WHERE id LIKE '%2'", "events")
    with psycopg.connect(database) as connection:
        connection.execute(
            "update towpath.outbox set payload = '{}' where type = 'OrderPlaced'"
        )
    code, report = verify()
    changed, missing = differences(report)

    assert (1, "changed", "payload", "missing") == (code, *changed[::2], missing[0])


@pytest.mark.parametrize("rig", [WAREHOUSE], indirect=True)
@pytest.mark.usefixtures("rig")
def test_a_log_keeps_events_that_the_outbox_has_lost(verify, database):
    """
    Events that only the log has are counted as unmatched; the others are compared.
    """
    with psycopg.connect(database) as connection:
        connection.execute("delete from towpath.outbox where type = 'OrderPaid'")
        connection.execute("update towpath.outbox set payload = '{}'")
    code, report = verify()
    log = report["routes"][2]

    assert (1, ["payload"]) == (code, [column for *_, column in differences(report)])
    assert (1, 2, 1) == tuple(
        log[name] for name in ("source_rows", "sink_rows", "unmatched")
    )


@pytest.mark.parametrize("rig", [CACHE], indirect=True)
def test_an_error_hides_no_difference(rig, verify, monkeypatch):
    """If a target fails halfway, the differences found so far are reported too."""
    rig.alter(1, "total", "99.99")
    reader = verifier.reader_of(rig.sink_settings, rig.settings)
    rows = reader.rows

    def failing(route):
        if route == "lines":
            message = "the cache went away"
            raise UnavailableError(message)
        return rows(route)

    reader.rows = failing
    monkeypatch.setattr(verifier, "reader_of", lambda *_: reader)
    code, report = verify()

    assert (1, 1, "the cache went away") == (
        code,
        report["differences"],
        report["routes"][1]["error"],
    )


@pytest.mark.parametrize("rig", [CACHE], indirect=True)
def test_a_route_that_cannot_be_read_does_not_hide_another(rig, verify, database):
    """A missing table is reported along with the differences in the others."""
    rig.alter(1, "total", "99.99")
    with psycopg.connect(database) as connection:
        connection.execute("drop table shop.lines")
    code, report = verify()
    error = report["routes"][1]["error"]

    assert (1, [("changed", "1", "total")]) == (code, differences(report))
    assert (True, None) == ("shop.lines" in error, report["routes"][0]["error"])


@pytest.mark.parametrize("rig", [CACHE], indirect=True)
def test_a_sink_that_cannot_be_read_is_not_equal(rig, verify, unused_port):
    """Without a comparison, nothing is proven, and the exit code is 3."""
    text = rig.config.read_text()
    rig.config.write_text(
        text.replace(rig.sink_settings.url, f"redis://127.0.0.1:{unused_port}/0")
    )
    code, report = verify()

    assert (3, "unverified") == (code, report["result"])


MORE_SINKS = """
[[sink]]
name = "beside"
kind = "cache"
url = "{url}"
[[sink.route]]
topic = "{prefix}.shop.orders"
name = "beside"
[[sink]]
name = "hook"
kind = "webhook"
url = "http://127.0.0.1:1"
webhook = {{ secrets = ["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"] }}
[[sink.route]]
topic = "{prefix}.shop.orders"
name = "orders"
"""


@pytest.mark.parametrize("rig", [CACHE], indirect=True)
def test_all_sinks_that_can_be_read_are_verified_by_one_command(rig, capsys):
    """
    Without names, a difference in any sink gives exit code 1, with its key.

    A webhook is skipped, because it cannot be read.
    """
    command = ["verify", "--config", str(rig.config)]
    names = {"url": rig.sink_settings.url, "prefix": rig.settings.database.prefix}
    rig.config.write_text(rig.config.read_text() + MORE_SINKS.format(**names))
    empty = app.run([*command, "--json"])
    found = {r["sink"]: r["result"] for r in documents(capsys.readouterr().out)}
    sink = rig.sink()
    sink.open()
    sink.apply(Batch(0, tuple(change("beside", "orders", row) for row in ORDERS)))
    sink.flush()
    sink.close()
    filled = app.run(command)
    rig.lose(2)
    capsys.readouterr()
    lost = app.run([*command, "--json"])
    first = [differences(report) for report in documents(capsys.readouterr().out)]

    assert (1, {"it": "equal", "beside": "different"}) == (empty, found)
    assert (0, 1, [[("missing", "2", None)], []]) == (filled, lost, first)
    assert 2 == app.run([*command, "--route", "orders"])
    assert "--route and --continuous are for one sink" in capsys.readouterr().err


def documents(text):
    """Read consecutive JSON documents."""
    decoder, found = json.JSONDecoder(), []
    while text := text.strip():
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:]
    return found


class OutageClock:
    """
    A clock that closes the source during the first wait, and reopens it in the second.
    """

    def __init__(self, dsn):
        self._name = conninfo_to_dict(dsn)["dbname"]
        self._elsewhere = make_conninfo(dsn, dbname="postgres")
        self._steps = iter(["false", "true"])

    def now(self):
        return SystemClock().now()

    def monotonic_s(self):
        return SystemClock().monotonic_s()

    def wait(self, _delay_s):
        if (is_open := next(self._steps, None)) is None:
            raise KeyboardInterrupt
        with psycopg.connect(self._elsewhere, autocommit=True) as connection:
            connection.execute(
                f'alter database "{self._name}" with allow_connections {is_open}'
            )


@pytest.mark.parametrize("rig", [CACHE], indirect=True)
def test_an_outage_of_the_source_does_not_end_verification(
    rig, capsys, database, monkeypatch
):
    """The pass during the outage proves nothing, and the next one compares again."""
    clock = OutageClock(database)
    monkeypatch.setattr(verifier, "SystemClock", lambda: clock)
    code = verifier.verify(rig.config, "it", VerifyOptions(as_json=True, every_s=60.0))
    passes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert (3, ["equal", "unverified", "equal"]) == (
        code,
        [document["result"] for document in passes],
    )
    assert (True, None) == (passes[1]["error"] is not None, passes[2]["error"])


@pytest.mark.timeout(90)
def test_the_slot_confirms_the_mark_only_after_earlier_commits(database, unique):
    """The mark lies above every earlier commit, and the slot can confirm up to it."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "select pg_create_logical_replication_slot(%s, 'pgoutput')", [unique]
        )
        connection.execute("create table t (id int)")
        log = SourceLog(database, "towpath")
        before = log.confirmed(unique)
        mark = log.mark()
        connection.execute(
            "select pg_replication_slot_advance(%s, pg_current_wal_lsn())", [unique]
        )
        after = log.confirmed(unique)
        absent = log.confirmed("nobody")
        log.close()

    assert (True, None) == (before < mark <= after, absent)


@pytest.mark.timeout(90)
def test_a_running_transaction_counts_as_the_oldest(database):
    """
    This holds even before a later transaction ends, when a snapshot's xmax is too low.
    """
    log = SourceLog(database, "towpath")
    with psycopg.connect(database) as connection:
        connection.execute("create table t (id int)")
        during = log.next_transaction() > log.oldest_transaction()
        connection.commit()
        last = log.next_transaction()
    after = last > log.oldest_transaction()
    log.close()

    assert (True, False) == (during, after)


@pytest.mark.timeout(90)
def test_pending_snapshots_are_counted(database):
    """
    Snapshots for the sink count, and those for all sinks unless they are paused.

    Progress is summed over all sinks.
    """
    log = SourceLog(database, "towpath")
    nothing = log.pending_snapshots("it")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "create schema towpath; create table towpath.snapshot ("
            "state text, target text, rows bigint, dropped bigint, chunks bigint)"
        )
        connection.execute(
            "insert into towpath.snapshot values ('completed', null, 5000, 0, 1),"
            " ('running', null, 100, 2, 3), ('queued', 'it', 0, 0, 0),"
            " ('paused', null, 10, 0, 0), ('paused', 'it', 20, 0, 0),"
            " ('running', 'other', 1000, 0, 0)"
        )
        found = log.pending_snapshots("it"), log.pending_snapshots("nobody")
    log.close()

    assert (
        PendingSnapshots(0),
        PendingSnapshots(3, 1, 1135),
        PendingSnapshots(1, 0, 1135),
    ) == (nothing, *found)
