"""
The journey of one row or aggregate: the facts of each hop, and each route's state.

A journey has the records of one key, oldest first, and, for each route that reads them,
the applied offset of each partition, the stored position, and the dead letters of the
key. These facts determine the state of each route. A journey contains no row values and
no event payloads. This module does no I/O.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from towpath.schemas.topics import is_backfill

Document = dict[str, Any]


class RouteState(enum.StrEnum):
    """
    The state of one key in one route of a sink.

    ``current``: the newest record is applied; the sink stores its position or a newer
    one; or no record was found, and the sink has the row.
    ``applied``: the newest record is applied; the sink stores no position for the key.
    ``deleted``: the newest record is applied, and the sink has a tombstone or no row;
    or no record was found, and neither the source nor the sink has the row.
    ``behind``: the sink has not applied all records of the key yet.
    ``parked``: the sink applies no records of the key, because of a dead letter.
    ``incomplete``: all records are applied, except those that became dead letters.
    ``differs``: the newest record is applied, but the sink stores an older position, or
    none; or no record was found, and the sink lacks a row that the source has.
    ``unknown``: the sink cannot be read.
    """

    CURRENT = "current"
    APPLIED = "applied"
    DELETED = "deleted"
    BEHIND = "behind"
    PARKED = "parked"
    INCOMPLETE = "incomplete"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


class TracedRecord(NamedTuple):
    """
    A record of the key.

    Attributes:
        topic: The record's topic.
        partition: The record's partition.
        offset: The record's offset.
        kind: The event's type, or the operation on the row: create, update, delete,
            read, tombstone; empty if its format does not show it.
        position: The record's position; empty if it has none.
        committed_at: The commit time of the record's transaction.
        event_id: The event's id; None for a row.
        traceparent: The trace context of the request that caused the record; None if
            the record has none.
    """

    topic: str
    partition: int
    offset: int
    kind: str
    position: str
    committed_at: datetime
    event_id: str | None
    traceparent: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRoute:
    """
    The facts about the key in one route of a sink.

    Attributes:
        sink: The sink.
        route: The route's name in the sink.
        stores_position: Whether the sink stores the position of each key.
        applied: The sink's next offset by topic and partition (as text).
        stored_position: The position that the sink stores; None if it has no row.
        is_deleted: Whether that row is a tombstone.
        dead_letters: A summary for each parked record key, and one for each dead letter
            that parks no key.
        updated_at: When the sink's last batch ended (RFC 3339); empty before the first.
        error: The error from reading the sink; None if it was read.
    """

    sink: str
    route: str
    stores_position: bool
    applied: Mapping[str, Mapping[str, int]]
    stored_position: str | None = None
    is_deleted: bool = False
    dead_letters: Sequence[Document] = ()
    updated_at: str = ""
    error: str | None = None


class Scan(NamedTuple):
    """A topic that was searched, and the number of records searched in it."""

    topic: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """
    The journey of one key.

    Attributes:
        subject: The aggregate's type and id, or the table and the key, as text.
        is_in_source: Whether the row is in its table now; None for an aggregate.
        scans: The topics that were searched.
        records: The records of the key, oldest first.
        routes: The facts about the key in each route that reads its records.
    """

    subject: str
    is_in_source: bool | None
    scans: Sequence[Scan]
    records: Sequence[TracedRecord]
    routes: Sequence[TracedRoute]


# The suffix of a sink's own backfill topic; the sink reads no other backfill.
_BACKFILL_OF: Final = ".backfill.{}"


def records_for(route: TracedRoute, journey: Journey) -> list[TracedRecord]:
    """Return the records that the sink of a route reads, in order of position."""
    own = _BACKFILL_OF.format(route.sink)
    found = [
        record
        for record in journey.records
        if not is_backfill(record.topic) or record.topic.endswith(own)
    ]
    return sorted(found, key=lambda record: record.position)


def waiting_for(route: TracedRoute, journey: Journey) -> list[TracedRecord]:
    """Return the records that the sink of a route has not applied yet."""
    return [
        record
        for record in records_for(route, journey)
        if record.offset
        >= route.applied.get(record.topic, {}).get(str(record.partition), 0)
    ]


def state_of(route: TracedRoute, journey: Journey) -> RouteState:
    """Return the state of the key in a route."""
    if route.error is not None:
        return RouteState.UNKNOWN
    if any(letter["is_parked"] for letter in route.dead_letters):
        return RouteState.PARKED
    if waiting_for(route, journey):
        return RouteState.BEHIND
    if route.dead_letters:
        return RouteState.INCOMPLETE
    if not route.stores_position:
        return RouteState.APPLIED
    return _stored_state(route, journey)


def _stored_state(route: TracedRoute, journey: Journey) -> RouteState:
    """Return the state of a key whose position the sink stores."""
    records = records_for(route, journey)
    # If no record was found, a row that the source lacks is rightly not in the sink.
    is_delete = journey.is_in_source is False
    if records:
        is_delete = records[-1].kind in {"delete", "tombstone"}
    if route.stored_position is None:
        return RouteState.DELETED if is_delete else RouteState.DIFFERS
    # A snapshot may have delivered a row that is newer than every record found.
    if records and route.stored_position < records[-1].position:
        return RouteState.DIFFERS
    return RouteState.DELETED if route.is_deleted else RouteState.CURRENT


def document_of(journey: Journey) -> Document:
    """Return a journey, with the state of the key in each route, as JSON."""
    return {
        "subject": journey.subject,
        "in_source": journey.is_in_source,
        "scanned": [scan._asdict() for scan in journey.scans],
        "records": [
            record._asdict() | {"committed_at": record.committed_at.isoformat()}
            for record in journey.records
        ],
        "sinks": [
            {
                "sink": route.sink,
                "route": route.route,
                "state": str(state_of(route, journey)),
                "records_behind": len(waiting_for(route, journey)),
                "stored_position": route.stored_position,
                "dead_letters": list(route.dead_letters),
                "last_batch_at": route.updated_at or None,
                "error": route.error,
            }
            for route in journey.routes
        ],
    }
