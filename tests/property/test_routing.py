"""Rows can be routed before or after they are folded, with the same result."""

from hypothesis import given
from hypothesis import strategies as st

from towpath.settings import Route
from towpath.sinks.change import Change, Origin
from towpath.sinks.changes.decode import _routed
from towpath.sinks.changes.routing import Routing
from towpath.sinks.fold import newest_per_key
from towpath.sinks.key_text import key_text

COLUMNS = ("id", "a", "b", "c")
ROUTES = st.builds(
    lambda exclude, names, constants, key: Route.model_validate(
        {
            "topic": "towpath.shop.t",
            "name": "t",
            "exclude": exclude,
            "rename": {
                old: new
                for old, new in zip(COLUMNS, names, strict=True)
                if old != new and old not in exclude
            },
            "constants": constants,
            "key": key,
        }
    ),
    st.sets(st.sampled_from(COLUMNS[1:])).map(sorted),
    st.permutations([*COLUMNS]),
    st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 3)),
    st.sampled_from(["", "t:{id}", "t-{id}-"]),
)


@st.composite
def changes(draw):
    """Draw changes to a few keys, some partial; no two positions are equal."""
    drawn = []
    for number in draw(st.permutations(range(draw(st.integers(0, 8))))):
        key = draw(st.integers(0, 2))
        unchanged = draw(st.frozensets(st.sampled_from(COLUMNS[1:])))
        row = {"id": key} | {
            name: draw(st.integers(0, 9))
            for name in COLUMNS[1:]
            if name not in unchanged
        }
        is_delete = draw(st.booleans())
        position = f"{number:016x}.0000000000"
        drawn.append(
            Change(
                "t",
                (key,),
                ("id",),
                position,
                None if is_delete else row,
                frozenset() if is_delete else unchanged,
                False,
                Origin("towpath.shop.t", 0, number),
            )
        )
    return drawn


@given(ROUTES, changes())
def test_routing_commutes_with_folding(route, given_changes):
    """
    If the fold refuses nothing, the order of routing and folding does not matter.

    A refused change follows a delete: without its excluded columns it may be complete,
    and is then applied.
    """
    routing = Routing(route)
    folded = newest_per_key(given_changes)
    before = newest_per_key([_routed(change, routing) for change in given_changes])
    after = [_routed(change, routing) for change in folded.changes]
    refused = {_routed(one.change, routing).key for one in folded.refused}

    expected = [c for c in after if c.key not in refused]

    assert expected == [c for c in before.changes if c.key not in refused]


KEYS = st.tuples(st.text(), st.one_of(st.integers(-(2**63), 2**63 - 1), st.text()))


@given(st.sampled_from(["{a}:{b}", "x{a}:y:{b}z", "{a}%:%{b}"]), KEYS, KEYS)
def test_no_two_keys_have_the_same_templated_id(template, one, other):
    """
    Two templated keys have the same text if and only if their values do.
    """
    routing = Routing(Route(topic="towpath.shop.t", name="t", key=template))
    ids = [key_text(routing.key(("a", "b"), key)[1]) for key in (one, other)]
    are_equal = [str(value) for value in one] == [str(value) for value in other]

    assert are_equal == (ids[0] == ids[1])
