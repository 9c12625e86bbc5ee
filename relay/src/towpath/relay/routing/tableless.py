"""
Events without a table: logical messages that say what an outbox row would say.

::

    {"id", "aggregate_type", "aggregate_id", "type", "payload",
     "headers", "traceparent", "occurred_at"}

The first five have to be there. A payload that is a string is its text; anything else
is passed on byte for byte as it was written. Members that options name (``route_by``,
placements and their like) are taken by their names. The message becomes a row of a
table that nobody has, and goes the way of rows.

Inside a transaction a message stands at its ordinal; outside at its own LSN, written
``-``, and its record's timestamp is when it occurred, since it has no commit.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

import orjson

from towpath.relay.errors import UnroutableError
from towpath.relay.routing.dead import NO_AGGREGATE, DeadLetters
from towpath.relay.routing.outbox_columns import PARTS
from towpath.relay.routing.outbox_event import EventWriter
from towpath.relay.routing.parked import Parked
from towpath.relay.routing.record import Record
from towpath.relay.routing.told import Told
from towpath.relay.wal.messages import Row
from towpath.relay.wal.relation import Column, Relation
from towpath.relay.wal.sequencer import Spoken
from towpath.settings.outbox import Outbox, OutboxColumns
from towpath.settings.syntax import parse_placement

LACKS_MEMBERS: Final = (
    "the message lacks id, aggregate_type, aggregate_id, type or payload"
)
NO_ID: Final = "the message's id is not a text"
BAD_TIME: Final = "the message's occurred_at is not a time of RFC 3339"

_NEEDED: Final = frozenset({"id", "aggregate_type", "aggregate_id", "type", "payload"})
_TEXT: Final = 25
_JSON: Final = 114
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# 2026-01-02T03:04:05.600000Z: how our own writers put it.
_USUAL_LENGTH: Final = 27


class TablelessEvents:
    """Turns logical messages into events."""

    def __init__(
        self,
        outbox: Outbox,
        dead: DeadLetters,
        parked: Parked,
        reserved: frozenset[str],
        on_skipped: Callable[[str], None],
    ) -> None:
        """
        Resolve the options for messages, as for a table.

        Args:
            outbox: ``[relay.outbox]``.
            dead: Where messages go that make no event.
            parked: Which aggregates wait; ``dead`` parks in the same one.
            reserved: Topics that no event may go to.
            on_skipped: Told of a header that is left out.
        """
        self._outbox = outbox
        self._names = _names(outbox)
        self._dead = dead
        self._spans = parked.spans
        whole = outbox.model_copy(update={"columns": _columns(outbox.columns)})
        self._writers = {
            oid: EventWriter(_relation(self._names, oid), whole, reserved, on_skipped)
            for oid in (_TEXT, _JSON)
        }

    def records(self, spoken: Spoken, now_us: int) -> Sequence[Record]:
        """
        Return the event of a message, or its dead letter.

        Raises:
            ParkedOverflowError: More are parked than the configuration allows.
        """
        aggregate = NO_AGGREGATE
        try:
            told = Told(spoken.content)
            aggregate = told.text("aggregate_type"), told.text("aggregate_id")
            row, payload_oid = _row(told, self._names)
            place = _place(spoken, told.members.get("occurred_at"), now_us)
            record = self._writers[payload_oid].event(row, *place)
        except UnroutableError as failure:
            place = _place(spoken, None, now_us)
            letter = self._dead.of_message(spoken, place, str(failure), aggregate)
            return (letter,)
        return (self._dead.unless_held(record) if self._spans else record,)


def _columns(columns: OutboxColumns) -> OutboxColumns:
    """Return the mapping in which every part has a place, whatever the table lacks."""
    absent = {part: part for part in PARTS if not getattr(columns, part)}
    return columns.model_copy(update=absent)


def _names(outbox: Outbox) -> dict[str, str]:
    """Return what the members are called, by the columns that options may name."""
    columns = _columns(outbox.columns)
    named = {getattr(columns, part): part for part in PARTS}
    placed = [parse_placement(text).column for text in outbox.placements]
    more = (outbox.route_by, columns.timestamp, columns.schema_version, *placed)
    return named | {name: name for name in more if name and name not in named}


def _relation(names: Mapping[str, str], payload_oid: int) -> Relation:
    columns = tuple(
        Column(name, payload_oid if member == "payload" else _TEXT)
        for name, member in names.items()
    )
    return Relation(
        oid=0, schema="pg_logical_emit_message", table="()", columns=columns, key=()
    )


def _row(told: Told, names: Mapping[str, str]) -> tuple[Row, int]:
    """Return the message as a row, and its payload's type."""
    members = told.members
    if not members.keys() >= _NEEDED:
        raise UnroutableError(LACKS_MEMBERS)
    if not isinstance(members["id"], str):
        raise UnroutableError(NO_ID)
    values = [
        _READERS[member](told) if member in _READERS else told.text(member)
        for member in names.values()
    ]
    return tuple(values), _TEXT if isinstance(members["payload"], str) else _JSON


def _headers(told: Told) -> bytes | None:
    value = told.members.get("headers")
    return None if value is None else orjson.dumps(value)


def _occurred_at(told: Told) -> bytes | None:
    """Return a time as Postgres writes it, in UTC."""
    value = told.members.get("occurred_at")
    found = _instant(value)
    if found is None:
        return None
    if isinstance(value, str) and len(value) == _USUAL_LENGTH and value[26] == "Z":
        return f"{value[:10]} {value[11:26]}+00".encode()
    text = found.astimezone(UTC).isoformat(" ", "microseconds")
    return text.removesuffix(":00").encode()


# What is more than a member's text.
_READERS: Final[Mapping[str, Callable[[Told], bytes | None]]] = MappingProxyType(
    {"headers": _headers, "occurred_at": _occurred_at}
)


def _instant(value: object) -> datetime | None:
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)  # type: ignore[arg-type]  # caught
    except (TypeError, ValueError) as error:
        raise UnroutableError(BAD_TIME) from error
    if found.tzinfo is None:
        raise UnroutableError(BAD_TIME)
    return found


def _place(spoken: Spoken, occurred_at: object, now_us: int) -> tuple[bytes, int]:
    """Return the position's text, and the record's timestamp in milliseconds."""
    transaction = spoken.transaction
    if transaction is not None:
        position = transaction.place + b"%010d" % spoken.ordinal
        return position, transaction.committed_us // 1000
    now_ms = now_us // 1000
    found = _instant(occurred_at)
    if found is not None:
        # Kafka takes nothing before 1970, and nothing far ahead of its own clock.
        occurred_ms = int((found - _EPOCH).total_seconds() * 1000)
        now_ms = min(max(1, occurred_ms), now_ms)
    return b"%016x.-" % spoken.log_lsn, now_ms
