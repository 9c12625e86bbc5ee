"""
What the relay tells beside rows and events, in the same format as row changes.

Plain JSON, JSON behind its schema, or Avro behind its schema's id, as ``[relay.rows]
format`` says; with Avro the schema is registered when the writer is made.
"""

from collections.abc import Callable, Mapping
from typing import Final

import orjson

from towpath.relay.routing.avro_binary import writer
from towpath.relay.routing.avro_schema import avro_text
from towpath.relay.routing.codec import RegisterSchema
from towpath.relay.routing.forms.form import Schema
from towpath.relay.routing.json_schema_codec import schema_document
from towpath.settings.rows import RecordFormat

Document = Mapping[str, object]
WriteDocument = Callable[[Document], bytes]

_MAGIC: Final = b"\x00"


class Documents:
    """
    Makes writers of documents.

    Attributes:
        format: In which format they write.
    """

    def __init__(self, record_format: RecordFormat, register: RegisterSchema) -> None:
        self.format = record_format
        self._register = register

    def writer(self, schema: Schema, subject: str) -> WriteDocument:
        """
        Return the function that writes documents of a schema.

        Args:
            schema: A struct.
            subject: Under which Avro's schema is registered.

        Raises:
            SchemaRefusedError: The registry refuses the schema.
            RegistryRefusedError: The registry refuses us.
            RegistryUnavailableError: The registry is away.
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

    def write(document: Document) -> bytes:
        return head + orjson.dumps(document) + b"}"

    return write


def _behind_its_id(schema: Schema, schema_id: int) -> WriteDocument:
    head = _MAGIC + schema_id.to_bytes(4, "big")
    put = writer(schema)

    def write(document: Document) -> bytes:
        return head + put(document)

    return write
