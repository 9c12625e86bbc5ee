"""The catalog's facts about tables, types, keys and the slot."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from towpath.relay.encode.relations import CatalogFacts
from towpath.relay.encode.types.form import TypeFacts, TypeField
from towpath.relay.postgres.connect import Connection, translated_errors
from towpath.relay.postgres.queries import query
from towpath.schemas.table_name import TableName


class SlotFacts(NamedTuple):
    """The server's facts about a slot."""

    is_active: bool
    holder_pid: int | None
    confirmed_lsn: int
    retained_bytes: int
    wal_status: str | None


class PostgresCatalog:
    """Reads the catalog over its own connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def describe(
        self, table_oid: int, name: TableName, type_oids: Sequence[int]
    ) -> CatalogFacts:
        """
        Return a table's keys, NOT NULL columns, and column types, nested ones included.

        For a dropped table, the keys are those of the table that has taken its name, so
        that the rest of its stream keeps the order of the key's columns.

        Raises:
            SourceUnavailableError: The connection is lost.
        """
        with translated_errors("reading the catalog"):
            execute = self._connection.execute
            wanted = {"oid": table_oid, "schema": name.schema, "table": name.table}
            keys = execute(query("read_keys"), wanted).fetchall()
            found = execute(query("read_types"), {"oids": list(type_oids)}).fetchall()
            required = execute(
                query("read_required_columns"), {"oid": table_oid}
            ).fetchall()
        primary, *others = [tuple(names) for (names,) in keys] or [()]
        types = {int(oid): _type(*row) for oid, *row in found}
        return CatalogFacts(
            key_names=primary,
            type_names={oid: facts.full_name for oid, facts in types.items()},
            required_names=frozenset(name for (name,) in required),
            other_keys=tuple(others),
            types=types,
        )

    def log_end(self) -> int:
        """
        Return the LSN of the log's end.

        Raises:
            SourceUnavailableError: The connection is lost.
        """
        with translated_errors("reading the end of the log"):
            row = self._connection.execute(query("read_log_end")).fetchone()
        return int(row[0]) if row else 0

    def slot(self, name: str) -> SlotFacts | None:
        """
        Return facts about a slot; None if there is none.

        Raises:
            SourceUnavailableError: The connection is lost.
        """
        with translated_errors("reading the slot"):
            execute = self._connection.execute
            row = execute(query("read_slot"), {"slot": name}).fetchone()
        return None if row is None else SlotFacts(*row)

    def holder(self, slot: str) -> str:
        """
        Return a readable description of the process that holds a slot.

        Raises:
            SourceUnavailableError: The connection is lost.
        """
        with translated_errors("reading the holder of the slot"):
            execute = self._connection.execute
            row = execute(query("read_slot_holder"), {"slot": slot}).fetchone()
        return "a process that has just ended" if row is None else session_text(*row)


def session_text(
    pid: int,
    application: str | None,
    role: str | None,
    address: str | None,
    since: datetime | None,
) -> str:
    """Describe a session; details of another role's session may be hidden."""
    owner = "" if role is None else f", role {role}"
    session = f"server process {pid} ({application or 'unnamed'}{owner})"
    if since is None:
        return f"{session}; the rest is hidden from this role: grant pg_read_all_stats"
    place = address or "the server itself"
    return f"{session} from {place}, since {since:%Y-%m-%d %H:%M:%S} UTC"


def _type(*row: Any) -> TypeFacts:  # noqa: ANN401 - a row of the driver
    name, full_name, kind, category, element_oid, delimiter, *rest = row
    base_oid, base_typmod, labels, fields = rest
    return TypeFacts(
        name=name,
        full_name=full_name,
        kind=kind,
        category=category,
        element_oid=element_oid,
        delimiter=delimiter,
        base_oid=base_oid,
        base_typmod=base_typmod,
        labels=tuple(labels or ()),
        fields=tuple(TypeField(*field) for field in fields or ()),
    )


class TableKey(NamedTuple):
    """A table and the columns of its key, in key order; empty without a key."""

    oid: int
    name: str
    key: Sequence[str]


def read_table_keys(connection: Connection, oids: Sequence[int]) -> list[TableKey]:
    """
    Return the keys of the tables that still exist.

    Raises:
        psycopg.Error: The connection is lost.
    """
    if not oids:
        return []
    rows = connection.execute(query("read_table_keys"), {"oids": oids}).fetchall()
    return [
        TableKey(oid, TableName(schema, table).text, record_key(identity, keys))
        for oid, schema, table, identity, keys in rows
    ]


def record_key(
    identity: Sequence[str] | None, keys: Sequence[Sequence[str]] | None
) -> Sequence[str]:
    """
    Return the key of a table's records, as ``encode.relations.bind`` chooses it.

    Args:
        identity: The columns of the replica identity; ``None`` if it names no columns.
        keys: The columns of each index that identifies rows, the best first.
    """
    for key in keys or ():
        if not identity or set(key) == set(identity):
            return key
    return identity or ()


def key_columns_text(key: Sequence[str] | None) -> str:
    """Return a key's columns as readable text."""
    return f"({', '.join(key)})" if key else "none"
