"""
Build the requests to a receiver: JSON documents with one or more changes each.

A document is ``{"type": "towpath.changes", "changes": [..]}``. Each change has an
``id``, an ``op`` (``upsert``, ``delete``, ``event``, ``sweep``), a ``route`` and a
``position``. A change has the same id in every batch.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from towpath.sinks.change import Change, EventRow
from towpath.sinks.key_text import key_text

TYPE: Final = "towpath.changes"

_HASH_BYTES: Final = 16
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_:@/+=-]{1,200}")

WebhookChange: TypeAlias = Change | EventRow
Aggregate: TypeAlias = tuple[str, str, str]
# The unit of ordering: an aggregate, or a route and a key.
OrderingKey: TypeAlias = tuple[str, ...]


class Request(NamedTuple):
    """One request: its changes by their ids, and its body."""

    id: str
    changes: dict[str, WebhookChange]
    body: bytes


def lanes(
    changes: Sequence[Change],
    events: Sequence[EventRow],
    per_request: int,
    alone: frozenset[str] = frozenset(),
) -> Iterator[list[Request]]:
    """
    Split a batch into lanes, which are sent concurrently; a lane is sent in order.

    A batch has at most one change per key, so only the events of an aggregate need an
    order. Changes in ``alone`` get a request each, and are sent last.
    """
    others = [c for c in changes if id_of(c) not in alone]
    for chunk in _cut(others, per_request):
        yield [request_of(chunk)]
    by_aggregate: dict[Aggregate, list[EventRow]] = {}
    for event in sorted(events, key=lambda e: e.position):
        by_aggregate.setdefault(aggregate_of(event), []).append(event)
    last_lanes = []
    for own_events in by_aggregate.values():
        if any(id_of(event) in alone for event in own_events):
            last_lanes.append([request_of([event]) for event in own_events])
        else:
            yield [request_of(chunk) for chunk in _cut(own_events, per_request)]
    yield from ([request_of([c])] for c in changes if id_of(c) in alone)
    yield from last_lanes


def request_of(changes: Sequence[WebhookChange]) -> Request:
    """Return the request for one or more changes."""
    by_id = {id_of(change): change for change in changes}
    entries = [_entry(change_id, change) for change_id, change in by_id.items()]
    first, *rest = by_id
    name = f"batch_{_hash(by_id)}" if rest else first
    return Request(name, by_id, _body(entries))


def aggregate_of(event: EventRow) -> Aggregate:
    """Return the aggregate of an event; an aggregate's events are sent in order."""
    return event.route, event.aggregate_type, event.aggregate_id


def ordering_key_of(change: WebhookChange) -> OrderingKey:
    """Return the key by which a change is ordered."""
    if isinstance(change, EventRow):
        return aggregate_of(change)
    return change.route, key_text(change.key)


def sweep_of(route: str, floor: str) -> Request:
    """Return the request to delete all rows of a route below a position."""
    name = f"sweep_{_plain_position(floor)}_{_hash([route])}"
    entry = {"id": name, "op": "sweep", "route": route, "position": floor}
    return Request(name, {}, _body([entry]))


def id_of(change: WebhookChange) -> str:
    """
    Return the id of a change.

    A row's id contains its position, and a hash of its route and key, because READ rows
    share positions. An event's id contains the event id, or its hash if no header can
    carry the event id. No id contains a dot, which separates the parts of the signed
    text.
    """
    if isinstance(change, EventRow):
        is_plain = _PLAIN_ID.fullmatch(change.id) is not None
        event_id = change.id if is_plain else _hash([change.id])
        return f"event_{event_id}_{_hash([change.route])}"
    row_hash = _hash([change.route, key_text(change.key)])
    return f"row_{_plain_position(change.position)}_{row_hash}"


def _entry(change_id: str, change: WebhookChange) -> dict[str, Any]:
    if isinstance(change, EventRow):
        return {
            "id": change_id,
            "op": "event",
            "route": change.route,
            "position": change.position,
            "event_id": change.id,
            "type": change.type,
            "aggregate_type": change.aggregate_type,
            "aggregate_id": change.aggregate_id,
            "occurred_at": change.occurred_at,
            "headers": orjson.Fragment(change.headers),
            "payload": change.payload,
        }
    entry: dict[str, Any] = {
        "id": change_id,
        "op": "delete" if change.row is None else "upsert",
        "route": change.route,
        "position": change.position,
        "key": change.key,
        "key_columns": change.key_columns,
        "is_snapshot": change.is_read,
    }
    if change.row is not None:
        # Sent as published, because its numbers may have more digits than a double.
        exact = None if change.text is None else orjson.Fragment(change.text)
        entry["row"] = change.row if exact is None else exact
        entry["unchanged"] = sorted(change.unchanged)
    return entry


def _body(entries: Iterable[dict[str, Any]]) -> bytes:
    return orjson.dumps({"type": TYPE, "changes": list(entries)})


def _plain_position(position: str) -> str:
    return position.replace(".", "_").replace("-", "read")


def _hash(parts: Iterable[str]) -> str:
    whole = "\0".join(parts).encode()
    return hashlib.blake2b(whole, digest_size=_HASH_BYTES).hexdigest()


def _cut(changes: Sequence[WebhookChange], size: int) -> Iterator[list[WebhookChange]]:
    rest = iter(changes)
    while chunk := list(islice(rest, size)):
        yield chunk
