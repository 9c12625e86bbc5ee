"""
JSON with its schema, as Kafka Connect's converter writes and reads it.

Keys and values are ``{"schema": ..., "payload": ...}``. The schema is made once per
table schema; the payload is the plain JSON codec's. A tombstone has neither.
"""

from collections.abc import Sequence
from typing import Final

import orjson

from towpath.relay.encode.codecs.codec import Codec, EnvelopeFacts, Values
from towpath.relay.encode.codecs.connect_schema import items_of
from towpath.relay.encode.types.form import Schema
from towpath.relay.wal.messages import Row

_TEXT: Final = Schema("string")


class JsonSchemaCodec:
    """Adds the schema to the payload of another codec. Hot path."""

    def __init__(self, inner: Codec, key: Schema, envelope: Schema) -> None:
        self._inner = inner
        self._key_of = inner.key
        self._value_of = inner.value
        self._key_head = _head(key)
        self._value_head = _head(envelope)

    def key(self, row: Row) -> bytes | None:
        """
        Return the key of a row with its schema; None for a table without one.

        Raises:
            MalformedMessageError: The row has no value for a key column.
        """
        payload = self._key_of(row)
        return None if payload is None else self._key_head + payload + b"}"

    def key_header(self, row: Row) -> bytes | None:
        """Return the key of a row for headers, without its schema."""
        return self._key_of(row)

    def value(
        self,
        before: Row | None,
        after: Row | None,
        facts: EnvelopeFacts,
        *,
        is_full: bool,
    ) -> bytes:
        """Return the envelope with its schema."""
        payload = self._value_of(before, after, facts, is_full=is_full)
        return self._value_head + payload + b"}"

    def keys(self, columns: Sequence[Values]) -> Sequence[bytes | None]:
        """
        Return the keys of rows of a chunk, which are given column by column.

        Raises:
            MalformedMessageError: A row has no value for a key column.
        """
        head = self._key_head
        return [
            None if payload is None else head + payload + b"}"
            for payload in self._inner.keys(columns)
        ]

    def reads(self, columns: Sequence[Values], facts: EnvelopeFacts) -> Sequence[bytes]:
        """Return the envelopes of rows of a chunk."""
        head = self._value_head
        payloads = self._inner.reads(columns, facts)
        return [b"".join((head, payload, b"}")) for payload in payloads]


def schema_document(schema: Schema) -> dict[str, object]:
    """Return a schema as JSON of Kafka Connect's converter."""
    document: dict[str, object] = {"type": schema.kind}
    if schema.kind == "struct":
        document["fields"] = [
            {**schema_document(of), "field": name} for name, of in schema.fields
        ]
    elif schema.kind == "array":
        document["items"] = schema_document(items_of(schema))
    elif schema.kind == "map":
        document["keys"] = schema_document(_TEXT)
        document["values"] = schema_document(items_of(schema))
    document["optional"] = schema.is_optional
    if schema.name is not None:
        document["name"] = schema.name
    if schema.version is not None:
        document["version"] = schema.version
    if schema.parameters:
        document["parameters"] = dict(schema.parameters)
    if schema.default is not None:
        document["default"] = schema.default
    return document


def _head(schema: Schema) -> bytes:
    return b'{"schema":%b,"payload":' % orjson.dumps(schema_document(schema))
