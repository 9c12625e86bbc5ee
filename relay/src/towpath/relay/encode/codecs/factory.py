"""
Makes the codecs of tables, and the writers of the relay's other records.

``[relay.rows] format`` chooses the format: plain JSON, JSON with its schema, or Avro
with its schema's id. JSON with its schema is ``{"schema": ..., "payload": ...}``, as
Kafka Connect's converter writes it; a tombstone has neither.

Avro's schemas are registered under the subjects ``<topic>-key`` and ``<topic>-value``.
Two tables with the same name in Kafka or Avro are refused. ``avro_text`` makes Avro's
schemas from Connect's, as Confluent's converter does:

===================  ================================================================
optional             a union with ``null`` first, and null as the field's default
optional, default    a union with ``null`` last: an Avro default has the first type
int16                ``int``, with ``connect.type``
semantic types       ``connect.name``, ``connect.version``, ``connect.parameters``
Connect's Decimal    ``logicalType`` decimal, unless Avro forbids its scale
struct               a record: defined at its first use, then referenced by its name
===================  ================================================================

Every name is sanitized; two names that become the same cause an error that names both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import orjson

from towpath.relay.encode.codecs.avro_codec import (
    AvroCodec,
    EnvelopeStyle,
    SchemaIdPair,
    writer,
)
from towpath.relay.encode.codecs.codec import (
    Codec,
    EnvelopeFacts,
    RegisterSchema,
    TableNames,
    Values,
)
from towpath.relay.encode.codecs.connect_schema import (
    Field,
    envelope_schema,
    items_of,
    key_schema,
    sanitized,
    sanitized_all,
    sanitized_path,
)
from towpath.relay.encode.codecs.json_codec import json_maker
from towpath.relay.encode.types.form import Kind, Schema
from towpath.relay.errors import NameCollisionError
from towpath.relay.wal.messages import Row
from towpath.schemas.table_name import TableName
from towpath.settings.relay import Relay
from towpath.settings.rows import RecordFormat

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
        Return the key of a row with its schema; None for a table without a key.

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
        Return the keys of a chunk's rows, which are given column by column.

        Raises:
            MalformedMessageError: A row has no value for a key column.
        """
        head = self._key_head
        return [
            None if payload is None else head + payload + b"}"
            for payload in self._inner.keys(columns)
        ]

    def reads(self, columns: Sequence[Values], facts: EnvelopeFacts) -> Sequence[bytes]:
        """Return the envelopes of a chunk's rows."""
        head = self._value_head
        payloads = self._inner.reads(columns, facts)
        return [b"".join((head, payload, b"}")) for payload in payloads]


def schema_document(schema: Schema) -> dict[str, object]:
    """Return a schema as the JSON document of Kafka Connect's converter."""
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


Avro = str | list[Any] | dict[str, Any]

_PRIMITIVES: Final[Mapping[Kind, str]] = MappingProxyType(
    {
        "boolean": "boolean",
        "int16": "int",
        "int32": "int",
        "int64": "long",
        "float": "float",
        "double": "double",
        "string": "string",
        "bytes": "bytes",
    }
)
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_LOGICAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "org.apache.kafka.connect.data.Date": "date",
        "org.apache.kafka.connect.data.Time": "time-millis",
        "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
    }
)

# The precision that Confluent's converter assumes for a Decimal without one.
_DEFAULT_PRECISION: Final = 64


def avro_text(schema: Schema) -> str:
    """
    Return a record's Avro schema as text for the registry.

    Raises:
        NameCollisionError: Two names become the same.
    """
    return orjson.dumps(_Translation().of(schema, "")).decode()


class _Translation:
    """Translates one schema, and keeps the records defined so far."""

    def __init__(self) -> None:
        self._defined: dict[str, tuple[str, Schema]] = {}

    def of(self, schema: Schema, path: str) -> Avro:
        """Return the type of a schema; ``path`` names a struct without a name."""
        plain = self._plain(schema, path)
        if not schema.is_optional:
            return plain
        return ["null", plain] if schema.default is None else [plain, "null"]

    def _plain(self, schema: Schema, path: str) -> Avro:
        if schema.kind == "struct":
            return self._record(schema, path)
        document: dict[str, Any]
        if schema.kind in {"array", "map"}:
            word = "items" if schema.kind == "array" else "values"
            items = self.of(items_of(schema), path)
            document = {"type": schema.kind, word: items}
        else:
            document = {"type": _PRIMITIVES[schema.kind]}
        if schema.kind == "int16":
            document["connect.type"] = "int16"
        document |= _metadata(schema) | _logical(schema)
        return str(document["type"]) if len(document) == 1 else document

    def _record(self, schema: Schema, path: str) -> Avro:
        name = schema.name or path
        full = sanitized_path(name)
        # The attributes of a column do not make its struct a different record.
        bare = replace(schema, is_optional=False, default=None, parameters={})
        if full in self._defined:
            other, known = self._defined[full]
            if known != bare:
                reason = f"two structs, {other!r} and {name!r}, are both named {full!r}"
                raise NameCollisionError(reason)
            return full
        self._defined[full] = name, bare
        safe = sanitized_all((name for name, _ in schema.fields), name)
        namespace, _, last = full.rpartition(".")
        document: dict[str, Any] = {"type": "record", "name": last}
        if namespace:
            document["namespace"] = namespace
        document["fields"] = [
            self._field(safe[field], of, f"{full}.{sanitized(field)}")
            for field, of in schema.fields
        ]
        return document | _metadata(replace(bare, name=full if schema.name else None))

    def _field(self, name: str, schema: Schema, path: str) -> dict[str, Any]:
        document: dict[str, Any] = {"name": name, "type": self.of(schema, path)}
        if schema.is_optional or schema.default is not None:
            document["default"] = schema.default
        if schema.kind == "struct" and schema.parameters:
            document["connect.parameters"] = dict(schema.parameters)
        return document


def _metadata(schema: Schema) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if schema.version is not None:
        document["connect.version"] = schema.version
    if schema.parameters:
        document["connect.parameters"] = dict(schema.parameters)
    if schema.default is not None:
        document["connect.default"] = schema.default
    if schema.name is not None:
        document["connect.name"] = schema.name
    return document


def _logical(schema: Schema) -> dict[str, Any]:
    if schema.name != DECIMAL:
        word = _LOGICAL.get(schema.name or "")
        return {} if word is None else {"logicalType": word}
    found = schema.parameters.get("connect.decimal.precision", _DEFAULT_PRECISION)
    precision, scale = int(found), int(schema.parameters.get("scale", "0"))
    digits = {"scale": scale, "precision": precision}
    # Postgres allows numeric(2, -3) and numeric(3, 5); Avro has no such decimals.
    return {"logicalType": "decimal", **digits} if 0 <= scale <= precision else digits


_NO_OWNERS: Final[Mapping[str, TableName]] = MappingProxyType({})


class CodecFactory:
    """
    Makes codecs in the format of ``[relay.rows]``.

    One factory serves all tables of a session, so that it finds name collisions.
    """

    def __init__(
        self,
        relay: Relay,
        register: RegisterSchema,
        owners: Mapping[str, TableName] = _NO_OWNERS,
    ) -> None:
        """
        Resolve the format and its options.

        Args:
            relay: ``[relay]``.
            register: Registers a schema and returns its id; called only with Avro.
            owners: The table of each topic.
        """
        self._format = relay.rows.format
        self._style = EnvelopeStyle(relay.rows.placeholder, relay.preset == "debezium")
        self._make_json = json_maker(relay)
        self._register = register
        self._owners: dict[str, TableName] = dict(owners)

    def make(
        self, names: TableNames, key: Sequence[Field], columns: Sequence[Field]
    ) -> Codec:
        """
        Return a codec; ``key`` is in key order, ``columns`` in the order of rows.

        Raises:
            NameCollisionError: Two tables, or two fields of a struct, share a name.
            SchemaRefusedError: The registry refuses the schema.
            RegistryRefusedError: The registry refuses the login or denies access.
            RegistryUnavailableError: The registry cannot be reached.
        """
        self._claim(names.topic, names)
        if self._format is RecordFormat.AVRO:
            return self._avro(names, key, columns)
        inner = self._make_json(names, key, columns)
        if self._format is RecordFormat.JSON:
            return inner
        envelope = envelope_schema(names, key, columns)
        return JsonSchemaCodec(inner, key_schema(names, key), envelope)

    def _avro(
        self, names: TableNames, key: Sequence[Field], columns: Sequence[Field]
    ) -> Codec:
        self._claim(
            sanitized_path(f"{names.prefix}.{names.schema}.{names.table}"), names
        )
        value_text = avro_text(envelope_schema(names, key, columns))
        key_id = None
        if key:
            key_text = avro_text(key_schema(names, key))
            key_id = self._register(f"{names.topic}-key", key_text)
        ids = SchemaIdPair(key_id, self._register(f"{names.topic}-value", value_text))
        return AvroCodec(names, key, columns, ids, self._style)

    def _claim(self, name: str, names: TableNames) -> None:
        """Claim a topic's or record's name for a table, unless another table has it."""
        table = TableName(names.schema, names.table)
        owner = self._owners.setdefault(name, table)
        if owner != table:
            reason = (
                f"the tables {owner.text!r} and {table.text!r} are both named {name!r}"
            )
            raise NameCollisionError(reason)


DocumentValue = Mapping[str, object]
WriteDocument = Callable[[DocumentValue], bytes]

_MAGIC: Final = b"\x00"


class Documents:
    """Makes writers of documents in ``format``."""

    def __init__(self, record_format: RecordFormat, register: RegisterSchema) -> None:
        self.format = record_format
        self._register = register

    def writer(self, schema: Schema, subject: str) -> WriteDocument:
        """
        Return the function that writes documents of a schema, which is a struct.

        With Avro the schema is registered under ``subject``.

        Raises:
            SchemaRefusedError: The registry refuses the schema.
            RegistryRefusedError: The registry refuses the login or denies access.
            RegistryUnavailableError: The registry cannot be reached.
        """
        match self.format:
            case RecordFormat.JSON:
                return orjson.dumps
            case RecordFormat.JSON_SCHEMA:
                return _with_schema(schema)
            case RecordFormat.AVRO:
                return _with_schema_id(
                    schema, self._register(subject, avro_text(schema))
                )


def _with_schema(schema: Schema) -> WriteDocument:
    head = _head(schema)

    def write(document: DocumentValue) -> bytes:
        return head + orjson.dumps(document) + b"}"

    return write


def _with_schema_id(schema: Schema, schema_id: int) -> WriteDocument:
    head = _MAGIC + schema_id.to_bytes(4, "big")
    put = writer(schema)

    def write(document: DocumentValue) -> bytes:
        return head + put(document)

    return write
