"""
Requests as the receiver gets them: a JSON document with one or several changes.

``{"type": "towpath.changes", "changes": [..]}``, each with its ``id``, ``op``
(``upsert``, ``delete``, ``event``, ``sweep``), ``route`` and ``position``. The id is
the same whenever the same change is told, in whatever batch. Pure.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from towpath.sinks.change import Change, EventRow
from towpath.sinks.key_text import key_text

TYPE: Final = "towpath.changes"

_HASH_BYTES: Final = 16

Told: TypeAlias = Change | EventRow
Aggregate: TypeAlias = tuple[str, str, str]
# What has an order to keep: an aggregate, or a route and its key.
Unit: TypeAlias = tuple[str, ...]


class Request(NamedTuple):
    """One request: what it tells, by id, and its body."""

    id: str
    told: dict[str, Told]
    body: bytes


def lanes(
    changes: Sequence[Change],
    events: Sequence[EventRow],
    per_request: int,
    apart: frozenset[str] = frozenset(),
) -> Iterator[list[Request]]:
    """
    Cut a batch into lanes: the requests of one are sent in order, lanes side by side.

    A batch has at most one change of a key, so changes have no order; the events of an
    aggregate do. What is to be ``apart`` shares no request, and comes last.
    """
    others = [c for c in changes if id_of(c) not in apart]
    for some in _cut(others, per_request):
        yield [request_of(some)]
    by_aggregate: dict[Aggregate, list[EventRow]] = {}
    for event in sorted(events, key=lambda e: e.position):
        by_aggregate.setdefault(aggregate_of(event), []).append(event)
    late = []
    for of_one in by_aggregate.values():
        if any(id_of(event) in apart for event in of_one):
            late.append([request_of([event]) for event in of_one])
        else:
            yield [request_of(some) for some in _cut(of_one, per_request)]
    yield from ([request_of([c])] for c in changes if id_of(c) in apart)
    yield from late


def request_of(told: Sequence[Told]) -> Request:
    """Write a request of one or several changes."""
    by_id = {id_of(one): one for one in told}
    entries = [_entry(change_id, one) for change_id, one in by_id.items()]
    first, *rest = by_id
    name = f"batch_{_hash(by_id)}" if rest else first
    return Request(name, by_id, _body(entries))


def aggregate_of(event: EventRow) -> Aggregate:
    """Name what an event is about: what its order is kept for."""
    return event.route, event.aggregate_type, event.aggregate_id


def unit_of(told: Told) -> Unit:
    """Name what waits if a change has to."""
    if isinstance(told, EventRow):
        return aggregate_of(told)
    return told.route, key_text(told.key)


def sweep_of(route: str, floor: str) -> Request:
    """Write the request to take away all rows of a route below a position."""
    name = f"sweep_{_plain(floor)}_{_hash([route])}"
    entry = {"id": name, "op": "sweep", "route": route, "position": floor}
    return Request(name, {}, _body([entry]))


def id_of(told: Told) -> str:
    """
    Name a change: by its position, and its key, because READ rows share one.

    An event brings its own id. No id has a dot in it: it would not be told from the
    joints of what is signed.
    """
    if isinstance(told, EventRow):
        return f"event_{told.id}_{_hash([told.route])}"
    return f"row_{_plain(told.position)}_{_hash([told.route, key_text(told.key)])}"


def _entry(change_id: str, told: Told) -> dict[str, Any]:
    if isinstance(told, EventRow):
        return {
            "id": change_id,
            "op": "event",
            "route": told.route,
            "position": told.position,
            "event_id": told.id,
            "type": told.type,
            "aggregate_type": told.aggregate_type,
            "aggregate_id": told.aggregate_id,
            "occurred_at": told.occurred_at,
            "headers": orjson.Fragment(told.headers),
            "payload": told.payload,
        }
    entry: dict[str, Any] = {
        "id": change_id,
        "op": "delete" if told.row is None else "upsert",
        "route": told.route,
        "position": told.position,
        "key": told.key,
        "key_columns": told.key_columns,
        "is_snapshot": told.is_read,
    }
    if told.row is not None:
        # As it came: its numbers may have more digits than a double.
        exact = None if told.text is None else orjson.Fragment(told.text)
        entry["row"] = told.row if exact is None else exact
        entry["unchanged"] = sorted(told.unchanged)
    return entry


def _body(entries: Iterable[dict[str, Any]]) -> bytes:
    return orjson.dumps({"type": TYPE, "changes": list(entries)})


def _plain(position: str) -> str:
    return position.replace(".", "_").replace("-", "read")


def _hash(parts: Iterable[str]) -> str:
    whole = "\0".join(parts).encode()
    return hashlib.blake2b(whole, digest_size=_HASH_BYTES).hexdigest()


def _cut(told: Sequence[Told], size: int) -> Iterator[list[Told]]:
    rest = iter(told)
    while some := list(islice(rest, size)):
        yield some
