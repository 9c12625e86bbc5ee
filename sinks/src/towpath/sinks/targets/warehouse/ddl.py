"""
Build the statements that create a table and fit it to its source.

Creating and fitting a table are safe to repeat. A table only gains columns and wider
types: columns that the source drops remain.
"""

import json
from collections.abc import Mapping
from typing import Final

from towpath.settings import WarehouseOptions
from towpath.sinks.targets.warehouse.client import CATALOG, ForeignTableError
from towpath.sinks.targets.warehouse.schema import (
    IS_DELETED,
    LakeName,
    LakeTable,
    literal,
    partitioned_by,
    quoted,
)

KEY_PROPERTY: Final = "towpath.key"
FLOOR_PROPERTY: Final = "towpath.floor"
ID_PROPERTY: Final = "towpath.id"

# Merge-on-read writes the changes and a list of the replaced rows, instead of whole
# files. With one such list per partition and commit (not per changed file), a commit
# takes about a second even if keys are spread; compaction removes the lists. There is
# one writer, so snapshot isolation is enough. Old versions are kept to allow time
# travel: at one commit every ten seconds, the metadata, which each commit writes in
# full, stays below half a megabyte with an hour of versions.
PROPERTIES: Final[Mapping[str, str]] = {
    "format-version": "2",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    "write.merge.isolation-level": "snapshot",
    "write.delete.granularity": "partition",
    "write.metadata.delete-after-commit.enabled": "true",
}


def properties_of(table: LakeTable, options: WarehouseOptions) -> dict[str, str]:
    """
    Return the properties that a table should have.

    Rows are shuffled to the task of their partition before they are written, because
    otherwise each task would write a file for each partition.
    """
    mode = "hash" if table.partition else "none"
    return {
        **PROPERTIES,
        "write.distribution-mode": mode,
        "write.merge.distribution-mode": mode,
        "write.metadata.previous-versions-max": str(options.metadata_versions),
        "history.expire.max-snapshot-age-ms": str(options.history_s * 1000),
        "history.expire.min-snapshots-to-keep": str(options.history_versions),
    }


def creation(table: LakeTable, options: WarehouseOptions, id_: str) -> list[str]:
    """
    Return the statements that create a table; safe to repeat.

    Args:
        table: The wanted table.
        options: Its properties.
        id_: The id that distinguishes it from another table with the same name.

    Raises:
        PartitionFieldError: The table cannot be partitioned as configured.
    """
    properties = {
        **properties_of(table, options),
        KEY_PROPERTY: key_property(table),
        ID_PROPERTY: id_,
    }
    listed = ",\n  ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
    columns = ",\n  ".join(c.declaration for c in table.columns)
    head = f"CREATE TABLE IF NOT EXISTS {table.name.sql} (\n  {columns}\n)"
    return [
        f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{quoted(table.name.namespace)}",
        f"{head}\nUSING iceberg\n{partitioned_by(table)}TBLPROPERTIES (\n  {listed}\n)",
    ]


def property_changes(
    table: LakeTable, options: WarehouseOptions, existing: Mapping[str, str]
) -> list[str]:
    """Return the statement that sets the missing and outdated properties, if any."""
    wanted = properties_of(table, options)
    pairs = [
        f"{literal(name)} = {literal(value)}"
        for name, value in wanted.items()
        if existing.get(name) != value
    ]
    if not pairs:
        return []
    return [f"ALTER TABLE {table.name.sql} SET TBLPROPERTIES ({', '.join(pairs)})"]


def identifier_fields(table: LakeTable) -> str:
    """Return the statement that declares a table's key to other engines."""
    fields = ", ".join(quoted(name) for name in table.key)
    return f"ALTER TABLE {table.name.sql} SET IDENTIFIER FIELDS {fields}"


def key_property(table: LakeTable) -> str:
    """Return the key's columns in key order: the format's own list has no order."""
    return json.dumps(table.key, ensure_ascii=False)


def floor_property(name: LakeName, floor: str) -> str:
    """Return the statement that stores a floor in the table."""
    return _property(name, FLOOR_PROPERTY, floor)


def id_property(name: LakeName, id_: str) -> str:
    """Return the statement that gives an id to a table created without one."""
    return _property(name, ID_PROPERTY, id_)


def live_view(table: LakeTable) -> str:
    """Return the statement that creates the view without deleted rows."""
    names = [c.name for c in table.columns if c.name != IS_DELETED]
    listed = ", ".join(quoted(name) for name in names)
    return (
        f"CREATE OR REPLACE VIEW {table.name.live.sql} AS\n"
        f"SELECT {listed} FROM {table.name.sql} WHERE NOT {quoted(IS_DELETED)}"
    )


def evolution(table: LakeTable, existing: Mapping[str, str]) -> list[str]:
    """
    Return the statements that add columns to an existing table and widen its types.

    Columns that the source has dropped remain, as do types that are wider than wanted.

    Args:
        table: The wanted table.
        existing: Column names and types, as the engine describes them.

    Raises:
        ForeignTableError: A column has a type that cannot be widened as wanted, or a
            name that differs from a wanted one only in case.
    """
    statements = []
    spelled = {name.lower(): name for name in existing}
    alter = f"ALTER TABLE {table.name.sql}"
    for column in table.columns:
        found, wanted = existing.get(column.name), column.type.ddl
        name = quoted(column.name)
        other = spelled.get(column.name.lower(), column.name)
        if found is None and other != column.name:
            # The engine treats both as the same column.
            message = (
                f"{table.name.namespace}.{table.name.table}: column {column.name} "
                f"differs only in case from the warehouse's column {other}"
            )
            raise ForeignTableError(message)
        if found is None:
            statements.append(f"{alter} ADD COLUMN {name} {wanted}")
        elif widens(found, wanted):
            statements.append(f"{alter} ALTER COLUMN {name} TYPE {wanted}")
        elif found != wanted and not widens(wanted, found):
            message = (
                f"{table.name.namespace}.{table.name.table}: column {column.name} is "
                f"{found} in the warehouse and should be {wanted}"
            )
            raise ForeignTableError(message)
    return statements


def widens(found: str, wanted: str) -> bool:
    """Return whether a column's type can be widened to another."""
    if (found, wanted) in {("int", "bigint"), ("float", "double")}:
        return True
    narrow, wide = _decimal(found), _decimal(wanted)
    if narrow is None or wide is None:
        return False
    return narrow[0] < wide[0] and narrow[1] == wide[1]


def _property(name: LakeName, key: str, value: str) -> str:
    pair = f"{literal(key)} = {literal(value)}"
    return f"ALTER TABLE {name.sql} SET TBLPROPERTIES ({pair})"


def _decimal(ddl: str) -> tuple[int, int] | None:
    if not ddl.startswith("decimal("):
        return None
    precision, _, scale = ddl.removeprefix("decimal(").removesuffix(")").partition(",")
    return int(precision), int(scale)
