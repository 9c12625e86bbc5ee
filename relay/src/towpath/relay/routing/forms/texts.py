"""
Types whose form is their text: characters, documents, networks, enums. Hot path.

Only the semantic name tells them apart. A document (json, jsonb, xml) is a string that
holds its text, so that a JSON ``null`` in a column is not a NULL.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import orjson

from towpath.relay.routing.forms.form import Form, Fragments, Schema

_QUOTE: Final = b'"'

# No text of Postgres's holds it, and JSON always escapes it.
_NUL: Final = b"\0"
_ESCAPED_NUL: Final = b"\\u0000"
_ESCAPE_BYTES: Final = len(_ESCAPED_NUL) - len(_NUL)


def text_json(text: bytes) -> bytes:
    """Quote a text, whatever it holds."""
    return orjson.dumps(text.decode())


def text_column(texts: Sequence[bytes]) -> Fragments:
    """
    Quote texts, whatever they hold.

    They are looked at in one go, with a NUL between each two: if nothing but those had
    to be escaped they stand as they are, else what came of it is cut at them again.
    """
    joined = _NUL.join(texts)
    written = orjson.dumps(joined.decode())[1:-1]
    if len(written) == len(joined) + _ESCAPE_BYTES * (len(texts) - 1):
        return Fragments(texts, _QUOTE)
    parts = written.split(_ESCAPED_NUL)
    if len(parts) == len(texts):
        return Fragments(parts, _QUOTE)
    # One of them spells an escaped NUL out.
    return Fragments(list(map(text_json, texts)))


def plain_json(text: bytes) -> bytes:
    """Quote a text that never holds what JSON escapes."""
    return b'"' + text + b'"'


def plain_column(texts: Sequence[bytes]) -> Fragments:
    """Quote texts that never hold what JSON escapes."""
    return Fragments(texts, _QUOTE)


def text_value(text: bytes) -> str:
    """Read a text."""
    return text.decode()


def named(name: str | None, *, is_plain: bool = False) -> Form:
    """Return the form of a text with a semantic name; plain: nothing is escaped."""
    schema = Schema("string", name=name, version=None if name is None else 1)
    if is_plain:
        return Form(schema, plain_json, text_value, plain_column)
    return Form(schema, text_json, text_value, text_column)


TEXT: Final = named(None)
PLAIN: Final = named(None, is_plain=True)
JSON: Final = named("io.debezium.data.Json")
XML: Final = named("io.debezium.data.Xml")
UUID: Final = named("io.debezium.data.Uuid", is_plain=True)
LTREE: Final = named("io.debezium.data.Ltree")
TSVECTOR: Final = named("io.debezium.data.Tsvector")


def enum(labels: tuple[str, ...]) -> Form:
    """Return the form of an enum; the schema tells its labels, in their order."""
    schema = Schema(
        "string",
        name="io.debezium.data.Enum",
        version=1,
        parameters=MappingProxyType({"allowed": ",".join(labels)}),
    )
    return Form(schema, text_json, text_value, text_column)
