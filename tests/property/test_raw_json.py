"""The members of a JSON message keep their exact text, in any formatting."""

import json

from hypothesis import given
from hypothesis import strategies as st

from towpath.relay.encode.logical import RawJson
from towpath.relay.errors import UnroutableError

NAMES = st.sampled_from(["payload", "id", 'pay"load', "x", "payload ", "é"])
SPACES = st.sampled_from(["", " ", "\n", "\t  ", "\r\n"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["payload", '"payload":', "\\", "é\n", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def objects(draw: st.DrawFn) -> tuple[str, dict[str, tuple[object, str]]]:
    """Write an object in any format; return it with each member's value and text."""
    members: dict[str, tuple[object, str]] = {}
    parts = []
    for name in draw(st.lists(NAMES, max_size=4)):
        value = draw(VALUES)
        text = json.dumps(
            value,
            ensure_ascii=draw(st.booleans()),
            indent=draw(st.sampled_from([None, 1])),
        )
        quoted = json.dumps(name)
        if draw(st.booleans()):
            quoted = quoted.replace("a", "\\u0061")
        space = [draw(SPACES) for _ in range(4)]
        parts.append(f"{space[0]}{quoted}{space[1]}:{space[2]}{text}{space[3]}")
        members[name] = value, text
    content = draw(SPACES) + "{" + ",".join(parts) + (draw(SPACES) + "}")
    return content + draw(SPACES), members


@given(objects())
def test_every_json_member_keeps_its_text(
    written: tuple[str, dict[str, tuple[object, str]]],
):
    """
    Strings are unquoted, null becomes ``None``, and other values keep their text.

    If a name occurs several times, its last value counts.
    """
    content, members = written
    found = RawJson(content.encode())
    expected = {
        name: None
        if value is None
        else (value if isinstance(value, str) else text).encode()
        for name, (value, text) in members.items()
    }

    assert expected == {name: found.text(name) for name in found.members}


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_content_is_an_object_or_gives_one_named_error(content: bytes):
    """
    Invalid content raises only ``UnroutableError``.
    """
    try:
        found = RawJson(content)
    except UnroutableError:
        return

    assert isinstance(found.members, dict)
