"""What the relay asks the catalog: shapes, the slot, and who holds it."""

from collections.abc import Sequence
from typing import NamedTuple

from towpath.relay.postgres.connect import Connection, translated
from towpath.relay.postgres.queries import query
from towpath.relay.routing.relations import CatalogFacts


class SlotFacts(NamedTuple):
    """What the server tells of a slot."""

    is_active: bool
    holder_pid: int | None
    confirmed_lsn: int
    retained_bytes: int
    wal_status: str | None


class PostgresCatalog:
    """Reads the catalog over a connection of its own."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def describe(self, table_oid: int, type_oids: Sequence[int]) -> CatalogFacts:
        """
        Return a table's key and its types' names.

        Raises:
            SourceUnavailableError: The connection is gone.
        """
        with translated("reading the catalog"):
            execute = self._connection.execute
            keys = execute(query("read_key_columns"), {"oid": table_oid}).fetchall()
            types = execute(
                query("read_type_names"), {"oids": list(type_oids)}
            ).fetchall()
            required = execute(
                query("read_required_columns"), {"oid": table_oid}
            ).fetchall()
        return CatalogFacts(
            key_names=tuple(name for (name,) in keys),
            type_names={int(oid): str(name) for oid, name in types},
            required_names=frozenset(name for (name,) in required),
        )

    def slot(self, name: str) -> SlotFacts | None:
        """
        Return what the server tells of a slot; None if there is none.

        Raises:
            SourceUnavailableError: The connection is gone.
        """
        with translated("reading the slot"):
            row = self._connection.execute(
                query("read_slot"), {"slot": name}
            ).fetchone()
        return None if row is None else SlotFacts(*row)

    def holder(self, slot: str) -> str:
        """
        Describe who holds a slot, for people.

        Raises:
            SourceUnavailableError: The connection is gone.
        """
        with translated("reading who holds the slot"):
            row = self._connection.execute(
                query("read_slot_holder"), {"slot": slot}
            ).fetchone()
        if row is None:
            return "nobody, by now"
        pid, application, address = row
        return f"process {pid} of the server, {application or 'unnamed'} at {address}"
