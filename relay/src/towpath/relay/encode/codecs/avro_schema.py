"""
Avro schemas from Connect schemas, as Confluent's converter makes and reads them.

===================  ================================================================
optional             a union with ``null`` first, and null as the field's default
optional, default    a union with ``null`` last, since Avro's defaults are of the first
int16                ``int``, with ``connect.type``
semantic types       ``connect.name``, ``connect.version``, ``connect.parameters``
Connect's Decimal    ``logicalType`` decimal, unless its scale is one Avro forbids
struct               a record: defined where it is met first, then named
===================  ================================================================

Every name is sanitised; two that become one are an error that names both.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import orjson

from towpath.relay.encode.codecs.connect_schema import (
    items_of,
    sanitized,
    sanitized_all,
    sanitized_path,
)
from towpath.relay.encode.types.form import Kind, Schema
from towpath.relay.errors import NameCollisionError

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

# The precision of Confluent's converter for a Decimal without one.
_DEFAULT_PRECISION: Final = 64


def avro_text(schema: Schema) -> str:
    """
    Return a record's Avro schema as the registry takes it.

    Raises:
        NameCollisionError: Two names become one.
    """
    return orjson.dumps(_Translation().of(schema, "")).decode()


class _Translation:
    """One schema's translation: which records it has defined so far."""

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
        # A column's own attributes do not make another record.
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
    # numeric(2, -3) and numeric(3, 5) are columns in Postgres, and no decimals in Avro.
    return {"logicalType": "decimal", **digits} if 0 <= scale <= precision else digits
