"""
The shapes of tables, as the relay announces them in the relations topic.

Sinks take column types from here and never guess them. The key of a record is
``schema.table``; its value is ``{"schema", "table", "oid", "columns": [{"name", "type",
"type_oid", "typmod", "nullable"}], "key": [..], "position"}``. A column also has the
components of its type: ``element``, ``base``, ``fields``. No I/O: bytes in, values out.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from towpath.schemas.table_name import TableName
from towpath.sinks.errors import MalformedRelationError

# A numeric's typmod holds precision and scale plus an offset, as Postgres stores it.
# The scale has eleven bits, and has been signed since version 15.
_TYPMOD_OFFSET = 4
_PRECISION_SHIFT = 16
_PRECISION_MASK = 0xFFFF
_SCALE_MASK = 0x7FF
_SCALE_SIGN = 0x400


@dataclass(frozen=True, slots=True)
class Column:
    """
    A column and its Postgres type.

    Attributes:
        type: Postgres's own spelling without modifiers (``bigint``, ``timestamp with
            time zone``), ``schema.name`` for a user-defined type.
        typmod: The type's modifier as Postgres stores it; -1 for none.
        is_object: Whether its values are objects, or lists of objects: composite types.
        source_name: Its name in the source, if it is published under a different one.
    """

    name: str
    type: str
    typmod: int = -1
    nullable: bool = True
    is_object: bool = False
    source_name: str = ""

    @property
    def precision_and_scale(self) -> tuple[int, int] | None:
        """The precision and scale of a numeric; ``None`` if unbounded."""
        if self.type != "numeric" or self.typmod < _TYPMOD_OFFSET:
            return None
        packed = self.typmod - _TYPMOD_OFFSET
        scale = (packed & _SCALE_MASK ^ _SCALE_SIGN) - _SCALE_SIGN
        return packed >> _PRECISION_SHIFT & _PRECISION_MASK, scale


@dataclass(frozen=True, slots=True)
class RelationShape:
    """
    A table: its columns in order, and the columns of its records' key in key order.

    Attributes:
        position: The position as of which the shape is valid, as sortable text.
    """

    schema: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    position: str

    @property
    def full_name(self) -> TableName:
        """Schema and table."""
        return TableName(self.schema, self.table)

    @property
    def name(self) -> str:
        """Schema and table as one string."""
        return self.full_name.text

    def column(self, name: str) -> Column | None:
        """Find a column by its name."""
        return next((c for c in self.columns if c.name == name), None)


def parse_relation(value: bytes) -> RelationShape:
    """
    Read one record of the relations topic.

    Raises:
        MalformedRelationError: The value is not a shape.
    """
    try:
        document: dict[str, Any] = orjson.loads(value)
        return RelationShape(
            schema=document["schema"],
            table=document["table"],
            columns=tuple(_column(entry) for entry in document["columns"]),
            key=tuple(document["key"]),
            position=document["position"],
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        message = f"a record of the relations topic is not a table's shape: {error}"
        raise MalformedRelationError(message) from error


def _column(entry: dict[str, Any]) -> Column:
    return Column(
        name=entry["name"],
        type=entry["type"],
        typmod=entry["typmod"],
        nullable=entry["nullable"],
        is_object=_is_object(entry),
        source_name=entry.get("source_name", ""),
    )


def _is_object(kind: dict[str, Any]) -> bool:
    inner = kind.get("element") or kind.get("base")
    return "fields" in kind or (inner is not None and _is_object(inner))
