"""A route's transforms: the sink has the rows that the verifier expects."""

import math
import random

import orjson
from hypothesis import given
from hypothesis import strategies as st

from support.dying_process import Death
from support.lossy_target import SIZES, LossyTarget
from support.parked_shop import SINK
from towpath.settings import Sink
from towpath.settings.transforms import VALUE_TYPES, parse_value_type
from towpath.sinks.change import UnreadableError
from towpath.sinks.changes.casts import cast_to, number_of
from towpath.sinks.ports import StoredRow
from towpath.sinks.verify.forms import form_of
from towpath.sinks.verify.table import SourceColumn, SourceTable

TABLE = SourceTable(
    "shop",
    "orders",
    (
        SourceColumn("order_id", "bigint"),
        SourceColumn("status", "text"),
        SourceColumn("note", "text"),
        SourceColumn("bio", "text"),
    ),
    ("order_id",),
)
# Most of them read columns that partial changes leave out.
ENTRIES = st.sampled_from(
    [
        {"template": "{note}/{bio}", "to": "both"},
        {"template": "{status} of {note}", "to": "note"},
        {"template": "{order_id}", "to": "id"},
        {"hash": "bio", "salt": "v1"},
        {"hash": "note", "salt": "v1", "to": "bio"},
        {"mask": "note", "keep_first": 1, "to": "hidden"},
        {"cast": "status", "type": "bigint", "to": "number"},
        {"constant": "x", "to": "bio"},
        {"drop_if": {"status": ["2", "5", "8"]}},
        {"drop_if": {"note": {"below": 4}}},
        {"drop_if": {"note": {"matches": ".*[37]"}, "status": {"not": "6"}}},
    ]
)
ENDS = st.sampled_from(
    [
        {},
        {"exclude": ["note"]},
        {"rename": {"note": "remark"}, "constants": {"region": "eu"}},
        {"exclude": ["note"], "rename": {"bio": "note"}},
    ]
)


def settings(entries, end):
    """Describe the sink with transforms in its route."""
    document = SINK.model_dump(exclude_defaults=True)
    route = {**document["route"][0], "transforms": entries, **end}
    salts = {"v1": "0123456789abcdef"}
    return Sink.model_validate({**document, "hash_salts": salts, "route": [route]})


@given(
    st.data(),
    st.lists(ENTRIES, min_size=1, max_size=3),
    ENDS,
    st.sampled_from(["records", "slices", "tasks"]),
    st.lists(st.integers(1, 12), max_size=2),
)
def test_the_sink_has_the_rows_that_the_verifier_expects(
    data, entries, end, mode, deaths
):
    """
    The rows are equal despite partial changes, lost rows, refetches and crashes.

    A transform is never computed from a partial change that lacks some of its inputs.
    """
    sink = settings(entries, end)
    rng = random.Random(data.draw(st.integers(0, 99))) if mode == "tasks" else None  # noqa: S311 - not a secret
    target = LossyTarget(
        data.draw,
        by_key=data.draw(st.booleans()),
        settings=sink,
        in_slices=mode != "records",
        rng=rng,
    )
    if deaths:
        Death(*deaths, is_after=False).wrap_calls(target.shop)
    for _ in range(data.draw(st.integers(0, 10))):
        step = data.draw(
            st.sampled_from(["commit", "deliver", "answer", "request_overdue"])
        )
        if step == "deliver":
            target.deliver(*data.draw(SIZES))
        else:
            getattr(target, step)()
    target.fill()
    target.finish()
    form = form_of(sink.route[0], TABLE, sink)
    expected = form.source_rows(
        (str(key), row["status"], row["note"], row["bio"])
        for key, row in target.rows.items()
        if row
    )
    stored = [
        form.sink_row(StoredRow(key, one.row or {}, one.position, one.row is None))
        for key, one in target.shop.sink.rows.get("orders", {}).items()
    ]

    assert not target.shop.letters.reasons()
    assert {row.key: row.texts for row in expected} == {
        row.key: orjson.loads(row.packed) for row in stored if not row.is_deleted
    }


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
)


@given(VALUES, st.sampled_from([*VALUE_TYPES, "numeric(6, 2)"]))
def test_a_cast_is_stable_or_refused(value, kind):
    """
    Casting a cast value again does not change it; an invalid value raises one error.
    """
    if value is None:
        return
    cast = cast_to(parse_value_type(kind))
    try:
        once = cast(value, "c")
    except UnreadableError:
        return

    assert once == cast(once, "c")


@given(st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)))
def test_numbers_are_compared_by_value(value):
    """
    A number and its text are the same number; an infinity is not a number.
    """
    number = number_of(value)

    assert (number is None) == math.isinf(value)
    assert number == number_of(repr(value))
