"""A route's effect on rows, keys and shapes."""

import orjson
import pytest

from towpath.settings import Route, Sink
from towpath.sinks.change import ALL_PRESENT, Origin, Record, UnreadableError
from towpath.sinks.changes.decode import decode
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.changes.routing import Routes, Routing, routing_of
from towpath.sinks.key_text import key_text

TOPIC = "towpath.shop.lines"
POSITION = "00000000016b3748.0000000002"
SHAPE = RelationShape(
    "shop",
    "lines",
    (
        Column("order_id", "bigint", nullable=False),
        Column("no", "integer", nullable=False),
        Column("note", "character varying", typmod=14),
        Column("secret", "text"),
    ),
    ("order_id", "no"),
    POSITION,
)


def routing(**options) -> Routing:
    """Make a route's transformation."""
    found = routing_of(Route.model_validate({"topic": TOPIC, "name": "l"} | options))
    assert found is not None
    return found


def routes(*several, kind="cache") -> Routes:
    """Make a sink's routes, all for one topic."""
    named = [
        {"topic": TOPIC, "name": f"l{number}"} | one
        for number, one in enumerate(several)
    ]
    sink = {"name": "s", "kind": kind, "url": "x", "route": named}
    return Routes(Sink.model_validate(sink))


def record(after, *, operation="u", **headers) -> Record:
    """Make a record of a line."""
    given = {"position": POSITION.encode()} | headers
    value = None if after is None else {"op": operation, "after": after}
    key = b'{"order_id":7,"no":1}'
    body = None if value is None else orjson.dumps(value)
    return Record(Origin(TOPIC, 0, 1), key, body, given)


def test_columns_are_excluded_then_renamed_and_then_constants_are_added():
    """
    A renamed column may take the name of an excluded one.
    """
    one = routing(exclude=["a"], rename={"b": "a"}, constants={"region": "eu"})

    assert {"a": 2, "c": None, "region": "eu"} == one.row({"a": 1, "b": 2, "c": None})


def test_only_included_columns_are_kept():
    """
    Columns that the source gains later are left out.
    """
    one = routing(include=["a", "b"], rename={"b": "x"})

    assert {"a": 1, "x": 2} == one.row({"a": 1, "b": 2, "later": 3})
    assert {"a", "x"} == one.names({"a", "b", "later"})


def test_two_column_names_may_be_swapped():
    """
    All columns are renamed at the same time.
    """
    assert {"b": 1, "a": 2} == routing(rename={"a": "b", "b": "a"}).row(
        {"a": 1, "b": 2}
    )


@pytest.mark.parametrize(
    ("options", "row"),
    [
        ({"rename": {"a": "b"}}, {"a": 1, "b": 2}),
        ({"constants": {"b": 1}}, {"a": 1, "b": 2}),
    ],
)
def test_no_column_hides_another(options, row):
    """
    A new column in the source may collide: the record is refused, and loses no value.
    """
    with pytest.raises(UnreadableError, match="give two columns one name"):
        routing(**options).row(row)


def test_reserved_column_names_are_refused_after_renaming():
    """
    A source column with such a name can be renamed or excluded.
    """
    assert {"y": 1} == routing(rename={"_x": "y"}).row({"_x": 1})
    with pytest.raises(UnreadableError, match="sinks reserve"):
        routing(rename={"z": "y"}).row({"_x": 1})


def test_a_record_gives_a_change_for_every_route_of_its_topic():
    """
    Each change has the shape that its route defines.
    """
    both = routes({}, {"include": ["order_id", "no"], "rename": {"no": "line"}})
    decoded = decode([record({"order_id": 7, "no": 1, "note": "x"})], both)

    assert [
        ("l0", (7, 1), ("order_id", "no"), {"order_id": 7, "no": 1, "note": "x"}),
        ("l1", (7, 1), ("order_id", "line"), {"order_id": 7, "line": 1}),
    ] == [(c.route, c.key, c.key_columns, c.row) for c in decoded.changes]


def test_an_unreadable_record_is_one_dead_letter():
    """
    The number of routes that read its topic does not matter.
    """
    decoded = decode([record(None, position=b"?")], routes({}, {}))

    assert ([], 1) == (decoded.changes, len(decoded.unreadable))


def test_a_record_that_one_route_refuses_is_applied_by_the_other():
    """
    The record still becomes a dead letter; the guards absorb its replay.
    """
    both = routes({"constants": {"note": "n"}}, {})
    decoded = decode([record({"order_id": 7, "no": 1, "note": "x"})], both)

    assert (["l1"], 1) == ([c.route for c in decoded.changes], len(decoded.unreadable))


def test_every_route_of_a_topic_has_its_floor():
    """
    A sweep of a topic deletes rows in every route's target.
    """
    swept = record(None, sweep=b"000000000000abc8.-")

    assert ["l0", "l1"] == [f.route for f in decode([swept], routes({}, {})).floors]


def test_an_excluded_column_does_not_make_a_change_partial():
    """
    An excluded column cannot be missing; a renamed one is listed by its new name.
    """
    one = routes({"exclude": ["secret"], "rename": {"note": "remark"}})
    row = {"order_id": 7, "no": 1}
    records = [
        record(row, unchanged=b'["secret"]'),
        record(row, unchanged=b'["secret","note"]'),
    ]

    assert [ALL_PRESENT, {"remark"}] == [
        c.unchanged for c in decode(records, one).changes
    ]


@pytest.mark.parametrize("after", [None, {"order_id": 7, "no": 1}])
def test_a_template_makes_the_same_id_for_a_delete(after):
    """
    A delete has the id of the row that it deletes; such a key has no columns.
    """
    one = routes({"key": "order {order_id}:no-{no}!"})
    (change,) = decode([record(after)], one).changes

    assert (("order 7", "no-1!"), ()) == (change.key, change.key_columns)
    assert "order 7:no-1!" == key_text(change.key)


def test_a_template_without_all_key_columns_refuses_the_record():
    """
    Otherwise two keys could have one id.
    """
    decoded = decode([record({"order_id": 7})], routes({"key": "{order_id}"}))

    assert "name the row's key columns in order" in decoded.unreadable[0].reason


@pytest.mark.parametrize("key", ["{a}:{b}", "x{a}y:z:{b}", "x:{a}:{b}x", ""])
@pytest.mark.parametrize("values", [("1", "2"), ("", ":x"), ("x%y", "z:{a}")])
def test_a_key_can_be_read_back_from_its_id(key, values):
    """
    A refetch request must name the row as the source does.
    """
    one = routing(key=key, constants={"c": 1})

    assert values == one.source_key(one.key(("a", "b"), values)[1])


def test_a_routes_shape_is_that_of_its_rows():
    """
    Constants become columns of their own types; the key columns have their new names.
    """
    one = routing(
        exclude=["secret"],
        rename={"no": "line", "note": "remark"},
        constants={"region": "eu", "n": 1, "is_live": True, "w": 0.5},
        fields={"remark": "uuid"},
    )
    constant = [
        Column(name, type_name, nullable=False)
        for name, type_name in (
            ("region", "text"),
            ("n", "bigint"),
            ("is_live", "boolean"),
            ("w", "double precision"),
        )
    ]
    columns = (
        Column("order_id", "bigint", nullable=False),
        Column("line", "integer", nullable=False),
        Column("remark", "uuid"),
        *constant,
    )

    assert ("shop", "lines", columns, ("order_id", "line"), POSITION) == tuple(
        getattr(one.shape(SHAPE), name)
        for name in ("schema", "table", "columns", "key", "position")
    )


def test_a_route_without_transformations_changes_no_row():
    """
    Such a route costs nothing per row.
    """
    plain = Route(topic=TOPIC, name="l")

    assert routing_of(plain) is None
