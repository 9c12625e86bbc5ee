"""
Make a table exist and fit, and look at what its newest commit did.

Everything is safe to repeat, and to be interrupted at any statement.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from towpath.settings import PartitionField, WarehouseOptions
from towpath.settings.sink import parse_partition
from towpath.sinks.ports import SqlSession
from towpath.sinks.warehouse.ddl import (
    FLOOR_PROPERTY,
    ID_PROPERTY,
    KEY_PROPERTY,
    creation,
    evolution,
    id_property,
    identifier_fields,
    key_property,
    settled,
    widens,
)
from towpath.sinks.warehouse.errors import ForeignTableError
from towpath.sinks.warehouse.merge import commits, newest_commit
from towpath.sinks.warehouse.partitions import repartition
from towpath.sinks.warehouse.tables import LakeColumn, LakeName, LakeTable, type_of

# By the format: files were put together, or rows were only taken away.
_ADDS_NOTHING: Final = ("replace", "delete")


class Commit(NamedTuple):
    """One commit of a table, with the engine's own summary of it."""

    snapshot_id: int
    summary: dict[str, str]

    @property
    def added_rows(self) -> int:
        """How many rows it wrote, new ones and new versions of old ones."""
        return int(self.summary.get("added-records", 0))

    @property
    def is_empty(self) -> bool:
        """Whether the table has no rows at all, not even replaced ones."""
        return self.summary.get("total-records") == "0"


class Found(NamedTuple):
    """
    A table as it stands: its columns and their types, its split, its properties.

    Attributes:
        is_new: Whether it was made just now.
    """

    columns: dict[str, str]
    partition: tuple[PartitionField, ...]
    properties: dict[str, str]
    is_new: bool = False

    @property
    def floor(self) -> str | None:
        """The floor that the table remembers, if it has one."""
        return self.properties.get(FLOOR_PROPERTY)

    @property
    def id(self) -> str:
        """What tells it from another table of its name."""
        return self.properties[ID_PROPERTY]


def ensure(
    session: SqlSession,
    table: LakeTable,
    options: WarehouseOptions,
) -> tuple[LakeTable, Found]:
    """
    Create the table, or add to it what it lacks.

    Args:
        session: The engine.
        table: What is wanted.
        options: Its partitions and properties.

    Returns:
        The table with the columns that it has beside the wanted ones and the types that
        are wider than wanted, and what was found.

    Raises:
        ForeignTableError: It exists with another key or with columns that do not fit.
        PartitionFieldError: It cannot be split as it is configured.
    """
    new_id = uuid.uuid4().hex
    for statement in creation(table, options, new_id):
        session.sql(statement)
    found = look(session, table.name)
    _check_key(table, found)
    found = found._replace(is_new=found.properties.get(ID_PROPERTY) == new_id)
    if ID_PROPERTY not in found.properties:
        session.sql(id_property(table.name, new_id))
        found = found._replace(properties={**found.properties, ID_PROPERTY: new_id})
    whole = replace(
        table,
        columns=tuple(_as_wide(column, found) for column in table.columns),
        retained=_retained(table, found),
    )
    statements = [
        *evolution(table, found.columns),
        *repartition(whole, found.partition),
        *settled(table, options, found.properties),
    ]
    session.sql(identifier_fields(table))
    for statement in statements:
        session.sql(statement)
    return whole, found


def look(session: SqlSession, name: LakeName) -> Found:
    """Read how a table stands."""
    described = session.sql(f"DESCRIBE TABLE {name.sql}").to_pylist()
    pairs = [(row["col_name"], row["data_type"]) for row in described]
    ends = [n for n, (name, _) in enumerate(pairs) if not name or name[0] == "#"]
    end = ends[0] if ends else len(pairs)
    stored = session.sql(f"SHOW TBLPROPERTIES {name.sql}").to_pylist()
    return Found(
        dict(pairs[:end]),
        _partition(pairs[end:]),
        {row["key"]: row["value"] for row in stored},
    )


def newest(session: SqlSession, name: LakeName, branch: str = "main") -> Commit | None:
    """Return a branch's newest commit; a table never written to has none."""
    rows = session.sql(newest_commit(name, branch)).to_pylist()
    if not rows:
        return None
    return Commit(rows[0]["snapshot_id"], dict(rows[0]["summary"]))


def adds_no_key(
    session: SqlSession, name: LakeName, since: Commit | None, until: Commit
) -> bool:
    """
    Tell whether no commit behind one has added a key, up to a newer one and with it.

    Each is looked at, from the newer one back. Where a commit is missing on the way,
    forgotten as an old version or put aside, it may have added any.
    """
    told = session.sql(commits(name)).to_pylist()
    left = {row["snapshot_id"]: row for row in told}
    end = None if since is None else since.snapshot_id
    at: int | None = until.snapshot_id
    while at != end:
        row = None if at is None else left.get(at)
        if row is None or _may_add(row):
            return False
        at = row["parent_id"]
    return True


def _may_add(row: Mapping[str, Any]) -> bool:
    """Tell whether a commit may have added rows."""
    if row["operation"] in _ADDS_NOTHING:
        return False
    # A DELETE that finds no row may call itself an overwrite; who counts the files
    # that are there has counted those that he added.
    summary = dict(row["summary"] or ())
    return "added-data-files" in summary or "total-data-files" not in summary


def _partition(pairs: Sequence[tuple[str, str]]) -> tuple[PartitionField, ...]:
    """
    Read the partition fields behind the columns of a description.

    Bare columns alone are listed like columns; as soon as there is a transform, all
    stand as ``Part 0``, ``Part 1``.
    """
    fields = []
    inside = False
    for name, kind in pairs:
        if name.startswith("# Partition"):
            inside = True
        elif name.startswith("# col_name"):
            continue
        elif not name or name[0] == "#":
            inside = False
        elif inside:
            text = kind if name.startswith("Part ") else name
            fields.append(parse_partition(text.replace("`", "")))
    return tuple(fields)


def _retained(table: LakeTable, found: Found) -> tuple[LakeColumn, ...]:
    wanted = {column.name for column in table.columns}
    kept = [
        (name, type_of(ddl))
        for name, ddl in found.columns.items()
        if name not in wanted
    ]
    return tuple(LakeColumn(name, kind) for name, kind in kept if kind is not None)


def _as_wide(column: LakeColumn, found: Found) -> LakeColumn:
    """Keep a wider type: records from before it was narrowed can come again."""
    ddl = found.columns.get(column.name)
    kind = None if ddl is None else type_of(ddl)
    if ddl is None or kind is None or not widens(column.type.ddl, ddl):
        return column
    return replace(column, type=kind)


def _check_key(table: LakeTable, found: Found) -> None:
    stored = found.properties.get(KEY_PROPERTY)
    if stored != key_property(table):
        name = f"{table.name.namespace}.{table.name.table}"
        message = f"{name}: its key is {stored}, the source's is {key_property(table)}"
        raise ForeignTableError(message)
