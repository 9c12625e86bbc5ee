"""
Rows asked for as they are now, once a batch is written: what, and how much at once.

What is to be asked for, ``owed`` decides. A route of which more rows are owed than can
be kept count of is asked for as a whole: it lacks rows then, and all that is owed comes
with them. So is one whose rows no signal can list: by ``relay.rows.key_columns`` its
records have a key that is not the primary one, or an array or a composite is part of
it. One that is being read already, or was lately, is asked for later, if anything of it
is owed still. What cannot be read anew at all, as an event log, is never asked for.
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

TOO_MANY: Final = "more of its rows are owed than are kept count of"
NOT_BY_KEY: Final = "some of its rows are owed, and no signal can list their keys"

_log = structlog.get_logger("towpath.sinks")


class AppliedBatch(NamedTuple):
    """
    What became of a batch.

    Attributes:
        changes: Those that were given to the sink.
        refused: Those that were not applied.
        held_back: Those of rows that wait behind a dead letter of their key.
    """

    records: Sequence[Record]
    changes: Sequence[Change]
    refused: Sequence[Refusal]
    floors: Sequence[Floor]
    held_back: Sequence[Change] = ()


class RequestedRefetches(NamedTuple):
    """
    What was asked for.

    Attributes:
        refused: What is refused all the same.
        rows: How many rows were asked for.
        awaits_refetch: Whether the batch depends on rows whose refetch is pending.
    """

    refused: list[Refusal]
    rows: int
    awaits_refetch: bool


def request_refetches(
    applied: AppliedBatch, refetches: PendingRefetches, repairs: Repairs
) -> RequestedRefetches:
    """
    Ask for what a batch leaves open, durably.

    Raises:
        UnavailableError: They are not known to be asked for.
    """
    asks = [refusal for refusal in applied.refused if refusal.asks]
    left = [refusal for refusal in applied.refused if not refusal.asks]
    absent = [refusal.change for refusal in asks]
    due = refetches.plan(_written(applied), absent, applied.records, applied.held_back)
    for refusal in left:
        if refusal.change.is_row_as_it_is:
            # It is among the dead letters as it is now: nobody waits for it.
            refetches.complete(refusal.change, due)
    count, unavailable = _request(due, refetches, repairs)
    refetches.store(due, applied.floors)
    left += [refusal for refusal in asks if refusal.change.route in unavailable]
    return RequestedRefetches(left, count, any(due.rows.values()) or count > 0)


def request_overdue(refetches: PendingRefetches, repairs: Repairs) -> None:
    """
    Ask for the routes that were put off, as wholes.

    Raises:
        UnavailableError: They are not known to be asked for.
    """
    for route in refetches.overdue_routes():
        if refetches.is_postponed(route):
            _request_route(route, refetches, repairs)
        elif not _request_with_all(route, refetches, repairs):
            _log.error("rows that are owed cannot be asked for; fill it", route=route)


def _request_route(route: str, refetches: PendingRefetches, repairs: Repairs) -> bool:
    """Ask for a route as a whole, now or later; tell whether that can be."""
    if not refetches.is_route_due(route):
        refetches.postpone(route)
        return True
    refetches.begin_route_request(route)
    is_requested = repairs.request_all(route, TOO_MANY)
    refetches.end_uncounted_request(route)
    return is_requested


def _request_with_all(
    route: str, refetches: PendingRefetches, repairs: Repairs
) -> bool:
    """Ask for rows with all others, now or later; tell whether that can be."""
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
    refused = {_place(refusal.change) for refusal in applied.refused}
    return [change for change in applied.changes if _place(change) not in refused]


def _place(change: Change) -> tuple[object, ...]:
    return change.route, change.key, change.position


def _request(
    due: RefetchPlan, refetches: PendingRefetches, repairs: Repairs
) -> tuple[int, set[str]]:
    """Ask; return how many rows were asked for, and of which routes none can be."""
    count, unavailable = 0, set()
    wanted: dict[str, list[Row]] = defaultdict(list)
    for row in due.requests:
        wanted[row[0]].append(row)
    for route, rows in wanted.items():
        if not refetches.has_room(route, rows):
            is_requested = _request_route(route, refetches, repairs)
            due.forget(route)
        elif _request_by_key(rows, due, refetches, repairs):
            is_requested = True
        else:
            is_requested = _request_with_all(route, refetches, repairs)
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
    """Ask for rows of one route by their keys, if that can be."""
    route, _ = rows[0]
    known = (due.rows[row] for row in rows)
    record_keys = [refetch.record_key for refetch in known if refetch is not None]
    if refetches.is_requested_whole(route) or not all(map(_is_listable, record_keys)):
        return False
    return repairs.request_keys(route, [key for _, key in rows])


def _is_listable(key: ParkedKey) -> bool:
    """Tell whether a signal can list a key: it takes no lists, and no objects."""
    try:
        columns = orjson.loads(key.key)
    except orjson.JSONDecodeError:
        # The id of an aggregate is a text of its own.
        return True
    values = columns.values() if isinstance(columns, dict) else ()
    return not any(isinstance(value, list | dict) for value in values)
