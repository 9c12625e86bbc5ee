"""No two keys have the same text."""

from hypothesis import example, given
from hypothesis import strategies as st

from towpath.sinks.key_text import key_text
from towpath.sinks.targets.cache.schema import (
    name_of,
    route_key_prefix,
    text_of_name,
)

PARTS = st.text(
    st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=6
)
TRICKY = st.text(":%3A025", max_size=6)
KEYS = st.tuples(PARTS | TRICKY, PARTS | TRICKY)
# Keys in a cache that any program may have written, as a client decodes them.
NAMES = st.lists(
    st.binary(max_size=3)
    | st.sampled_from([b"%", b"%25", b"%C3", b"C3", b"\xc3", b":"]),
    max_size=6,
).map(lambda parts: b"".join(parts).decode(errors="surrogateescape"))


@given(KEYS, KEYS)
def test_two_keys_of_a_table_have_different_texts(first, second):
    """Texts are equal if and only if the keys are."""
    assert (first == second) == (key_text(first) == key_text(second))


@given(KEYS, KEYS)
def test_two_rows_of_two_routes_have_different_cache_keys(first, second):
    """
    A route named like another route's key does not overwrite that route's rows.
    """
    rows = (first, second)
    cache_keys = {
        route_key_prefix("p", route) + key_text((key,)) for route, key in rows
    }

    assert (first == second) == (len(cache_keys) == 1)


@given(st.text(":%", min_size=0, max_size=5))
def test_a_key_text_is_never_empty(part):
    """
    A search index does not accept an empty id.
    """
    assert key_text((part,)) != ""


@given(st.text(":%3Aa0", max_size=8))
def test_a_colon_in_a_key_part_is_not_a_separator(text):
    """
    Keys that split one string at different colons have different texts.
    """
    keys = {(text[:at], text[at + 1 :]) for at, sign in enumerate(text) if sign == ":"}

    assert len(keys) == len({key_text(key) for key in keys})


@given(st.text(":%03A", min_size=1, max_size=5))
def test_a_key_part_that_looks_escaped_is_a_different_part(text):
    """
    If escaping changes a key part, escaping the result changes it again.
    """
    escaped = key_text((text,))

    assert (text == escaped) == (key_text((escaped,)) == escaped)


@given(NAMES)
@example("caf%C3%A9")
@example("%25C3")
def test_every_name_in_a_cache_is_found_by_its_text(name):
    """
    No two names have the same text, so an erase deletes exactly the reported key.
    """
    text = text_of_name(name)
    text.encode()

    assert name == name_of(text)


@given(KEYS)
@example(("%FF", "%%"))
def test_the_key_of_a_row_is_its_own_text(key):
    """
    A key that a different program wrote therefore never has the text of a row's key.
    """
    assert key_text(key) == text_of_name(key_text(key)) == name_of(key_text(key))
