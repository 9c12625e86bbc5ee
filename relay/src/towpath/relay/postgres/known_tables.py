"""
Which table stood behind each captured name, stored in ``towpath.captured``.

A dropped or renamed table leaves no trace in the log. The relay stores the oid of each
captured name, and compares it with the catalog at each look; the stored rows survive a
restart, so that a table that was made again while the relay was down is recognised.

==============  ======================================================================
``DROPPED``     the name has no table any more
``RENAMED``     the same, and the table has another name or schema by now
``RECREATED``   the name belongs to another table
==============  ======================================================================

In a new lineage the oids may all be others, as in a restored dump. Then they are stored
again and no table counts as made again: the plan of the gap reads all tables.

The columns of each table's key are stored too (``key_changes``).
"""

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.source_facts import ListedTable
from towpath.relay.postgres.stored_keys import read_table_keys
from towpath.relay.routing.table_event import TABLE_EVENT_PREFIX
from towpath.schemas.table_name import TableName
from towpath.settings import OnDrop, Settings

_LOG = structlog.get_logger("towpath.relay.guardian")

_KEPT: Final = (
    "topic and sinks keep the rows that were captured under this name; set on_drop = "
    '"truncate" in [[source]] to remove them, or ask for a snapshot with a sweep once '
    "there is a table of this name"
)
_EMPTIED: Final = "none is needed: topic and sinks are told that all its rows are gone"
_SWEPT: Final = "none is needed: the new table's snapshot removes the old rows"


class Event(enum.StrEnum):
    """What became of the table of a captured name."""

    DROPPED = "DROPPED"
    RENAMED = "RENAMED"
    RECREATED = "RECREATED"


class KnownTable(NamedTuple):
    """
    A captured name, the table that had it last, and whether that is gone.

    ``key``: the columns of the keys of its rows; None: an older release stored it.
    """

    schema: str
    table: str
    oid: int
    lineage: int
    is_gone: bool
    key: Sequence[str] | None = None

    @property
    def name(self) -> str:
        """The name, as ``schema.table``."""
        return TableName(self.schema, self.table).text


class Change(NamedTuple):
    """What became of one captured name; ``now`` is the table that has it by now."""

    known: KnownTable
    event: Event
    now: ListedTable | None = None
    renamed_to: str | None = None


def changes(
    known: Iterable[KnownTable],
    listed: Sequence[ListedTable],
    lineage: int,
    on_drop: OnDrop = OnDrop.KEEP,
) -> list[Change]:
    """
    Return which captured names do not have their table any more.

    Names whose rows were kept until now are among them, if ``on_drop`` empties them.
    """
    by_name = {each.name: each for each in listed}
    by_oid = {each.oid: each.name for each in listed}
    found = []
    for each in known:
        now = by_name.get(each.name)
        if now is None:
            if not each.is_gone or on_drop is OnDrop.TRUNCATE:
                renamed_to = by_oid.get(each.oid)
                event = Event.DROPPED if renamed_to is None else Event.RENAMED
                found.append(Change(each, event, None, renamed_to))
        elif now.is_published if each.is_gone else _is_another(now, each, lineage):
            found.append(Change(each, Event.RECREATED, now, by_oid.get(each.oid)))
    return found


def _is_another(now: ListedTable, known: KnownTable, lineage: int) -> bool:
    return now.oid != known.oid and known.lineage == lineage


class KnownTables:
    """The stored rows of one relay."""

    def __init__(self, settings: Settings, lineage: int) -> None:
        """
        Prepare; nothing is asked yet.

        Args:
            settings: Names the relay, by its slot.
            lineage: The number of the lineage that is followed.
        """
        self.lineage = lineage
        self._relay = settings.database.slot
        self._on_drop = settings.database.on_drop
        self._is_made = False

    def read(self, connection: Connection) -> dict[str, KnownTable]:
        """
        Return what is stored, by name; what an older release lacks is added.

        Raises:
            psycopg.Error: The connection is gone, or the role may not create it.
        """
        if not self._is_made:
            missing = connection.execute(query("read_whether_captured_is_outdated"))
            if missing.fetchone() == (True,):
                connection.execute(query("create_captured_table"))
            self._is_made = True
        rows = connection.execute(query("read_known_tables"), {"relay": self._relay})
        found = (KnownTable(*row) for row in rows)
        return {each.name: each for each in found}

    def store(self, connection: Connection, oids: Iterable[int]) -> None:
        """Store tables under the names that they have now."""
        keys = read_table_keys(connection, list(oids))
        if not keys:
            return
        wanted = {
            "relay": self._relay,
            "oids": [each.oid for each in keys],
            "keys": [json.dumps(each.key) for each in keys],
            "lineage": self.lineage,
        }
        connection.execute(query("store_known_tables"), wanted)

    def store_first_keys(self, connection: Connection) -> None:
        """Store the keys of tables that an older release has captured."""
        known = self.read(connection).values()
        unknown = [each.oid for each in known if each.key is None]
        keys = read_table_keys(connection, unknown)
        if keys:
            wanted = {
                "relay": self._relay,
                "oids": [each.oid for each in keys],
                "keys": [json.dumps(each.key) for each in keys],
            }
            connection.execute(query("store_first_keys"), wanted)

    def store_changed_key(
        self, connection: Connection, known: KnownTable, key: Sequence[str]
    ) -> None:
        """Store another key of a table, and which one it had."""
        names = self._names(known)
        changed = {**names, "oid": known.oid, "key": json.dumps(key)}
        connection.execute(query("store_changed_key"), changed)

    def forget(self, connection: Connection, known: KnownTable) -> None:
        """Forget a name: it is not captured any more, or its rows are gone."""
        connection.execute(query("forget_known_table"), self._names(known))

    def outdated(
        self, known: Iterable[KnownTable], listed: Sequence[ListedTable]
    ) -> list[int]:
        """Return the tables of names that another lineage has stored."""
        by_name = {each.name: each.oid for each in listed}
        old = [each.name for each in known if each.lineage != self.lineage]
        return [by_name[name] for name in old if name in by_name]

    def publish(
        self, connection: Connection, change: Change, *, is_filled: bool
    ) -> None:
        """
        Store and publish what became of a name. Call it inside a transaction.

        The event goes through the log, so that it stands behind every change of the
        table that is gone.

        Args:
            connection: Where to.
            change: What became of the name.
            is_filled: A snapshot reads the table that has the name now, and sweeps.
        """
        known, empties = change.known, self._on_drop is OnDrop.TRUNCATE
        if empties:
            self._write(connection, change, remedy=_EMPTIED)
            self.forget(connection, known)
        elif not known.is_gone:
            is_swept = change.now is not None and is_filled
            remedy = _SWEPT if is_swept else _KEPT
            self._write(connection, change, remedy=remedy)
            connection.execute(query("mark_table_gone"), self._names(known))

    def empty(
        self, connection: Connection, known: KnownTable, now: ListedTable
    ) -> None:
        """Publish that all former rows of a name are gone: no snapshot sweeps them."""
        change = Change(known, Event.RECREATED, now)
        if self._on_drop is OnDrop.KEEP:
            self._write(connection, change, remedy=_EMPTIED)

    def _write(self, connection: Connection, change: Change, *, remedy: str) -> None:
        """Write an event into the database's log, and a record of it into our own."""
        known = change.known
        content = {
            "relay": self._relay,
            "event": change.event,
            "schema": known.schema,
            "table": known.table,
            "oid": known.oid,
            "renamed_to": change.renamed_to,
            "on_drop": self._on_drop,
            "empties": remedy == _EMPTIED,
            "is_swept": remedy == _SWEPT,
        }
        message = {"prefix": TABLE_EVENT_PREFIX, "content": json.dumps(content)}
        connection.execute(query("write_table_event"), message)
        _LOG.warning(
            f"table {change.event.lower()}",
            table=known.name,
            renamed_to=change.renamed_to,
            on_drop=str(self._on_drop),
            remedy=remedy,
        )

    def _names(self, known: KnownTable) -> Mapping[str, str]:
        return {
            "relay": self._relay,
            "schema_name": known.schema,
            "table_name": known.table,
        }
