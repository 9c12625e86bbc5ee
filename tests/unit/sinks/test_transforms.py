"""Transforms: values, partial changes, shapes, and what a sink and a verifier see."""

import re
import tomllib

import orjson
import pytest

from support.pages import DOCS, blocks
from support.parked_shop import FILL, KEY, SINK, TOPIC, Shop, change
from towpath.settings import Route, Sink
from towpath.settings.transforms import parse_value_type
from towpath.sinks.change import UnreadableError
from towpath.sinks.changes.casts import cast_to, number_of
from towpath.sinks.changes.columns import plain_columns
from towpath.sinks.changes.decode import RECORDS
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.changes.routing import Routes, routing_of
from towpath.sinks.changes.transforms import (
    LacksColumnsError,
    RowTransforms,
    TransformedRow,
)
from towpath.sinks.dead_letters.entries import Verb
from towpath.sinks.engine.block_changes import (
    BlockChange,
    BlockChangeOutcome,
    block_digest,
    changes,
)
from towpath.sinks.kinds import route_mistakes
from towpath.sinks.ports import StoredRow
from towpath.sinks.verify.errors import IncomparableError
from towpath.sinks.verify.forms import form_of
from towpath.sinks.verify.table import SourceColumn, SourceTable
from towpath.sinks.verify.types import SourceType

SALT = "0123456789abcdef"
SALTS = {"v1": SALT}


def route(*transforms, **options) -> Route:
    """Make a route with transforms."""
    document = {"topic": TOPIC, "name": "orders", "transforms": [*transforms]}
    return Route.model_validate(document | options)


def sink(*transforms, **options) -> Sink:
    """Describe a sink with one such route."""
    document = SINK.model_dump(exclude_defaults=True)
    return Sink.model_validate(
        {**document, "hash_salts": SALTS, "route": [route(*transforms, **options)]}
    )


def apply(row, *transforms, unchanged=()):
    """Apply transforms to a row."""
    return RowTransforms(route(*transforms), SALTS).apply(row, frozenset(unchanged))


@pytest.mark.parametrize(
    ("entry", "row", "expected"),
    [
        ({"constant": 1, "to": "b"}, {"a": 2}, {"a": 2, "b": 1}),
        ({"constant": "", "to": "a"}, {"a": 2}, {"a": ""}),
        ({"rename": "a", "to": "b"}, {"a": 2}, {"b": 2}),
        ({"rename": "gone", "to": "b"}, {"a": 2}, {"a": 2}),
        ({"mask": "a"}, {"a": "secret"}, {"a": "****"}),
        ({"mask": "a", "keep_last": 2}, {"a": "secret"}, {"a": "****et"}),
        (
            {"mask": "a", "keep_first": 1, "keep_last": 1},
            {"a": "secret"},
            {"a": "s****t"},
        ),
        (
            {"mask": "a", "keep_first": 3, "keep_last": 3},
            {"a": "secret"},
            {"a": "****"},
        ),
        ({"mask": "a", "to": "b"}, {"a": 1234}, {"a": 1234, "b": "****"}),
        ({"mask": "a"}, {"a": None}, {"a": None}),
        ({"mask": "gone"}, {}, {"gone": None}),
        (
            {"hash": "a", "salt": "v1"},
            {"a": 7},
            {"a": "f69cf4852626eee19b92af564b9413e44aa526cc9e726ab9b8972af1d3b39092"},
        ),
        ({"cast": "a", "type": "text"}, {"a": True}, {"a": "true"}),
        ({"cast": "a", "type": "bigint", "to": "b"}, {"a": "7"}, {"a": "7", "b": 7}),
        ({"template": "{a}:{{{b}}}{a}", "to": "c"}, {"a": 1, "b": "x"}, "1:{x}1"),
        ({"template": "{a}{b}", "to": "c"}, {"a": 1, "b": None}, None),
        ({"template": "{a}", "to": "a"}, {"a": 1.5}, {"a": "1.5"}),
    ],
)
def test_each_verb_writes_its_column(entry, row, expected):
    """
    Null remains null, and an absent column is null.
    """
    if not isinstance(expected, dict):
        expected = {**row, "c": expected}

    assert TransformedRow(expected, frozenset()) == apply(row, entry)


def test_entries_are_applied_in_order():
    """
    A later entry reads the results of earlier entries.
    """
    found = apply(
        {"a": "x", "b": "y"},
        {"template": "{a}{b}", "to": "c"},
        {"mask": "c", "keep_first": 1},
        {"rename": "c", "to": "d"},
        {"constant": "z", "to": "a"},
    )

    assert {"a": "z", "b": "y", "d": "x****"} == found.row


@pytest.mark.parametrize(
    ("condition", "dropped", "kept"),
    [
        ("x", ["x"], ["y", None, True, 1]),
        (["x", "y"], ["x", "y"], ["z", None]),
        (1.5, [1.5, "1.50"], ["x", 2, None, True, "NaN", [1.5]]),
        ([1, 2], [1, 2.0, "2"], [3, True]),
        (True, [True], [False, 1, "true", None]),
        ({"not": "x"}, ["y", ""], ["x", None]),
        ({"not": [1, 2]}, [3, "3"], ["1.0", None]),
        ({"is_null": True}, [None], ["x", 0, ""]),
        ({"is_null": False}, ["x", 0, ""], [None]),
        ({"below": 2}, [1, "1.99", -0.5], [2, "2.00", None, "x", "NaN"]),
        ({"at_least": 2}, [2, "2.00", 1e300], [1, None, "x", "Infinity"]),
        ({"matches": "a+"}, ["a", "aa"], ["ab", "", None, 1]),
    ],
)
def test_a_condition_drops_rows_by_value(condition, dropped, kept):
    """
    Numbers are compared by value, even if records have them as text.
    """
    entry = {"drop_if": {"a": condition}}

    assert [None] * len(dropped) == [apply({"a": one}, entry) for one in dropped]
    assert [{"a": one} for one in kept] == [apply({"a": o}, entry).row for o in kept]


def test_a_row_is_dropped_if_all_conditions_of_one_entry_hold():
    """
    With several entries, it is enough that the conditions of one hold.
    """
    both = {"drop_if": {"a": 1, "b": 1}}

    assert apply({"a": 1, "b": 1}, both) is None
    assert apply({"a": 1, "b": 2}, both) is not None
    assert apply({"a": 3, "b": 2}, both, {"drop_if": {"a": 3}}) is None


@pytest.mark.parametrize(
    ("entry", "row", "unchanged", "expected", "still_unchanged"),
    [
        ({"mask": "t"}, {"a": 1}, {"t"}, {"a": 1}, {"t"}),
        ({"mask": "t", "to": "a"}, {"a": 1}, {"t"}, {}, {"t", "a"}),
        ({"template": "{t}{u}", "to": "c"}, {}, {"t", "u"}, {}, {"t", "u", "c"}),
        ({"template": "{a}", "to": "t"}, {"a": 1}, {"t"}, {"a": 1, "t": "1"}, set()),
        ({"constant": 1, "to": "t"}, {}, {"t"}, {"t": 1}, set()),
        ({"rename": "t", "to": "u"}, {}, {"t"}, {}, {"u"}),
        ({"drop_if": {"a": 1, "t": "x"}}, {"a": 2}, {"t"}, {"a": 2}, {"t"}),
    ],
)
def test_a_column_computed_only_from_unknown_ones_is_unknown(
    entry, row, unchanged, expected, still_unchanged
):
    """
    The target already has the value that was computed from the same columns.
    """
    found = apply(row, entry, unchanged=unchanged)

    assert TransformedRow(expected, frozenset(still_unchanged)) == found


@pytest.mark.parametrize(
    "entry",
    [
        {"template": "{a}{t}", "to": "c"},
        {"drop_if": {"t": "x"}},
        {"drop_if": {"a": 1, "t": "x"}},
    ],
)
def test_nothing_is_guessed_from_some_of_the_inputs(entry):
    """
    The row must be refetched.
    """
    with pytest.raises(LacksColumnsError, match="the change lacks: t"):
        apply({"a": 1}, entry, unchanged={"t"})


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("text", 1.5, "1.5"),
        ("smallint", "32767", 32767),
        ("integer", "-2.5", -3),
        ("bigint", 2.5, 3),
        ("bigint", True, 1),
        ("numeric", 1e20, "100000000000000000000"),
        ("numeric", "1.50", "1.50"),
        ("numeric", -0.0, "0.0"),
        ("numeric", "-0.00", "0.00"),
        ("numeric(5, 2)", "1.005", "1.01"),
        ("numeric(5, 2)", "999.99", "999.99"),
        ("numeric(3, 3)", "0.0005", "0.001"),
        ("numeric(5, 2)", 0, "0.00"),
        ("numeric(2, 2)", "0", "0.00"),
        ("numeric(2, 2)", "-0e9", "0.00"),
        ("numeric(6, 2)", "-.001", "0.00"),
        ("bigint", "0e30", 0),
        ("double precision", "1e3", 1000.0),
        ("boolean", " Yes ", True),
        ("boolean", 0, False),
        ("date", "2026-03-01T23:00:00.000000Z", "2026-03-01"),
        ("timestamp with time zone", "2026-03-01", "2026-03-01T00:00:00.000000Z"),
        (
            "timestamp with time zone",
            "2026-03-01 10:00+02:00",
            "2026-03-01T08:00:00.000000Z",
        ),
        ("uuid", "6F2C1F9E00004000800000000000000A", None),
    ],
)
def test_a_cast_gives_the_form_that_records_have(kind, value, expected):
    """
    Halves are rounded away from zero; times without a zone are in UTC.
    """
    if expected is None:
        expected = "6f2c1f9e-0000-4000-8000-00000000000a"

    found = cast_to(parse_value_type(kind))(value, "c")

    assert (expected, type(expected)) == (found, type(found))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("smallint", 32768),
        ("bigint", "9223372036854775808"),
        ("bigint", "x"),
        ("bigint", "1_0"),
        ("bigint", "1e400000000"),
        ("bigint", "1e9999999999999999999"),
        ("numeric", "0e9999999999999999999"),
        ("double precision", "1e-9999999999999999999"),
        ("numeric", "NaN"),
        ("numeric", "1e400000000"),
        ("numeric(5, 2)", "999.995"),
        ("numeric(5, 2)", 1000),
        ("double precision", "1e999"),
        ("double precision", "Infinity"),
        ("boolean", 2),
        ("date", "infinity"),
        ("date", "0044-03-15 BC"),
        ("timestamp with time zone", "20260-01-01T00:00:00.000000Z"),
        ("timestamp with time zone", "0001-01-01T00:00:00+02:00"),
        ("uuid", "x"),
        ("text", ["a"]),
    ],
)
def test_a_value_that_the_type_cannot_represent_is_refused(kind, value):
    """
    The reason names the column.
    """
    with pytest.raises(UnreadableError, match=r"of c (cannot be cast|is not a)"):
        cast_to(parse_value_type(kind))(value, "c")


def test_a_boolean_is_not_a_number():
    """
    Text that only Python accepts as a number is not one either.
    """
    assert [None] * 4 == [number_of(one) for one in (True, "1_0", " 1", "\u0661")]


SHAPE = RelationShape(
    "shop",
    "orders",
    (
        Column("order_id", "bigint", nullable=False),
        Column("status", "text"),
        Column("total", "numeric", typmod=(12 << 16 | 2) + 4),
        Column("paid", "boolean"),
        Column("tags", "text[]"),
        Column("at", "timestamp with time zone"),
    ),
    ("order_id",),
    "00000000016b3748.0000000002",
)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"mask": "stats"}, "mask: no column stats; did you mean 'status'"),
        ({"template": "{order_id}{x}", "to": "y"}, "template: no column x"),
        ({"drop_if": {"statu": "x"}}, "drop_if: no column statu; did you mean"),
        ({"mask": "order_id"}, "order_id is a column of the key"),
        ({"rename": "order_id", "to": "id"}, "order_id is a column of the key"),
        ({"constant": 1, "to": "order_id"}, "order_id is a column of the key"),
        ({"rename": "status", "to": "total"}, "there is already a column total"),
        ({"mask": "tags"}, r"tags is text\[\], which is not a single value"),
        (
            {"cast": "paid", "type": "numeric"},
            "paid is boolean, which cannot be cast",
        ),
        (
            {"cast": "at", "type": "bigint"},
            "at is timestamp .*, which cannot be cast",
        ),
        (
            {"cast": "total", "type": "uuid"},
            "total is numeric, which cannot be cast",
        ),
        ({"drop_if": {"total": "x"}}, "total is numeric: compare it with a number"),
        ({"drop_if": {"status": 1}}, "status is text: compare it with text in quotes"),
        ({"drop_if": {"paid": "t"}}, "paid is boolean: compare it with true or false"),
        ({"drop_if": {"status": {"below": 1}}}, "below needs a column of numbers"),
        ({"drop_if": {"total": {"matches": "x"}}}, "matches needs a column of texts"),
        ({"drop_if": {"tags": "x"}}, r"tags is text\[\]: only is_null can be applied"),
    ],
)
def test_an_entry_that_does_not_fit_the_table_is_a_mistake(entry, reason):
    """
    The mistake is found before the sink starts, and names the number of the entry.
    """
    (mistake,) = route_mistakes(route({"constant": 1, "to": "n"}, entry), SHAPE)

    assert mistake.startswith("orders (shop.orders): transforms.1: ")
    assert re.search(reason, mistake)


def test_entries_that_fit_have_no_mistakes():
    """
    Computed columns may be included, renamed, and read by later entries.
    """
    one = route(
        {"template": "{order_id}-{status}", "to": "label"},
        {"hash": "label", "salt": "v1"},
        {"drop_if": {"label": {"matches": "a"}, "total": {"below": 1}}},
        {"drop_if": {"tags": {"is_null": True}, "paid": False}},
        {"rename": "status", "to": "state"},
        include=["order_id", "label", "state"],
        rename={"state": "condition"},
    )

    assert [] == route_mistakes(one, SHAPE)


def test_a_sink_sees_the_types_that_transforms_produce():
    """
    A cast to a numeric with a precision becomes a decimal in a warehouse.
    """
    one = route(
        {"cast": "status", "type": "numeric(9, 3)", "to": "n"},
        {"cast": "total", "type": "bigint"},
        {"mask": "paid"},
        {"rename": "at", "to": "time"},
        {"constant": 1.5, "to": "c"},
        exclude=["tags", "status"],
    )
    shape = routing_of(one).shape(SHAPE)

    assert {
        "order_id": ("bigint", None),
        "total": ("bigint", None),
        "paid": ("text", None),
        "n": ("numeric", (9, 3)),
        "time": ("timestamp with time zone", None),
        "c": ("double precision", None),
    } == {c.name: (c.type, c.precision_and_scale) for c in shape.columns}


def test_an_altered_column_that_only_a_transform_reads_is_used():
    """
    The rows are refetched, although the sink has no column with this name.
    """
    one = routing_of(
        route(
            {"template": "{status}", "to": "label"},
            {"drop_if": {"paid": True}},
            exclude=["status", "total", "paid"],
        )
    )

    assert {"order_id", "status", "paid", "tags", "at"} == {
        column.name
        for column in SHAPE.columns
        if one.is_used(column.name, SHAPE.columns)
    }


def test_a_changed_transform_is_noticed_and_no_secret_is_stored():
    """
    All rows of the route are requested; the digest contains only the salt's name.
    """
    before = block_digest(sink({"hash": "note", "salt": "v1"}))
    now = block_digest(sink({"hash": "note", "salt": "v1"}, {"mask": "note"}))

    assert [BlockChange(BlockChangeOutcome.ROUTE_CHANGED, "orders")] == [
        *changes(before, now)
    ]
    assert [] == [*changes(before, before)]
    assert SALT not in orjson.dumps(before._asdict()).decode()


def test_rows_of_a_route_with_transforms_are_not_plain():
    """
    Such rows are always written record by record.
    """
    records = RECORDS.empty_table()
    transformed = Routes(sink({"mask": "note"})).reading(TOPIC)[0]

    assert transformed.routing.is_after_transforms
    assert [] == plain_columns(records, Routes(sink({"mask": "note"})))


def test_a_route_without_transforms_has_none():
    """
    Its batches are only folded.
    """
    assert {} == Routes(SINK).transforms
    assert not routing_of(route(rename={"a": "b"})).is_after_transforms


def shop(*transforms, **options) -> Shop:
    """Make a sink in memory whose route has the transforms."""
    return Shop(accepts_repairs=True, settings=sink(*transforms, **options))


def rows_of(one: Shop) -> dict:
    """Return the rows of a sink; a deleted one is None."""
    return {k: s.row for k, s in one.sink.rows.get("orders", {}).items()}


@pytest.mark.parametrize("in_slices", [False, True])
def test_a_partial_change_is_transformed_with_its_batch(in_slices):
    """
    The batch has the column that the change lacks; without it, the row is requested.
    """
    given = sink({"template": "{status}/{note}", "to": "both"}, exclude=["note"])
    created = change(1, "c", status="a", note="n")
    partial = change(2, "u", unchanged=["note"], status="b")
    once = Shop(accepts_repairs=True, settings=given, in_slices=in_slices)
    once.write(created, partial)
    alone = Shop(accepts_repairs=True, settings=given, in_slices=in_slices)
    alone.write(created)
    alone.write(partial)

    assert {"7": {"order_id": 7, "status": "b", "both": "b/n"}} == rows_of(once)
    assert ([], [("orders", (7,))]) == (once.repairs.keys, alone.repairs.keys)
    assert {"7": {"order_id": 7, "status": "a", "both": "a/n"}} == rows_of(alone)


def test_a_row_that_leaves_the_filter_is_deleted_and_one_that_enters_is_inserted():
    """
    A partial change that enters finds no row, so the row is requested.
    """
    one = shop({"drop_if": {"status": "draft"}})
    one.write(change(1, "c", status="draft", note="n"))
    dropped = rows_of(one)
    one.write(change(2, "u", status="live", note="n"))
    entered = rows_of(one)
    one.write(change(3, "u", unchanged=["note"], status="draft"))
    left = rows_of(one)
    one.write(change(4, "u", unchanged=["note"], status="live"))

    assert [{"7": None}, {"7": None}] == [dropped, left]
    assert {"7": {"order_id": 7, "status": "live", "note": "n"}} == entered
    assert [("orders", (7,))] == one.repairs.keys


@pytest.mark.parametrize("in_slices", [False, True])
def test_a_value_that_cannot_be_cast_parks_its_key(in_slices):
    """
    Later changes to the key wait; a READ row is written, and releases the key.
    """
    given = sink({"cast": "note", "type": "bigint"})
    one = Shop(accepts_repairs=True, settings=given, in_slices=in_slices)
    one.write(change(1, "c", note="1"), change(1, "c", order=8, note="8"))
    one.write(change(2, "u", note="x"))
    one.write(change(3, "u", note="3"))
    reasons = dict(one.letters.reasons())

    assert "the value 'x' of note cannot be cast to bigint" == reasons[2]
    assert {"7": 1, "8": 8} == one.sink.notes
    one.write(change(4, "r", note="4", topic=FILL))
    assert {"7": 4, "8": 8} == one.sink.notes
    assert one.ask(Verb.DISCARD, KEY) is not None


def test_a_partial_change_above_a_refused_row_is_not_merged_with_an_older_one():
    """
    The READ row is from a different topic: merging would hide its refusal.
    """
    one = shop({"cast": "note", "type": "bigint"})
    one.write(change(1, "c", status="a", note="1"))
    one.write(
        change(2, "r", status="b", note="x", topic=FILL),
        change(2, "u", unchanged=["note"], status="c"),
    )

    assert {"7": {"order_id": 7, "status": "a", "note": 1}} == rows_of(one)
    assert [2, 2] == [offset for offset, _ in one.letters.reasons()]


COLUMNS = (
    SourceColumn("order_id", "bigint"),
    SourceColumn("status", "text"),
    SourceColumn("paid", "boolean"),
    SourceColumn("ratio", "double precision"),
    SourceColumn(
        "tags", "text[]", inside=SourceType("text[]", element=SourceType("text"))
    ),
)


def expected(given: Sink, *rows, columns=COLUMNS, unread=()):
    """Return the verifier's form, and the rows that it expects in a sink."""
    table = SourceTable("shop", "orders", columns, ("order_id",), unread=unread)
    form = form_of(given.route[0], table, given)
    return form, [(row.key, list(row.texts)) for row in form.source_rows(rows)]


def test_the_verifier_expects_what_the_sink_writes():
    """
    The source's texts are converted to values first, such as booleans and lists.
    """
    given = sink(
        {"template": "{order_id}|{paid}|{ratio}|{status}", "to": "label"},
        {"cast": "ratio", "type": "numeric(6, 2)"},
        {"drop_if": {"status": "draft"}},
        rename={"tags": "labels"},
        exclude=["status"],
    )
    one = Shop(accepts_repairs=True, settings=given)
    one.write(
        change(1, "c", status="live", paid=True, ratio=1e-5, tags=["a", None]),
        change(2, "c", order=8, status="draft", paid=None, ratio=None, tags=None),
        change(3, "c", order=9, status="x", paid=False, ratio="NaN", tags=[]),
    )
    form, rows = expected(
        given,
        ("7", "live", "true", "1e-05", "{a,NULL}"),
        ("8", "draft", None, None, None),
        ("9", "x", "false", "NaN", "{}"),
    )
    stored = one.sink.rows["orders"]
    written = form.sink_row(StoredRow("7", stored["7"].row, "", is_deleted=False))

    assert ["7", "9"] == [key for key, _ in rows]
    assert rows[0][1] == orjson.loads(written.packed)
    assert {"label": "7|true|0.00001|live", "ratio": "0.00"}.items() <= dict(
        zip(form.columns, rows[0][1], strict=True)
    ).items()
    assert rows[1][1][0].startswith("cannot be transformed: the value 'NaN' of ratio")
    assert [3] == [offset for offset, _ in one.letters.reasons()]


def test_a_column_computed_from_a_masked_one_is_not_compared():
    """
    The report names it; the sink's field is not surplus.
    """
    given = sink(
        {"template": "{status}{secret}", "to": "label"}, {"hash": "paid", "salt": "v1"}
    )
    form, _ = expected(given, unread=("secret",))
    row = {"order_id": 7, "label": "x", "secret": "*"}

    assert ("order_id", "status", "paid", "ratio", "tags") == form.columns
    assert ["columns computed from uncompared ones are not compared: label"] == [
        *form.notes
    ]
    packed = form.sink_row(StoredRow("7", row, "", is_deleted=False)).packed
    assert len(form.columns) == len(orjson.loads(packed))


def test_rows_dropped_by_a_masked_column_cannot_be_compared():
    """
    It is unknown which rows the sink should have.
    """
    with pytest.raises(IncomparableError, match=r"cannot reproduce: secret"):
        expected(sink({"drop_if": {"secret": "x"}}), unread=("secret",))


def test_the_example_on_the_page_is_correct():
    """
    The page's input row is transformed into the page's output row.
    """
    text = (DOCS / "transforms.md").read_text(encoding="utf-8")
    toml, before, after = (
        next(b.text for b in blocks(text) if b.language == "toml"),
        *(orjson.loads(b.text) for b in blocks(text) if b.language == "json"),
    )
    found = Sink.model_validate(tomllib.loads(toml)["sink"][0])
    (one,) = found.route
    columns = tuple(Column(name, "text") for name in before)
    shape = RelationShape("shop", "customers", columns, (), "")
    transformed = RowTransforms(one, found.hash_salts).apply(before)

    assert [] == route_mistakes(one, shape)
    assert after == routing_of(one).row(transformed.row)
