"""
Request the refetches of a batch: rows by key, or whole routes.

``PendingRefetches`` decides which rows are requested. A route with too many pending
rows to count is requested as a whole: it then counts as lacking rows, and the pending
rows arrive with all others. So is a route whose rows no signal can list, because
``relay.rows.key_columns`` gives its records a key other than the primary key, or the
key has an array or a composite. A route that is being read, or was requested recently,
is requested later. Event logs cannot be read again and are never requested.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import orjson
import structlog

from towpath.sinks.apply.refetch import PendingRefetches, RefetchPlan
from towpath.sinks.change import Change, Floor, Record, Refusal
from towpath.sinks.dead_letters.entries import ParkedKey
from towpath.sinks.ports import Repairs
from towpath.sinks.state.refetches import Row

TOO_MANY: Final = "too many of its rows have a refetch pending"
NOT_BY_KEY: Final = "refetches are pending for keys that no signal can list"

_log = structlog.get_logger("towpath.sinks")


class AppliedBatch(NamedTuple):
    """
    A batch after it was applied.

    Attributes:
        changes: The changes that were given to the sink.
        refused: The changes that were not applied.
        held_back: Changes that are held back behind a dead letter of their key.
    """

    records: Sequence[Record]
    changes: Sequence[Change]
    refused: Sequence[Refusal]
    floors: Sequence[Floor]
    held_back: Sequence[Change] = ()


class RequestedRefetches(NamedTuple):
    """
    The refetches requested for a batch.

    Attributes:
        refused: Refused changes that no refetch can repair.
        rows: The number of rows that are requested, now or later with their route.
        awaits_refetch: Whether the batch depends on rows whose refetch is pending.
    """

    refused: list[Refusal]
    rows: int
    awaits_refetch: bool


def request_refetches(
    applied: AppliedBatch, refetches: PendingRefetches, repairs: Repairs
) -> RequestedRefetches:
    """
    Request the rows that a batch lacks, durably.

    Raises:
        UnavailableError: The requests are not known to be durable.
    """
    repairable = [refusal for refusal in applied.refused if refusal.needs_refetch]
    refused = [refusal for refusal in applied.refused if not refusal.needs_refetch]
    absent = [refusal.change for refusal in repairable]
    due = refetches.plan(_written(applied), absent, applied.records, applied.held_back)
    for refusal in refused:
        if refusal.change.is_row_as_it_is:
            # The whole row becomes a dead letter, so its refetch is complete.
            refetches.complete(refusal.change, due)
    count, unavailable = _request(due, refetches, repairs)
    refetches.store(due, applied.floors)
    refused += [r for r in repairable if r.change.route in unavailable]
    return RequestedRefetches(refused, count, any(due.rows.values()) or count > 0)


def request_row(
    due: RefetchPlan, refetches: PendingRefetches, repairs: Repairs
) -> bool:
    """
    Request the row of a plan, durably; return whether that was possible.

    Raises:
        UnavailableError: The request is not known to be durable.
    """
    _, unavailable = _request(due, refetches, repairs)
    refetches.store(due)
    return not unavailable


def request_overdue(refetches: PendingRefetches, repairs: Repairs) -> None:
    """
    Request the due routes that are postponed or have pending rows, each as a whole.

    Raises:
        UnavailableError: The requests are not known to be durable.
    """
    for route in refetches.overdue_routes():
        if refetches.is_postponed(route):
            _request_route(route, refetches, repairs)
        elif not _request_route_of_pending(route, refetches, repairs):
            _log.error(
                "refetch not possible: fill the route with towpath sink refill",
                sink=refetches.sink_name,
                route=route,
            )


def _request_route(route: str, refetches: PendingRefetches, repairs: Repairs) -> bool:
    """
    Request a whole route that has too many pending rows, now or later.

    Return whether that is possible.
    """
    if not refetches.is_route_due(route):
        refetches.postpone(route)
        return True
    refetches.begin_route_request(route)
    is_requested = repairs.request_all(route, TOO_MANY)
    refetches.end_uncounted_request(route)
    return is_requested


def _request_route_of_pending(
    route: str, refetches: PendingRefetches, repairs: Repairs
) -> bool:
    """
    Request a whole route with pending keys that no signal can list, now or later.

    Return whether that is possible.
    """
    if not refetches.is_route_due(route):
        return True
    refetches.begin_route_request(route)
    is_requested = repairs.request_all(route, NOT_BY_KEY)
    if is_requested:
        refetches.end_route_request(route)
    else:
        refetches.forget(route)
    return is_requested


def _written(applied: AppliedBatch) -> Iterable[Change]:
    if not applied.refused:
        return applied.changes
    refused = {_identity(refusal.change) for refusal in applied.refused}
    return [change for change in applied.changes if _identity(change) not in refused]


def _identity(change: Change) -> tuple[object, ...]:
    return change.route, change.key, change.position


def _request(
    due: RefetchPlan, refetches: PendingRefetches, repairs: Repairs
) -> tuple[int, set[str]]:
    """Send the requests; return the row count, and routes that cannot be requested."""
    count, unavailable = 0, set()
    by_route: dict[str, list[Row]] = defaultdict(list)
    for row in due.requests:
        by_route[row[0]].append(row)
    for route, rows in by_route.items():
        if not refetches.can_count(route, rows):
            is_requested = _request_route(route, refetches, repairs)
            due.forget(route)
        elif _request_by_key(rows, due, refetches, repairs):
            is_requested = True
        else:
            is_requested = _request_route_of_pending(route, refetches, repairs)
            due.whole_routes.add(route)
        if is_requested:
            count += len(rows)
        else:
            due.forget(route)
            unavailable.add(route)
    return count, unavailable


def _request_by_key(
    rows: Sequence[Row], due: RefetchPlan, refetches: PendingRefetches, repairs: Repairs
) -> bool:
    """Request rows of one route by their keys; return whether that is possible."""
    route, _ = rows[0]
    pending = (due.rows[row] for row in rows)
    record_keys = [refetch.record_key for refetch in pending if refetch is not None]
    if refetches.is_requested_whole(route) or not all(map(_is_listable, record_keys)):
        return False
    return repairs.request_keys(route, [key for _, key in rows])


def _is_listable(key: ParkedKey) -> bool:
    """
    Return whether a signal can list a key.

    A signal cannot list keys that contain lists or objects.
    """
    try:
        columns = orjson.loads(key.key)
    except orjson.JSONDecodeError:
        # An aggregate's id is plain text.
        return True
    values = columns.values() if isinstance(columns, dict) else ()
    return not any(isinstance(value, list | dict) for value in values)
