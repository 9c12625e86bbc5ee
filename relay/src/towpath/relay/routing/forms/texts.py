"""
Types whose form is their text: characters, documents, networks, enums. Hot path.

Only the semantic name tells them apart. A document (json, jsonb, xml) is a string that
holds its text, so that a JSON ``null`` in a column is not a NULL.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import orjson

from towpath.relay.routing.forms.form import Form, Schema


def text_json(text: bytes) -> bytes:
    """Quote a text, whatever it holds."""
    return orjson.dumps(text.decode())


def plain_json(text: bytes) -> bytes:
    """Quote a text that never holds what JSON escapes."""
    return b'"' + text + b'"'


def text_value(text: bytes) -> str:
    """Read a text."""
    return text.decode()


def named(name: str | None, json: Callable[[bytes], bytes] = text_json) -> Form:
    """Return the form of a text with a semantic name."""
    version = None if name is None else 1
    return Form(Schema("string", name=name, version=version), json, text_value)


TEXT: Final = named(None)
PLAIN: Final = named(None, plain_json)
JSON: Final = named("io.debezium.data.Json")
XML: Final = named("io.debezium.data.Xml")
UUID: Final = named("io.debezium.data.Uuid", plain_json)
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
    return Form(schema, text_json, text_value)
