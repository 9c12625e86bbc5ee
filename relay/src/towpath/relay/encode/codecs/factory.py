"""
Makes the codecs of tables, and the writers of the relay's other records.

The format is that of ``[relay.rows] format``: plain JSON, JSON with its schema, or Avro
with its schema's id. With Avro the schemas of a table are registered under the subjects
``<topic>-key`` and ``<topic>-value``. Two tables with one name in Kafka or in Avro are
refused.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import orjson

from towpath.relay.encode.codecs.avro_codec import (
    AvroCodec,
    EnvelopeStyle,
    SchemaIdPair,
    writer,
)
from towpath.relay.encode.codecs.avro_schema import avro_text
from towpath.relay.encode.codecs.codec import Codec, RegisterSchema, TableNames
from towpath.relay.encode.codecs.connect_schema import (
    Field,
    envelope_schema,
    key_schema,
    sanitized_path,
)
from towpath.relay.encode.codecs.json_codec import json_maker
from towpath.relay.encode.codecs.json_schema_codec import (
    JsonSchemaCodec,
    schema_document,
)
from towpath.relay.encode.types.form import Schema
from towpath.relay.errors import NameCollisionError
from towpath.schemas.table_name import TableName
from towpath.settings.relay import Relay
from towpath.settings.rows import RecordFormat

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
        Prepare.

        Args:
            relay: ``[relay]``.
            register: Registers a schema and returns its id; called with Avro only.
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
            NameCollisionError: Two tables, or two fields of a struct, have one name.
            SchemaRefusedError: The registry refuses the schema.
            RegistryRefusedError: The registry refuses the login or a right.
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
        """Check that a topic's or record's name belongs to this table only."""
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
            RegistryRefusedError: The registry refuses the login or a right.
            RegistryUnavailableError: The registry cannot be reached.
        """
        match self.format:
            case RecordFormat.JSON:
                return orjson.dumps
            case RecordFormat.JSON_SCHEMA:
                return _behind_its_schema(schema)
            case RecordFormat.AVRO:
                return _behind_its_id(
                    schema, self._register(subject, avro_text(schema))
                )


def _behind_its_schema(schema: Schema) -> WriteDocument:
    head = b'{"schema":' + orjson.dumps(schema_document(schema)) + b',"payload":'

    def write(document: DocumentValue) -> bytes:
        return head + orjson.dumps(document) + b"}"

    return write


def _behind_its_id(schema: Schema, schema_id: int) -> WriteDocument:
    head = _MAGIC + schema_id.to_bytes(4, "big")
    put = writer(schema)

    def write(document: DocumentValue) -> bytes:
        return head + put(document)

    return write
