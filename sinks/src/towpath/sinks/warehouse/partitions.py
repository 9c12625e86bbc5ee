"""
How a table is split into partitions: the clauses, and what a change of them takes.

Pure. A change holds for what is written from then on; files that are there keep their
split until they are compacted.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from towpath.settings import PartitionField
from towpath.sinks.warehouse.errors import PartitionFieldError
from towpath.sinks.warehouse.tables import LakeTable, quoted

_TIMES: Final = ("timestamp", "timestamp_ntz")
_DATES: Final = ("date", *_TIMES)
_FLOATS: Final = ("float", "double")

# By what a type may be split; a type that is not named here may be by all of them.
_TAKES: Final[Mapping[str, tuple[str, ...]]] = {
    "years": _DATES,
    "months": _DATES,
    "days": _DATES,
    "hours": _TIMES,
    "truncate": ("int", "bigint", "decimal", "string", "binary"),
}


def clause(field: PartitionField) -> str:
    """Write one partition field as a statement has it."""
    column = quoted(field.column)
    if field.transform == "identity":
        return column
    if field.width is None:
        return f"{field.transform}({column})"
    return f"{field.transform}({field.width}, {column})"


def partitioned_by(table: LakeTable) -> str:
    """
    Return the clause that splits a new table; nothing if it is not to be split.

    Raises:
        PartitionFieldError: A column is missing, or its type cannot be split so.
    """
    if not table.partition:
        return ""
    check(table)
    return f"PARTITIONED BY ({', '.join(clause(f) for f in table.partition)})\n"


def repartition(table: LakeTable, existing: Iterable[PartitionField]) -> list[str]:
    """
    Return the statements that split an existing table as it is wanted.

    Raises:
        PartitionFieldError: A column is missing, or its type cannot be split so.
    """
    found = set(existing)
    alter = f"ALTER TABLE {table.name.sql}"
    gone = [f for f in found if f not in table.partition]
    new = [f for f in table.partition if f not in found]
    if new:
        check(table)
    return [
        *(f"{alter} DROP PARTITION FIELD {clause(f)}" for f in sorted(gone)),
        *(f"{alter} ADD PARTITION FIELD {clause(f)}" for f in new),
    ]


def check(table: LakeTable) -> None:
    """
    See that each partition field has its column, of a type that can be split so.

    Raises:
        PartitionFieldError: One has not.
    """
    types = {c.name: c.type.ddl for c in (*table.columns, *table.retained)}
    for field in table.partition:
        name = f"{table.name.namespace}.{table.name.table}"
        found = types.get(field.column)
        if found is None:
            message = f"{name}: no column {field.column} to be split by"
            raise PartitionFieldError(message)
        if not _takes(field.transform, found.partition("(")[0]):
            message = f"{name}: {field.column} is {found}, not for {field.transform}"
            raise PartitionFieldError(message)


def _takes(transform: str, kind: str) -> bool:
    if transform in _TAKES:
        return kind in _TAKES[transform]
    # Nothing that rounds decides where a row stands.
    return kind not in _FLOATS and (transform, kind) != ("bucket", "boolean")
