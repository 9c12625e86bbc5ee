"""Postgres arrays, composites and hstores are parsed; invalid texts are rejected."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from towpath.relay.encode.types.choose import FormChooser
from towpath.relay.encode.types.form import Form, Modes, TypeFacts, TypeField
from towpath.relay.encode.types.nested import parse_composite, parse_hstore
from towpath.relay.errors import MalformedMessageError
from towpath.settings.rows import Rows

PAIR, PAIRS = 90_000, 90_001
TYPES = {
    1009: TypeFacts("_text", "text[]", element_oid=25),
    PAIR: TypeFacts(
        "pair", "s.pair", "c", fields=(TypeField("a", 25, -1), TypeField("b", 1009, -1))
    ),
    PAIRS: TypeFacts("_pair", "s.pair[]", element_oid=PAIR),
}
ODD = st.text(st.sampled_from('ab{},"\\() =>\n\tNUL;ž😀'), max_size=8)
TEXTS = st.one_of(ODD, st.sampled_from(["NULL", "null", "", "{}", "()"]))
FLAT = st.lists(st.none() | TEXTS, max_size=4)
PAIRED = st.fixed_dictionaries({"a": st.none() | TEXTS, "b": st.none() | FLAT})


def form(type_oid: int) -> Form:
    """Choose the form of a type."""
    found = FormChooser(TYPES, Modes(Rows(), False), [].append).of(type_oid, -1)
    assert found is not None
    return found


def written(type_oid: int, text: str) -> Any:
    """Convert a text to JSON and parse it."""
    return json.loads(form(type_oid).json(text.encode()))


def array_out(items: list[Any]) -> str:
    """Write an array as Postgres's own output function does."""
    return "{" + ",".join(map(element_out, items)) + "}"


def element_out(item: Any) -> str:
    """Write an element, quoted if its text would be ambiguous."""
    if item is None:
        return "NULL"
    if isinstance(item, list):
        return array_out(item)
    needs_quotes = (
        item == ""
        or item.upper() == "NULL"
        or any(c in '{},"\\' or c.isspace() for c in item)
    )
    return '"' + escaped(item) + '"' if needs_quotes else item


def escaped(text: str) -> str:
    """Escape quotes and backslashes as arrays do."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def composite_out(texts: list[str | None]) -> str:
    """Write a composite as Postgres's own output function does."""
    return "(" + ",".join(map(field_out, texts)) + ")"


def field_out(text: str | None) -> str:
    """Write a field with doubled quotes and backslashes."""
    if text is None:
        return ""
    if text and not any(c in '(),"\\' or c.isspace() for c in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'


def pair_out(pair: dict[str, Any]) -> str:
    """Write a pair of a text and an array of texts."""
    inner = None if pair["b"] is None else array_out(pair["b"])
    return composite_out([pair["a"], inner])


@given(FLAT, st.booleans())
def test_any_array_survives_the_round_trip(items: list[str | None], bounded: bool):
    """
    NULL, quoted NULL, empty strings, braces, escapes and bounds are handled (B67).
    """
    bounds = f"[5:{4 + len(items)}]=" if bounded and items else ""

    assert items == written(1009, bounds + array_out(items))


@given(
    st.integers(1, 3).flatmap(
        lambda width: st.lists(
            st.lists(TEXTS, min_size=width, max_size=width), min_size=1, max_size=3
        )
    )
)
def test_any_array_of_arrays_survives_the_round_trip(rows: list[list[str]]):
    """
    A second dimension becomes a list of lists.
    """
    assert rows == written(1009, array_out(rows))


@given(PAIRED)
def test_any_composite_survives_the_round_trip(pair: dict[str, Any]):
    """
    Fields keep their texts; NULL and the empty string differ.
    """
    assert pair == written(PAIR, pair_out(pair))


@given(st.lists(st.none() | PAIRED, max_size=3))
def test_any_array_of_composites_survives_the_round_trip(
    pairs: list[dict[str, Any] | None],
):
    """
    Three levels of quoting are undone one by one.
    """
    text = array_out([None if pair is None else pair_out(pair) for pair in pairs])

    assert pairs == written(PAIRS, text)


@given(st.dictionaries(TEXTS, st.none() | TEXTS, max_size=4))
def test_any_hstore_survives_the_round_trip(pairs: dict[str, str | None]):
    """
    Keys and values may have any characters, and values may be NULL.
    """
    text = ", ".join(
        f'"{escaped(key)}"=>' + ("NULL" if value is None else f'"{escaped(value)}"')
        for key, value in pairs.items()
    )

    assert pairs == parse_hstore(text.encode())


@given(ODD | st.text(max_size=20))
def test_a_nested_text_is_parsed_or_raises_one_error(text: str):
    """
    Any text is parsed, or rejected with ``MalformedMessageError``.
    """
    outcomes: list[object] = []
    for read in (form(1009).value, parse_composite, parse_hstore):
        try:
            outcomes.append(read(text.encode()))
        except MalformedMessageError as refusal:
            outcomes.append(refusal)

    assert [True] * 3 == [
        isinstance(one, list | dict | MalformedMessageError) for one in outcomes
    ]
