"""
Build the statements that write a batch, guarded by position.

They write to a branch that begins at a known commit. At the end, the main branch is
fast-forwarded to it, which fails if another writer has committed to the main branch.

The batch is a view ``s`` with the table's columns; if it has partial rows, it also has
``_kept``: the columns whose stored value is kept. A batch must have each key only once;
otherwise the engine refuses it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from towpath.sinks.targets.warehouse.schema import (
    IS_DELETED,
    KEPT,
    POSITION,
    ROW_NUMBER,
    LakeName,
    LakeTable,
    literal,
    quoted,
)


def upsert(
    table: LakeTable,
    view: str,
    kept: Iterable[str] = (),
    span: tuple[int, int] | None = None,
) -> str:
    """
    Return the statement that writes each row, unless its key has a newer one.

    Args:
        table: The table.
        view: The batch.
        kept: Columns that at least one row of the batch leaves as they are.
        span: The smallest and the largest value of the key's first column in the batch:
            only files that overlap this span are searched. ``None`` searches all files.
    """
    within = ""
    if span is not None:
        first = f"t.{quoted(table.key[0])}"
        within = f"\n  AND {first} >= {span[0]} AND {first} <= {span[1]}"
    names = [c.name for c in table.columns]
    some_kept = set(kept)
    updates = ",\n  ".join(f"t.{quoted(n)} = {_value(n, some_kept)}" for n in names)
    position = quoted(POSITION)
    return (
        f"MERGE INTO {table.branch_sql} t USING {quoted(view)} s"
        f" ON {_same_key(table)}{within}\n"
        f"WHEN MATCHED AND s.{position} >= t.{position} THEN UPDATE SET\n  {updates}\n"
        f"{_insert(names)}"
    )


def insert_new(
    table: LakeTable, view: str, occurred_between: tuple[str, str] | None
) -> str:
    """
    Return the statement that writes the events that the log does not have, by id.

    Args:
        table: The log.
        view: The batch, each id once.
        occurred_between: The earliest and the latest time of the batch's events: a
            repeated event has the same time, so only files that overlap this span are
            searched. ``None`` searches all files.
    """
    span = ""
    if occurred_between is not None:
        earliest, latest = occurred_between
        span = (
            f"\n  AND t.`occurred_at` >= timestamp '{earliest}'"
            f" AND t.`occurred_at` <= timestamp '{latest}'"
        )
    names = [c.name for c in table.columns]
    return (
        f"MERGE INTO {table.branch_sql} t USING {quoted(view)} s"
        f" ON {_same_key(table)}{span}\n{_insert(names)}"
    )


class Newest(NamedTuple):
    """
    Selects the rows that a batch keeps from those that tasks have encoded.

    Attributes:
        position: The column of their positions.
        is_folded: Whether each key occurs only once.
        floor: Rows below it are dropped.
    """

    position: str
    is_folded: bool
    floor: str | None


def batch_view(table: LakeTable, view: str, encoded: str, newest: Newest) -> str:
    """
    Return the statement that creates a view of the newest row of each key.

    Args:
        table: The table of the rows.
        view: The name of the new view, which only this session sees.
        encoded: The name of the view of the rows, which all sessions see.
        newest: The rows to keep.
    """
    source, position = f"global_temp.{quoted(encoded)}", quoted(newest.position)
    conditions = []
    if not newest.is_folded:
        key = ", ".join(quoted(name) for name in table.key)
        number = f"row_number() OVER (PARTITION BY {key} ORDER BY {position} DESC)"
        number = f"{number} AS {quoted(ROW_NUMBER)}"
        source = f"(SELECT *, {number} FROM {source})"  # noqa: S608 - quoted
        conditions.append(f"{quoted(ROW_NUMBER)} = 1")
    if newest.floor is not None:
        conditions.append(f"{position} >= {literal(newest.floor)}")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    select = f"SELECT * FROM {source}{where}"  # noqa: S608 - quoted
    return f"CREATE OR REPLACE TEMPORARY VIEW {quoted(view)} AS {select}"


def sweep(name: LakeName, floor: str) -> str:
    """Return the statement that deletes all rows below a floor, even tombstones."""
    where = f"{quoted(POSITION)} < {literal(floor)}"
    return f"DELETE FROM {name.sql} WHERE {where}"  # noqa: S608 - quoted


def erase(table: LakeTable, keys: Iterable[Sequence[str]]) -> str:
    """Return the statement that deletes rows by key; a key is given as texts."""
    types = {column.name: column.type for column in table.columns}
    each = (
        " AND ".join(
            f"{quoted(name)} = {_typed(types[name].ddl, text)}"
            for name, text in zip(table.key, key, strict=True)
        )
        for key in keys
    )
    where = " OR ".join(f"({one})" for one in each)
    return f"DELETE FROM {table.name.sql} WHERE {where}"  # noqa: S608 - quoted


def _typed(ddl: str, text: str) -> str:
    if ddl == "binary":
        return f"unbase64({literal(text)})"
    return f"CAST({literal(text)} AS {ddl})"


def purge(name: LakeName, safe: str) -> str:
    """Return the statement that deletes the tombstones below a position."""
    where = f"{quoted(IS_DELETED)} AND {quoted(POSITION)} < {literal(safe)}"
    return f"DELETE FROM {name.sql} WHERE {where}"  # noqa: S608 - quoted


def stored_positions(table: LakeTable, view: str) -> str:
    """Return the query for the stored positions of a batch's keys, by row number."""
    number = quoted(ROW_NUMBER)
    return (
        f"SELECT s.{number}, t.{quoted(POSITION)}, t.{quoted(IS_DELETED)}\n"
        f"FROM {table.name.sql} t JOIN {quoted(view)} s ON {_same_key(table)}"
    )


def first_commit(name: LakeName) -> str:
    """Return the statement that makes an empty commit, as the start of a branch."""
    return f"INSERT INTO {name.sql} SELECT * FROM {name.sql} WHERE false"  # noqa: S608 - quoted


def drop_branch(name: LakeName, branch: str) -> str:
    """
    Return the statement that drops a branch.

    The files that only the branch refers to can then expire.
    """
    return f"ALTER TABLE {name.sql} DROP BRANCH IF EXISTS {quoted(branch)}"


def commits(name: LakeName) -> str:
    """Return the query for all remaining commits, with their summaries and parents."""
    columns = "snapshot_id, parent_id, operation, summary"
    return f"SELECT {columns} FROM {name.sql}.snapshots"  # noqa: S608 - quoted


def _same_key(table: LakeTable) -> str:
    return " AND ".join(f"t.{quoted(n)} = s.{quoted(n)}" for n in table.key)


def _insert(names: list[str]) -> str:
    columns = ", ".join(quoted(n) for n in names)
    values = ", ".join(f"s.{quoted(n)}" for n in names)
    return f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"  # noqa: S608 - quoted


def _value(name: str, kept: set[str]) -> str:
    column = quoted(name)
    if name not in kept:
        return f"s.{column}"
    return (
        f"CASE WHEN array_contains(s.{quoted(KEPT)}, {literal(name)})"
        f" THEN t.{column} ELSE s.{column} END"
    )
