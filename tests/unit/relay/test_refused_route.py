"""Changes of a table whose schema the registry refuses."""

import json
from dataclasses import replace

import pytest

from towpath.relay.encode.codecs.factory import CodecFactory
from towpath.relay.encode.columns import ColumnRules
from towpath.relay.encode.dead_letters import REFUSED, DeadLetters, RefusedRoute
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import Record
from towpath.relay.encode.relations import NOTHING_KNOWN, ColumnPlan
from towpath.relay.encode.router import UNKEYED, Route, Router
from towpath.relay.encode.rows import ReadSlice
from towpath.relay.encode.table import (
    RouteCallbacks,
    SourceNames,
    TableRoute,
    lacks_key_forms,
)
from towpath.relay.wal.messages import UNCHANGED, Column, Relation, Row
from towpath.relay.wal.transactions import Change, Transaction
from towpath.schemas import headers
from towpath.schemas.envelope import Operation
from towpath.settings.relay import Relay

LINE = Relation(
    oid=7,
    schema="shop",
    table="line",
    columns=(Column("id", 23), Column("note", 25)),
    key=(0,),
)
TRANSACTION = Transaction(
    xid=9,
    commit_lsn=160,
    log_lsn=160,
    committed_us=1_700_000_000_000_000,
    place=b"P.",
)
NOW_US = 1_700_000_001_000_000


def plan(relation: Relation = LINE, **rows: object) -> ColumnPlan:
    """Make the plan of a table's published columns."""
    rules = ColumnRules(Relay.model_validate({"rows": rows}))
    return rules.plan(relation, NOTHING_KNOWN)


@pytest.fixture
def counted_reasons() -> list[str]:
    """Return the list of counted reasons."""
    return []


@pytest.fixture
def refused_route(counted_reasons: list[str]) -> RefusedRoute:
    """Return the route of a table with a refused schema."""
    dead = DeadLetters("towpath", counted_reasons.append, ParkedAggregates(10))
    return RefusedRoute(LINE, plan(), "towpath.shop.line", dead, "409 no")


def dead_letter_facts(record: Record) -> tuple:
    """Return the checked fields of a dead letter."""
    found = dict(record.headers)
    return (
        record.topic,
        record.key,
        json.loads(record.value or b""),
        record.position,
        found[headers.POSITION],
        found[headers.OPERATION],
        found[headers.SOURCE_TOPIC],
        found[headers.CONNECT_ERROR_MESSAGE],
    )


@pytest.mark.parametrize(
    ("operation", "new", "old", "value"),
    [
        (Operation.CREATE, (b"1", b"a"), None, {"id": "1", "note": "a"}),
        (
            Operation.UPDATE,
            (b"1", UNCHANGED),
            None,
            {"id": "1", "note": {"unchanged": True}},
        ),
        (
            Operation.DELETE,
            None,
            (b"1", None),
            {"id": "1", "note": None},
        ),
    ],
)
def test_every_refused_change_is_one_complete_dead_letter(
    refused_route: RefusedRoute,
    counted_reasons: list[str],
    operation,
    new: Row,
    old: Row,
    value,
):
    """
    The row is kept as texts, with its position and its key, and is counted once.
    """
    change = Change(operation, LINE, new, old, False, TRANSACTION, 3, 120)
    (record,) = refused_route.records(change, NOW_US)

    assert (
        (
            "towpath.dead.relay",
            b'{"id":"1"}',
            value,
            b"P.0000000003",
            b"P.0000000003",
            operation.value.encode(),
            b"towpath.shop.line",
            b"409 no",
        ),
        [REFUSED],
    ) == (dead_letter_facts(record), counted_reasons)


def test_refused_changes_are_counted_in_their_transaction(counted_reasons: list[str]):
    """
    The END record's totals include them; rows of snapshots belong to no transaction.
    """
    counted: list[str] = []
    dead = DeadLetters("towpath", counted_reasons.append, ParkedAggregates(10))
    route = RefusedRoute(
        LINE, plan(), "towpath.shop.line", dead, "409 no", counted.append
    )
    insert = Change(
        Operation.CREATE, LINE, (b"1", b"a"), None, False, TRANSACTION, 3, 120
    )
    read_slice = ReadSlice(255, "s-1", "ignored", NOW_US)
    route.reads([(b"1", b"a")], read_slice)
    route.absent([b"1"], read_slice)
    before = list(counted)
    route.records(insert, NOW_US)
    route.truncation(TRANSACTION, 4, 3, NOW_US)

    assert ([], [LINE.name] * 2) == (before, counted)


def test_a_refused_truncate_is_one_dead_letter(refused_route: RefusedRoute):
    """
    One dead letter is written, however many partitions the topic has.
    """
    (record,) = refused_route.truncation(TRANSACTION, 4, 3, NOW_US)

    assert (
        "towpath.dead.relay",
        None,
        {"id": None, "note": None},
        b"P.0000000004",
        b"P.0000000004",
        b"t",
        b"towpath.shop.line",
        b"409 no",
    ) == dead_letter_facts(record)


def test_a_refused_read_row_is_a_dead_letter_of_its_snapshot(
    refused_route: RefusedRoute,
):
    """
    It has the low watermark as its position and names the snapshot, as READ rows do.
    """
    read_slice = ReadSlice(255, "s-1", "ignored", NOW_US)
    (record,) = refused_route.reads([(b"1", b"a")], read_slice)

    assert (
        (
            "towpath.dead.relay",
            b'{"id":"1"}',
            {"id": "1", "note": "a"},
            b"00000000000000ff.-",
            b"00000000000000ff.-",
            b"r",
            b"towpath.shop.line",
            b"409 no",
        ),
        b"s-1",
        NOW_US // 1000,
    ) == (
        dead_letter_facts(record),
        dict(record.headers)[headers.SNAPSHOT],
        record.timestamp_ms,
    )


def test_a_refused_delete_of_an_absent_key_is_a_dead_letter(
    refused_route: RefusedRoute,
):
    """
    It is kept as a delete at the low watermark, and is not lost.
    """
    read_slice = ReadSlice(255, "s-1", "ignored", NOW_US)
    (record,) = refused_route.absent([b"1"], read_slice)

    assert (
        b'{"id":"1"}',
        {"id": "1", "note": None},
        b"00000000000000ff.-",
        b"00000000000000ff.-",
        b"d",
    ) == dead_letter_facts(record)[1:6]


PERSON = Relation(
    oid=8,
    schema="shop",
    table="person",
    columns=(
        Column("ssn", 25),
        Column("id", 23),
        Column("name", 25),
        Column("photo", 17),
        Column("phone", 1043, 34),
        Column("note", 25),
    ),
    key=(0,),
)


def test_columns_of_refused_rows_are_left_out_and_masked_as_in_records():
    """
    A change's dead letter shows no more than its record would, even of old rows.
    """
    rows = {
        "exclude_columns": [r"shop\.person\.(ssn|note)"],
        "key_columns": {"shop.person": ["id"]},
        "mask": [
            {"columns": [r".*\.name", r".*\.photo"], "form": "mask", "length": 3},
            {"columns": [r".*\.phone"], "form": "truncate", "length": 2},
        ],
    }
    dead = DeadLetters("towpath", lambda _: None, ParkedAggregates(10))
    route = RefusedRoute(PERSON, plan(PERSON, **rows), "t.shop.person", dead, "no")
    old = (b"SSN", b"1", b"Ada", b"\\x00", b"5551", b"private")
    new = (b"SSN", b"1", b"Eve", UNCHANGED, None, b"private")
    change = Change(Operation.UPDATE, PERSON, new, old, True, TRANSACTION, 3, 120)
    (record,) = route.records(change, NOW_US)

    assert (
        b'{"id":"1"}',
        {"id": "1", "name": "***", "photo": {"unchanged": True}, "phone": None},
        {"id": "1", "name": "***", "photo": "***", "phone": "55"},
    ) == (
        record.key,
        json.loads(record.value or b""),
        json.loads(dict(record.headers)[headers.OLD_ROW] or b""),
    )


PRICE = Relation(
    oid=9,
    schema="shop",
    table="price",
    columns=(Column("amount", 1700), Column("note", 25)),
    key=(0,),
    identity="f",
)


def price_route(
    record_format: str, reasons: list[str], skipped: tuple[str, ...] = ()
) -> Route:
    """Return the route of a table whose key is a precise decimal."""
    rows = {
        "format": record_format,
        "decimals": "precise",
        "skipped_operations": skipped,
    }
    relay = Relay.model_validate({"rows": rows})
    parked = ParkedAggregates(10)
    router = Router(
        place=SourceNames("towpath", "db"),
        relay=relay,
        dead=DeadLetters("towpath", reasons.append, parked),
        parked=parked,
        reserved=frozenset(),
        rules=ColumnRules(relay),
        make_codec=CodecFactory(relay, lambda _subject, _schema: 1).make,
        callbacks=RouteCallbacks(),
    )
    route = router.route(PRICE, NOTHING_KNOWN)
    assert route is not None
    return route


def price_change(new: Row | None, old: Row | None) -> Change:
    """Return a change of a row, with its whole old row."""
    operation = Operation.CREATE if old is None else Operation.UPDATE
    if new is None:
        operation = Operation.DELETE
    return Change(operation, PRICE, new, old, True, TRANSACTION, 3, 120)


@pytest.mark.parametrize("record_format", ["json", "json-schema", "avro"])
@pytest.mark.parametrize(
    ("new", "old", "topics"),
    [
        ((b"NaN", b"a"), None, ["dead.relay"]),
        ((b"Infinity", b"a"), (b"Infinity", b"b"), ["dead.relay"]),
        (None, (b"-Infinity", b"a"), ["dead.relay"]),
        ((b"NaN", b"a"), (b"1", b"a"), ["shop.price", "shop.price", "dead.relay"]),
        ((b"1", UNCHANGED), (b"NaN", b"a"), ["shop.price"]),
        ((b"2", b"a"), (b"2", b"b"), ["shop.price"]),
    ],
)
def test_a_row_whose_key_has_no_precise_form_is_a_dead_letter(
    record_format: str, new: Row | None, old: Row | None, topics: list[str]
):
    """
    A null key would be shared by several rows; records with a row's other key are kept.
    """
    reasons: list[str] = []
    records = price_route(record_format, reasons).records(
        price_change(new, old), NOW_US
    )

    assert (
        [f"towpath.{topic}" for topic in topics],
        [UNKEYED] * topics.count("dead.relay"),
    ) == ([record.topic for record in records], reasons)


@pytest.mark.parametrize("record_format", ["json", "json-schema", "avro"])
def test_a_read_row_whose_key_has_no_precise_form_is_a_dead_letter(record_format: str):
    """
    The other rows of the chunk are published; an absent key is a dead letter, too.
    """
    reasons: list[str] = []
    route = price_route(record_format, reasons)
    assert isinstance(route, TableRoute)
    read_slice = ReadSlice(255, "s-1", route.topic, NOW_US)
    rows = [(b"1", b"a"), (b"NaN", b"b"), (b"2", b"c")]
    records = [*route.reads(rows, read_slice), *route.absent([b"NaN"], read_slice)]
    dead = {"amount": "NaN"}

    assert (
        ["shop.price", "dead.relay", "shop.price", "dead.relay"],
        [dead, dead],
    ) == (
        [record.topic.removeprefix("towpath.") for record in records],
        [json.loads(record.key or b"") for record in records[1::2]],
    )


@pytest.mark.parametrize(
    ("skipped", "new", "old", "topics"),
    [
        ("c", (b"NaN", b"a"), None, []),
        ("u", (b"NaN", b"a"), (b"NaN", b"b"), []),
        ("d", None, (b"NaN", b"a"), []),
        ("c", (b"NaN", b"a"), (b"1", b"a"), ["shop.price", "shop.price"]),
        ("u", (b"NaN", b"a"), (b"Infinity", b"a"), ["dead.relay"]),
        ("d", (b"NaN", b"a"), (b"1", b"a"), ["dead.relay"]),
    ],
)
def test_a_skipped_operation_yields_no_dead_letter_for_a_key_without_a_precise_form(
    skipped: str, new: Row | None, old: Row | None, topics: list[str]
):
    """
    A change of the key is a delete and a create, as for other keys.
    """
    route = price_route("json", [], (skipped,))
    records = route.records(price_change(new, old), NOW_US)

    assert [f"towpath.{topic}" for topic in topics] == [r.topic for r in records]


def test_an_absent_key_without_a_precise_form_is_skipped_with_deletes():
    """
    Its record would be a delete.
    """
    route = price_route("json", [], ("d",))
    assert isinstance(route, TableRoute)

    assert () == route.absent([b"NaN"], ReadSlice(255, "s-1", route.topic, NOW_US))


def test_money_always_has_a_precise_form():
    """
    Its type has no NaN, so its keys need no check.
    """
    amount = replace(PRICE, columns=(Column("amount", 790), PRICE.columns[1]))
    rows = plan(amount, decimals="precise")

    assert not lacks_key_forms(amount, rows)
    assert lacks_key_forms(PRICE, plan(PRICE, decimals="precise"))
