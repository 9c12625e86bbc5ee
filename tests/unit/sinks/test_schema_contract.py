"""Table contracts without a database: types, the role of the registry, addresses."""

from dataclasses import replace
from unittest.mock import MagicMock

import psycopg
import pytest

from towpath.schemas.failure import UnavailableError
from towpath.schemas.table_name import TableName
from towpath.settings import OnDrop, Settings, Sink
from towpath.sinks.cli import contract
from towpath.sinks.cli.contract import (
    AlembicRange,
    MigrationFailedError,
    sqlalchemy_url,
)
from towpath.sinks.contracts import evaluate
from towpath.sinks.contracts.catalog import (
    Catalog,
    EnumType,
    Table,
    TableColumn,
    UniqueKey,
)
from towpath.sinks.contracts.changes import ChangeKind, changed_tables
from towpath.sinks.contracts.findings import Level


def numeric(precision: int, scale: int) -> int:
    """Return the type modifier of a numeric."""
    return (precision << 16 | scale) + 4


def interval(field: int, digits: int = 0xFFFF) -> int:
    """Return the type modifier of an interval; the field 0x7FFF means all fields."""
    return field << 16 | digits


def column(type_: str, typmod: int = -1, number: int = 2) -> TableColumn:
    """Make a column; types with the same name have the same OID."""
    return TableColumn(
        *(number, f"c{number}", type_, typmod, f"{type_} {typmod}"),
        *(hash(type_), [hash(type_)]),
        is_required=number == 1,
        is_filled=False,
        is_object=False,
        has_no_nulls=False,
    )


KEY = column("bigint", number=1)


def catalog(other: TableColumn) -> Catalog:
    """Make the catalog of a table with a key and one more column."""
    columns = {1: KEY, other.number: other}
    keys = (UniqueKey((1,), is_primary=True, is_identity=False),)
    name = TableName("shop", "orders")
    return Catalog({7: Table(7, name, False, "d", columns, keys)}, {})


def settings(**rows: object) -> Settings:
    """Make a configuration that captures the table."""
    return Settings.model_validate(
        {
            "version": 1,
            "source": [{"dsn": "unused", "tables": ["shop.orders"]}],
            "kafka": {"bootstrap_servers": "unused:1"},
            "registry": {"url": "http://unused"},
            "relay": {"rows": rows},
        }
    )


SMALL, LARGE = column("numeric", numeric(10, 2)), column("numeric", numeric(12, 2))
SHORT, LONG = (column("character varying", size + 4) for size in (10, 20))
MILLIS = column("timestamp with time zone", 3)
# The bits of an interval's fields.
MONTH, YEAR, DAY = 1 << 1, 1 << 2, 1 << 3
NARROW_TO_WIDE = [
    (column("smallint"), column("integer")),
    (column("integer"), column("bigint")),
    (column("smallint"), column("bigint")),
    (SHORT, LONG),
    (SHORT, column("character varying")),
    (SHORT, column("text")),
    (SMALL, LARGE),
    (SMALL, column("numeric")),
    (MILLIS, column("timestamp with time zone")),
    (
        column("interval", interval(0x7FFF, 3)),
        column("interval", interval(0x7FFF, 6)),
    ),
    (column("interval", interval(MONTH)), column("interval")),
]


@pytest.mark.parametrize(("narrow", "wide"), NARROW_TO_WIDE)
def test_a_type_grows_in_one_direction_and_shrinks_in_the_other(narrow, wide):
    """
    Every value of the narrow type is valid in the wide type, with the same text.
    """
    kinds = [
        change.kind
        for old, new in ((narrow, wide), (wide, narrow))
        for table in changed_tables(catalog(old), catalog(new))
        for change in table.columns
    ]

    assert [ChangeKind.GROWN, ChangeKind.SHRUNK] == kinds


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (column("integer"), column("numeric")),
        (column("bigint"), column("double precision")),
        (column("real"), column("double precision")),
        (SMALL, column("numeric", numeric(12, 3))),
        (column("character", 14), column("text")),
        (column("json"), column("jsonb")),
        (MILLIS, column("timestamp without time zone", 3)),
        *(
            (column("interval", interval(one)), column("interval", interval(other)))
            for one, other in ((MONTH, YEAR), (MONTH, DAY))
        ),
    ],
)
def test_other_types_neither_grow_nor_shrink(old, new):
    """
    Text, scale, precision, padding or time zone would differ for readers.
    """
    for pair in ((old, new), (new, old)):
        [table] = changed_tables(*map(catalog, pair))
        assert [ChangeKind.RETYPED] == [change.kind for change in table.columns]


@pytest.mark.parametrize(("format_", "expected"), [("json", 0), ("avro", 1)])
def test_a_type_that_grows_may_be_refused_by_the_registry(format_, expected):
    """
    Only records in Avro have a schema in the registry.
    """
    before, after = catalog(column("integer")), catalog(column("bigint"))
    found = evaluate(before, after, settings(format=format_))
    notices = [one for one in found if one.level is Level.NOTICE]

    assert expected == len([one for one in notices if "registry" in one.sentence])


HIDDEN = "shop.orders.c[23]"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (catalog(column("integer")), catalog(column("text"))),
        (catalog(column("text")), catalog(column("text", number=3))),
    ],
)
def test_a_column_that_is_not_published_changes_no_record(before, after):
    """
    Neither the registry nor a reader notices its new type or its addition.
    """
    found = evaluate(before, after, settings(format="avro", exclude_columns=[HIDDEN]))

    assert {"The column is not published."} == {one.sentence for one in found}


def test_a_column_of_the_key_is_in_records_even_if_it_is_excluded():
    """
    The column's type is part of the records' keys.
    """
    before, after = catalog(column("text")), catalog(column("text"))
    table = after.tables[7]
    key = {**table.columns, 1: column("text", number=1)}
    after = Catalog({7: replace(table, columns=key)}, {})
    found = evaluate(before, after, settings(exclude_columns=["shop.orders.c1"]))

    assert ["type changed"] == [one.change for one in found]
    assert [Level.REFUSED] == [one.level for one in found]


def test_a_rename_to_an_unpublished_name_removes_the_column_from_records():
    """
    Records do not have it under the new name either.
    """
    old = column("text")
    hidden = settings(exclude_columns=[r"shop\.orders\.hidden"])
    found = evaluate(catalog(old), catalog(old._replace(name="hidden")), hidden)

    assert ["column renamed"] == [one.change for one in found]
    assert found[0].sentence.startswith("New records lack the column")


@pytest.mark.parametrize(
    ("on_drop", "expected"),
    [
        ("keep", "its rows stay in the topic"),
        ("truncate", "each sink deletes the table's rows"),
    ],
)
def test_the_finding_for_a_dropped_table_says_what_happens_to_its_rows(
    on_drop, expected
):
    """
    The source's ``on_drop`` decides this, even for a renamed table.
    """
    given = settings()
    source = given.database.model_copy(update={"on_drop": OnDrop(on_drop)})
    given = given.model_copy(update={"source": (source,)})
    before = catalog(column("text"))
    renamed = replace(before.tables[7], name=TableName("shop", "sales"))
    for after in (Catalog({}, {}), Catalog({7: renamed}, {})):
        (found,) = evaluate(before, after, given)
        assert expected in found.sentence


ADDRESSES = {
    "cache": "redis://unused",
    "search": "http://unused",
    "warehouse": "postgresql://unused/db",
    "postgres": "postgresql://unused/db",
}


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("cache", "refill"),
        ("search", "refill"),
        ("warehouse", "DROP COLUMN"),
        ("postgres", "DROP COLUMN ... CASCADE"),
    ],
)
def test_the_remedy_for_a_dropped_column_removes_its_values(kind, remedy):
    """
    A refill replaces hashes and documents, but sets only the known columns of tables.
    """
    old = column("text")
    route = {"topic": "towpath.shop.orders", "name": "shop.orders"}
    sink = {"name": "s", "kind": kind, "url": ADDRESSES[kind], "route": [route]}
    sink |= {"folder": "unused"} if kind == "warehouse" else {}
    given = settings()
    given = given.model_copy(update={"sink": (Sink.model_validate(sink),)})
    gone = Catalog({7: replace(catalog(old).tables[7], columns={1: KEY})}, {})
    for after in (gone, catalog(old._replace(name="other"))):
        found = evaluate(catalog(old), after, given)
        steps = [one.steps for one in found if one.place.startswith("sink")]
        assert [True] == [step[0].endswith((remedy, f"{remedy} s")) for step in steps]


def test_labels_of_all_enums_within_a_composite_are_compared():
    """
    Each label has a number of its own, whichever enum it belongs to.
    """
    composite = column("shop.price")._replace(value_type_oids=[20, 31, 32])
    before, after = (
        replace(
            catalog(composite),
            enums={31: EnumType(currencies), 32: EnumType({7: "net", 8: "gross"})},
        )
        for currencies in ({1: "eur", 2: "usd"}, {1: "euro", 2: "usd", 3: "chf"})
    )
    found = evaluate(before, after, settings())

    assert ["labels renamed", "labels added"] == [one.change for one in found]
    assert ["eur to euro" in found[0].sentence, "chf" in found[1].sentence] == [
        True
    ] * 2


def test_a_configured_key_replaces_that_of_the_table():
    """
    The primary key may change; a column of the configured key must not be dropped.
    """
    before, after = catalog(column("text")), catalog(column("text"))
    table = after.tables[7]
    keys = (UniqueKey((2,), is_primary=True, is_identity=False),)
    after = Catalog({7: replace(table, keys=keys)}, {})
    other = settings(key_columns={"shop.orders": ["c2"]})
    gone = Catalog({7: replace(table, columns={1: table.columns[1]})}, {})

    assert ["key changed"] == [
        one.change for one in evaluate(before, after, settings())
    ]
    assert [] == evaluate(before, after, other)
    assert "key changed" in {one.change for one in evaluate(before, gone, other)}


@pytest.mark.parametrize("identity", ["d", "n", "f"])
def test_a_unique_index_is_the_key_of_a_table_without_a_primary_key(identity):
    """
    The relay uses it as the key of rows, whatever the replica identity is.
    """
    before = catalog(column("text"))
    unique = (UniqueKey((2,), is_primary=False, is_identity=False),)
    table = replace(before.tables[7], keys=unique, identity=identity)
    with_key, without = (
        Catalog({7: replace(table, keys=keys)}, {}) for keys in (unique, ())
    )
    found = evaluate(with_key, without, settings())

    assert ["key changed"] == [one.change for one in found]
    assert "from c2 to nothing" in found[0].sentence


def test_a_table_that_is_not_captured_has_no_findings():
    """
    No record contains its rows.
    """
    before, after = catalog(column("integer")), Catalog({}, {})
    other = settings()
    source = other.database.model_copy(update={"tables": ("shop.others",)})
    other = other.model_copy(update={"source": (source,)})

    assert [] == evaluate(before, after, other)
    assert ["table dropped"] == [
        one.change for one in evaluate(before, after, settings())
    ]


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({}, []),
        ({"route_by": "c9"}, ["c9"]),
        ({"placements": ["c9:header"]}, ["c9"]),
        ({"placements": ["c9:header"], "on_missing_column": "skip"}, []),
    ],
)
def test_a_column_that_an_option_of_the_outbox_names_is_read(options, missing):
    """
    The relay halts without it, unless the option lets a missing column be skipped.
    """
    before, after = catalog(column("text", number=9)), catalog(column("text"))
    other = settings()
    outbox = other.relay.outbox.model_validate({"table": "shop.orders", **options})
    relay = other.relay.model_copy(update={"outbox": outbox})
    found = evaluate(before, after, other.model_copy(update={"relay": relay}))

    assert missing == [
        one.sentence.split()[3] for one in found if one.change == "columns gone"
    ]


@pytest.mark.parametrize(
    ("dsn", "model", "url"),
    [
        (
            "postgresql://me@db:5433/shop",
            "postgresql+psycopg://old@else/other",
            "postgresql+psycopg://me@db:5433/shop",
        ),
        ("host=db user=me dbname=shop", "", "postgresql://me@db/shop"),
        ("postgresql://me@[::1]:5432/x", "", "postgresql://me@[::1]:5432/x"),
        (
            "host=/run/pg port=5433 user=me password=a@b:c dbname=shop",
            "postgresql+psycopg2://x",
            "postgresql+psycopg2://me:a%40b%3Ac@/shop?host=%2Frun%2Fpg&port=5433",
        ),
        (
            "postgresql://db/shop?sslmode=require",
            "no url",
            "postgresql://db/shop?sslmode=require",
        ),
    ],
)
def test_an_address_becomes_a_url_of_the_applications_driver(dsn, model, url):
    """
    The scheme is that of the application's own address.
    """
    assert url == sqlalchemy_url(dsn, model)


def test_a_scratch_database_that_cannot_be_read_gives_one_error(monkeypatch):
    """
    The server may end the session between two statements.
    """
    ended = MagicMock()
    ended.execute.side_effect = psycopg.OperationalError("terminating connection")
    monkeypatch.setattr(contract.psycopg, "connect", MagicMock())
    monkeypatch.setattr(contract, "connected", lambda *_: ended)

    with pytest.raises(UnavailableError, match="be read: terminating connection"):
        contract.compare("dbname=x", lambda _: None, lambda _: None)


def test_a_failed_migration_is_reported_although_its_database_is_left(
    monkeypatch, capsys
):
    """
    The server may be stopped in between; a warning names the database left behind.
    """
    gone = psycopg.OperationalError("connection refused")
    monkeypatch.setattr(
        contract.psycopg, "connect", MagicMock(side_effect=[MagicMock(), gone])
    )
    fail = MagicMock(side_effect=MigrationFailedError("column x exists"))

    with pytest.raises(MigrationFailedError, match="column x exists"):
        contract.compare("dbname=x", fail, fail)
    assert "was not dropped: connection refused" in capsys.readouterr().err


def test_a_scratch_database_that_is_left_behind_is_an_error(monkeypatch):
    """
    Without another error, the failed drop is the one that is reported.
    """
    gone = psycopg.OperationalError("connection refused")
    monkeypatch.setattr(
        contract.psycopg, "connect", MagicMock(side_effect=[MagicMock(), gone])
    )
    for name in ("read_catalog", "record_statements", "recorded_statements"):
        monkeypatch.setattr(contract, name, MagicMock())
    monkeypatch.setattr(contract, "connected", MagicMock())

    with pytest.raises(UnavailableError, match="was not dropped: connection refused"):
        contract.compare("dbname=x", lambda _: None, lambda _: None)


def test_a_failed_application_with_output_in_another_encoding_is_reported(tmp_path):
    """
    Its output is shown as far as it can be decoded.
    """
    python = tmp_path / "python"
    python.write_bytes(b"#!/bin/sh\nprintf 'ver\\344ndert'\nexit 1\n")
    python.chmod(0o755)
    revisions = AlembicRange("base", "head", tmp_path, str(python), "URL")

    with pytest.raises(MigrationFailedError, match=r"head: ver.ndert"):
        revisions.migrate("postgresql://x/y")
