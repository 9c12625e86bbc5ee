"""
The relays of a database: the table ``towpath.relay``, which ``relay init`` fills.

Signals, snapshots and heartbeats belong to one relay each. Rows of early releases do
not name a relay. ``relay init`` assigns them to the relay that wrote them: a registered
one qualifies if its number is 1, an unregistered one if its slot exists. If the
database has no other slot, either qualifies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from towpath.relay.errors import NotPreparedError
from towpath.relay.postgres.connect import Connection, translated_errors
from towpath.relay.postgres.queries import query
from towpath.relay.snapshot.naming import Registration

RELAY_TABLE: Final = "towpath.relay"
_FIRST: Final = 1


@dataclass(frozen=True, slots=True)
class RelayFacts:
    """
    The registered relays of a database.

    Attributes:
        numbers: The numbers of registered relays, by name.
        with_heartbeat: The numbers of relays that have written a heartbeat.
        has_unassigned: Whether there are rows without a relay.
        other_slots: The number of other slots that use our output plugin.
    """

    numbers: Mapping[str, int] = field(default_factory=dict)
    with_heartbeat: frozenset[int] = frozenset()
    has_unassigned: bool = False
    other_slots: int = 0

    def takes_over(self, name: str, *, has_slot: bool) -> bool:
        """Return whether rows without a relay belong to the named one."""
        if name in self.numbers:
            return self.numbers[name] == _FIRST or not self.other_slots
        return has_slot or not self.other_slots

    def number_of(self, name: str, *, has_slot: bool) -> int:
        """Return a relay's number, or the one that its registration assigns."""
        known = self.numbers.get(name)
        if known is not None:
            return known
        taken = {*self.numbers.values()}
        was_used = self.has_unassigned or _FIRST in self.with_heartbeat
        is_eligible = not was_used or self.takes_over(name, has_slot=has_slot)
        if _FIRST not in taken and is_eligible:
            return _FIRST
        # Above every number with a heartbeat, as those of a removed relay remain.
        return max({_FIRST, *taken, *self.with_heartbeat}) + 1

    def has_run(self, name: str, *, has_slot: bool) -> bool:
        """Return whether the named relay has followed the database before."""
        return self.number_of(name, has_slot=has_slot) in self.with_heartbeat


def read_relays(connection: Connection, slot: str) -> RelayFacts:
    """
    Read the relays of a database, even if an earlier release created its tables.

    Raises:
        psycopg.Error: The connection is lost.
    """
    execute = connection.execute
    numbers: dict[str, int] = {}
    with_heartbeat: frozenset[int] = frozenset()
    if _exists(connection, RELAY_TABLE):
        numbers = _numbers(connection)
    if _exists(connection, "towpath.heartbeat"):
        found = execute(query("read_heartbeat_numbers"))
        with_heartbeat = frozenset(number for (number,) in found)
    others = execute(query("count_other_slots"), {"slot": slot}).fetchone()
    return RelayFacts(
        numbers,
        with_heartbeat,
        _has_unassigned(connection),
        int(others[0]) if others else 0,
    )


def read_registration(connection: Connection, name: str) -> Registration:
    """
    Return this relay's registration.

    Raises:
        NotPreparedError: The relay is not registered.
        SourceUnavailableError: The connection is lost.
    """
    with translated_errors("reading the registered relays"):
        numbers = {}
        if _exists(connection, RELAY_TABLE):
            numbers = _numbers(connection)
    number = numbers.get(name)
    if number is None:
        reason = f"the relay {name} is not registered in {RELAY_TABLE}"
        raise NotPreparedError(reason)
    return Registration(name, number)


def registration_statement(name: str, number: int, prefix: str) -> str:
    """
    Return the statement that registers a relay.

    The names are inserted unescaped, so they must be validated identifiers.
    """
    return (
        "insert into towpath.relay (name, number, prefix) "  # noqa: S608 - see above
        f"values ('{name}', {number}, '{prefix}') on conflict (name) do nothing"
    )


def assignment_statement(name: str) -> str:
    """
    Return the statement that assigns rows without a relay to the named one.

    The name is inserted unescaped, so it must be a validated identifier.
    """
    return (
        f"update towpath.snapshot set relay = '{name}' "  # noqa: S608 - as above
        "where relay is null;\n"
        f"update towpath.signal set relay = '{name}' "
        "where relay is null and status is not null and status <> 'rejected'"
    )


def _has_unassigned(connection: Connection) -> bool:
    """
    Return whether a snapshot, or a signal that was answered, has no relay.

    In tables that lack a column of this release, return whether there are rows.
    """
    names = ("towpath.snapshot", "towpath.signal")
    if not all(_exists(connection, name) for name in names):
        return False
    wanted = {
        "schemas": ["towpath"] * len(names),
        "tables": [name.removeprefix("towpath.") for name in names],
    }
    known = connection.execute(query("read_existing_tables"), wanted)
    is_migrated = len(known.fetchall()) == len(names)
    statement = (
        "read_whether_rows_are_unassigned" if is_migrated else "read_whether_rows_exist"
    )
    row = connection.execute(query(statement)).fetchone()
    return bool(row and row[0])


def _numbers(connection: Connection) -> dict[str, int]:
    return dict(connection.execute(query("list_relays")).fetchall())


def _exists(connection: Connection, name: str) -> bool:
    found = connection.execute(query("read_whether_table_exists"), {"name": name})
    return bool((found.fetchone() or (False,))[0])
