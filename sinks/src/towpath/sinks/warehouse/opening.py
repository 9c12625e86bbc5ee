"""
Make a table exist and fit, and look at what its newest commit did.

Everything is safe to repeat, and to be interrupted at any statement.
"""

from typing import NamedTuple

from towpath.sinks.ports import SqlSession
from towpath.sinks.warehouse.ddl import (
    FLOOR_PROPERTY,
    KEY_PROPERTY,
    creation,
    evolution,
    identifier_fields,
    key_property,
)
from towpath.sinks.warehouse.errors import ForeignTableError
from towpath.sinks.warehouse.merge import newest_commit
from towpath.sinks.warehouse.tables import LakeName, LakeTable, literal


class Commit(NamedTuple):
    """One commit of a table, with the engine's own summary of it."""

    snapshot_id: int
    summary: dict[str, str]

    @property
    def added_rows(self) -> int:
        """How many rows it wrote, new ones and new versions of old ones."""
        return int(self.summary.get("added-records", 0))


def ensure(session: SqlSession, table: LakeTable) -> None:
    """
    Create the table, or add to it what it lacks.

    Raises:
        ForeignTableError: It exists with another key or with columns that do not fit.
    """
    for statement in creation(table):
        session.sql(statement)
    _check_key(session, table)
    session.sql(identifier_fields(table))
    for statement in evolution(table, _columns(session, table.name)):
        session.sql(statement)


def newest(session: SqlSession, name: LakeName) -> Commit | None:
    """Return the table's newest commit; a table never written to has none."""
    rows = session.sql(newest_commit(name)).to_pylist()
    if not rows:
        return None
    return Commit(rows[0]["snapshot_id"], dict(rows[0]["summary"]))


def remembered_floor(session: SqlSession, table: LakeTable) -> str | None:
    """Return the floor that a table remembers, if it has one."""
    statement = f"SHOW TBLPROPERTIES {table.name.sql}"
    found = session.sql(statement).to_pylist()
    values: dict[str, str] = {row["key"]: row["value"] for row in found}
    return values.get(FLOOR_PROPERTY)


def _columns(session: SqlSession, name: LakeName) -> dict[str, str]:
    described = session.sql(f"DESCRIBE TABLE {name.sql}").to_pylist()
    columns = {}
    for row in described:
        if not row["col_name"] or row["col_name"].startswith("# "):
            break
        columns[row["col_name"]] = row["data_type"]
    return columns


def _check_key(session: SqlSession, table: LakeTable) -> None:
    statement = f"SHOW TBLPROPERTIES {table.name.sql} ({literal(KEY_PROPERTY)})"
    stored = session.sql(statement).to_pylist()[0]["value"]
    if stored != key_property(table):
        name = f"{table.name.namespace}.{table.name.table}"
        message = f"{name}: its key is {stored}, the source's is {key_property(table)}"
        raise ForeignTableError(message)
