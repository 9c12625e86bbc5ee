"""
Makes the schemas of a table's keys and values from its columns, as Kafka Connect does.

=================================  ==================================================
``<prefix>.<schema>.<table>.Key``  the key's columns, in key order
``... .Value``                     ``before`` and ``after``
``... .Envelope``                  ``before, after, source, op, ts_*, transaction``
=================================  ==================================================

Names and fields are Debezium's; the additional fields ``commit_lsn``, ``origin`` and
``origin_lsn`` of ``source`` are optional. Outside the key, every column may be null,
even with NOT NULL: a delete has only its key, an update lacks unchanged TOASTed values,
and some values cannot be represented. So adding or removing a column, or changing NOT
NULL, breaks no reader. Column defaults are omitted: Kafka Connect would substitute them
for NULL.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from towpath.relay.encode.codecs.codec import TableNames
from towpath.relay.encode.types.form import Form, Schema
from towpath.relay.errors import NameCollisionError

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_]")

STRING: Final = Schema("string")
INT64: Final = Schema("int64")
MAYBE_STRING: Final = STRING.optional()
MAYBE_INT64: Final = INT64.optional()

_SNAPSHOT: Final = Schema(
    "string",
    name="io.debezium.data.Enum",
    version=1,
    parameters=MappingProxyType(
        {
            "allowed": "true,first,first_in_data_collection,last_in_data_collection,"
            "last,false,incremental"
        }
    ),
    is_optional=True,
    default="false",
)

SOURCE: Final = Schema(
    "struct",
    name="io.debezium.connector.postgresql.Source",
    version=1,
    fields=(
        ("version", STRING),
        ("connector", STRING),
        ("name", STRING),
        ("ts_ms", INT64),
        ("snapshot", _SNAPSHOT),
        ("ts_us", MAYBE_INT64),
        ("ts_ns", MAYBE_INT64),
        ("db", STRING),
        ("schema", STRING),
        ("table", STRING),
        ("txId", MAYBE_INT64),
        ("lsn", MAYBE_INT64),
        ("commit_lsn", MAYBE_INT64),
        ("xmin", MAYBE_INT64),
        ("origin", MAYBE_STRING),
        ("origin_lsn", MAYBE_INT64),
        ("sequence", MAYBE_STRING),
    ),
)

TRANSACTION: Final = Schema(
    "struct",
    name="event.block",
    version=1,
    is_optional=True,
    fields=(
        ("id", STRING),
        ("total_order", INT64),
        ("data_collection_order", INT64),
    ),
)

ENVELOPE_VERSION: Final = 2


class Field(NamedTuple):
    """
    A column in records.

    Attributes:
        at: Its index in the rows.
        name: Its name in records.
        form: The form of its values.
        is_nullable: Whether it may be NULL.
    """

    at: int
    name: str
    form: Form
    is_nullable: bool


def key_schema(names: TableNames, key: Sequence[Field]) -> Schema:
    """Return the schema of a table's keys; a nullable column's field is optional."""
    return Schema(
        "struct",
        name=f"{_full(names)}.Key",
        fields=tuple((field.name, _schema_of(field)) for field in key),
    )


def envelope_schema(
    names: TableNames, key: Sequence[Field], columns: Sequence[Field]
) -> Schema:
    """Return the schema of a table's envelopes."""
    row = replace(row_schema(names, key, columns), is_optional=True)
    return Schema(
        "struct",
        name=f"{_full(names)}.Envelope",
        version=ENVELOPE_VERSION,
        fields=(
            ("before", row),
            ("after", row),
            ("source", SOURCE),
            ("op", STRING),
            ("ts_ms", MAYBE_INT64),
            ("ts_us", MAYBE_INT64),
            ("ts_ns", MAYBE_INT64),
            ("transaction", TRANSACTION),
        ),
    )


def row_schema(
    names: TableNames, key: Sequence[Field], columns: Sequence[Field]
) -> Schema:
    """Return the schema of a table's rows; only non-null key columns are required."""
    needed = {field.at for field in key if not field.is_nullable}
    return Schema(
        "struct",
        name=f"{_full(names)}.Value",
        fields=tuple(
            (
                field.name,
                _plain(field) if field.at in needed else _plain(field).optional(),
            )
            for field in columns
        ),
    )


def items_of(schema: Schema) -> Schema:
    """
    Return the schema of an array's elements, or of a map's values.

    Raises:
        ValueError: The schema is neither an array nor a map.
    """
    if schema.items is None:
        reason = f"a schema of kind {schema.kind} has no item schema"
        raise ValueError(reason)
    return schema.items


def sanitized(name: str) -> str:
    """Return a name valid in Avro: letters, digits and underscores; no digit first."""
    safe = _UNSAFE.sub("_", name)
    return f"_{safe}" if not safe or safe[0].isdigit() else safe


def sanitized_path(name: str) -> str:
    """Return a dotted name with each part sanitized for Avro."""
    return ".".join(sanitized(part) for part in name.split("."))


def sanitized_all(names: Iterable[str], of: str) -> Mapping[str, str]:
    """
    Return the sanitized form of each name.

    Raises:
        NameCollisionError: Two names become the same.
    """
    taken: dict[str, str] = {}
    for name in names:
        other = taken.setdefault(sanitized(name), name)
        if other != name:
            reason = (
                f"{other!r} and {name!r} of {of} both become {sanitized(name)!r} "
                "when made valid for Avro"
            )
            raise NameCollisionError(reason)
    return {name: safe for safe, name in taken.items()}


def _full(names: TableNames) -> str:
    return f"{names.prefix}.{names.schema}.{names.table}"


def _schema_of(field: Field) -> Schema:
    schema = _plain(field)
    return schema.optional() if field.is_nullable else schema


def _plain(field: Field) -> Schema:
    """Return a column's schema without its nullability and default."""
    return replace(field.form.schema, is_optional=False, default=None)
