"""
Describe tables of the warehouse: their names, columns, types and partitions.

A current-state table has the source's columns and two of its own: ``_position``, which
the guard compares, and ``_is_deleted``, because a deleted row remains as a tombstone
(``_deleted`` is a metadata column of the format itself: a table with this column could
not be read). Its view ``<table>_live`` leaves the tombstones out.

A change of partitions applies to later writes; existing files keep their partitions
until they are compacted.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from towpath.settings import PartitionField
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.errors import KeylessTableError
from towpath.sinks.targets.warehouse.client import (
    CATALOG,
    PartitionFieldError,
    ReservedColumnError,
    WarehouseAddressError,
)

POSITION: Final = "_position"
IS_DELETED: Final = "_is_deleted"
# Columns that only a batch has, in addition to the table's.
KEPT: Final = "_kept"
ROW_NUMBER: Final = "_row"


# The format's metadata columns, our own, and those of a batch.
_RESERVED: Final = frozenset(
    {
        *("_file", "_pos", "_deleted", "_spec_id", "_partition"),
        *("_row_id", "_last_updated_sequence_number"),
        *(POSITION, IS_DELETED, KEPT, ROW_NUMBER),
    }
)

_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")

# The widest decimal of the format; wider numerics are kept as text.
_MAX_PRECISION: Final = 38


class LakeType(NamedTuple):
    """One column type: its name in the writing engine, and its Arrow type."""

    ddl: str
    arrow: pa.DataType


STRING: Final = LakeType("string", pa.string())
BOOLEAN: Final = LakeType("boolean", pa.bool_())
TIMESTAMP: Final = LakeType("timestamp", pa.timestamp("us", tz="UTC"))

_TYPES: Final[Mapping[str, LakeType]] = {
    "smallint": LakeType("int", pa.int32()),
    "integer": LakeType("int", pa.int32()),
    "bigint": LakeType("bigint", pa.int64()),
    "oid": LakeType("bigint", pa.int64()),
    "boolean": BOOLEAN,
    "real": LakeType("float", pa.float32()),
    "double precision": LakeType("double", pa.float64()),
    "date": LakeType("date", pa.date32()),
    "timestamp with time zone": TIMESTAMP,
    "timestamp without time zone": LakeType("timestamp_ntz", pa.timestamp("us")),
    "bytea": LakeType("binary", pa.binary()),
}
# A floating-point value cannot identify a row.
_UNFIT_FOR_KEYS: Final = frozenset({"float", "double"})


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of a warehouse table."""

    name: str
    type: LakeType
    is_key: bool = False

    @property
    def declaration(self) -> str:
        """The column in a statement that creates the table."""
        required = " NOT NULL" if self.is_key else ""
        return f"{quoted(self.name)} {self.type.ddl}{required}"


class LakeName(NamedTuple):
    """A table's name: ``lake.<namespace>.<table>``."""

    namespace: str
    table: str

    @property
    def sql(self) -> str:
        """The table's name in a statement."""
        return f"{CATALOG}.{self.in_catalog}"

    @property
    def in_catalog(self) -> str:
        """The table's name in a call of a catalog procedure."""
        return f"{quoted(self.namespace)}.{quoted(self.table)}"

    @property
    def live(self) -> "LakeName":
        """The name of the table's view without deleted rows."""
        return LakeName(self.namespace, f"{self.table}_live")


@dataclass(frozen=True, slots=True)
class LakeTable:
    """
    A table: its columns in order, its key's columns in key order, and its partitions.

    ``retained`` are columns that the source has dropped and the table still has.
    ``branch`` is the branch that its writer writes to; readers see the main one.
    """

    name: LakeName
    columns: tuple[LakeColumn, ...]
    key: tuple[str, ...]
    partition: tuple[PartitionField, ...] = ()
    retained: tuple[LakeColumn, ...] = ()
    branch: str = "towpath"

    @property
    def branch_sql(self) -> str:
        """The table's name in a statement that writes to the branch."""
        return f"{self.name.sql}.{quoted(f'branch_{self.branch}')}"

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the columns."""
        fields = [
            pa.field(c.name, c.type.arrow, nullable=not c.is_key) for c in self.columns
        ]
        return pa.schema(fields)


def type_of(ddl: str) -> LakeType | None:
    """Return the type with this name in the writing engine."""
    numeric = _DECIMAL.fullmatch(ddl)
    if numeric is not None:
        return _decimal(int(numeric[1]), int(numeric[2]))
    return next((t for t in (STRING, *_TYPES.values()) if t.ddl == ddl), None)


def quoted(identifier: str) -> str:
    """Quote an identifier."""
    return "`" + identifier.replace("`", "``") + "`"


def literal(value: str) -> str:
    """Write a string as an SQL literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def lake_name(route: str) -> LakeName:
    """
    Split a route's name.

    Raises:
        WarehouseAddressError: The name is not ``schema.table``.
    """
    namespace, _, table = route.partition(".")
    if not namespace or not table:
        message = f"the warehouse's route {route!r} is not named schema.table"
        raise WarehouseAddressError(message)
    return LakeName(namespace, table)


def current_state(
    route: str, shape: RelationShape, partition: Iterable[PartitionField] = ()
) -> LakeTable:
    """
    Describe the table that holds the newest row of each key.

    Raises:
        KeylessTableError: The source's table has no primary key.
        ReservedColumnError: A column's name is reserved, or two differ only in case.
        WarehouseAddressError: The route is not named ``schema.table``.
    """
    if not shape.key:
        message = f"{shape.name} has no primary key"
        raise KeylessTableError(message)
    _check_names(shape)
    columns = [
        LakeColumn(
            c.name, _lake_type(c, is_key=c.name in shape.key), c.name in shape.key
        )
        for c in shape.columns
    ]
    return LakeTable(
        lake_name(route),
        (*columns, LakeColumn(POSITION, STRING), LakeColumn(IS_DELETED, BOOLEAN)),
        shape.key,
        tuple(partition),
    )


def event_log(route: str, partition: Iterable[PartitionField] = ()) -> LakeTable:
    """
    Describe the table that holds all events, each id once.

    Raises:
        WarehouseAddressError: The route is not named ``schema.table``.
    """
    names = ("aggregate_type", "aggregate_id", "type", "payload", "headers", "position")
    columns = (
        LakeColumn("id", STRING, is_key=True),
        *(LakeColumn(name, STRING) for name in names),
        LakeColumn("occurred_at", TIMESTAMP),
    )
    return LakeTable(lake_name(route), columns, ("id",), tuple(partition))


def _lake_type(column: Column, *, is_key: bool) -> LakeType:
    if column.type == "numeric":
        return _numeric(column)
    kind = _TYPES.get(column.type, STRING)
    return STRING if is_key and kind.ddl in _UNFIT_FOR_KEYS else kind


def _numeric(column: Column) -> LakeType:
    """Return an exact type for a numeric: a decimal if it is wide enough, else text."""
    if column.precision_and_scale is None:
        return STRING
    precision, scale = column.precision_and_scale
    if precision > _MAX_PRECISION or not 0 <= scale <= precision:
        return STRING
    return _decimal(precision, scale)


def _decimal(precision: int, scale: int) -> LakeType:
    return LakeType(f"decimal({precision},{scale})", pa.decimal128(precision, scale))


def _check_names(shape: RelationShape) -> None:
    seen: set[str] = set()
    for name in (c.name.lower() for c in shape.columns):
        if name in _RESERVED or name in seen:
            why = (
                "differs from another only in case, which the warehouse ignores"
                if name in seen
                else "is reserved in the warehouse"
            )
            message = f"{shape.name}: the column name {name} {why}"
            raise ReservedColumnError(message)
        seen.add(name)


_TIMES: Final = ("timestamp", "timestamp_ntz")
_DATES: Final = ("date", *_TIMES)
_FLOATS: Final = ("float", "double")

# The column types that these transforms accept; for others, see ``_can_partition``.
_PARTITIONABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "years": _DATES,
    "months": _DATES,
    "days": _DATES,
    "hours": _TIMES,
    "truncate": ("int", "bigint", "decimal", "string", "binary"),
}


def partition_clause(field: PartitionField) -> str:
    """Write one partition field in the syntax of a statement."""
    column = quoted(field.column)
    if field.transform == "identity":
        return column
    if field.width is None:
        return f"{field.transform}({column})"
    return f"{field.transform}({field.width}, {column})"


def partitioned_by(table: LakeTable) -> str:
    """
    Return the clause that partitions a new table; empty if it has no partitions.

    Raises:
        PartitionFieldError: A column is missing, or its type is unsuitable.
    """
    if not table.partition:
        return ""
    check(table)
    return (
        f"PARTITIONED BY ({', '.join(partition_clause(f) for f in table.partition)})\n"
    )


def repartition(table: LakeTable, existing: Iterable[PartitionField]) -> list[str]:
    """
    Return the statements that partition an existing table as wanted.

    Raises:
        PartitionFieldError: A column is missing, or its type is unsuitable.
    """
    found = set(existing)
    alter = f"ALTER TABLE {table.name.sql}"
    gone = [f for f in found if f not in table.partition]
    new = [f for f in table.partition if f not in found]
    if new:
        check(table)
    return [
        *(f"{alter} DROP PARTITION FIELD {partition_clause(f)}" for f in sorted(gone)),
        *(f"{alter} ADD PARTITION FIELD {partition_clause(f)}" for f in new),
    ]


def check(table: LakeTable) -> None:
    """
    Check that each partition field has a column of a suitable type.

    Raises:
        PartitionFieldError: A column is missing, or its type is unsuitable.
    """
    types = {c.name: c.type.ddl for c in (*table.columns, *table.retained)}
    for field in table.partition:
        name = f"{table.name.namespace}.{table.name.table}"
        found = types.get(field.column)
        if found is None:
            message = f"{name}: there is no column {field.column} to partition by"
            raise PartitionFieldError(message)
        if not _can_partition(field.transform, found.partition("(")[0]):
            message = (
                f"{name}: {field.transform} cannot partition {field.column}, a {found}"
            )
            raise PartitionFieldError(message)


def _can_partition(transform: str, kind: str) -> bool:
    if transform in _PARTITIONABLE:
        return kind in _PARTITIONABLE[transform]
    # A floating-point value must not choose a partition.
    return kind not in _FLOATS and (transform, kind) != ("bucket", "boolean")
