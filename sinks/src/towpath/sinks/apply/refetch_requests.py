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
from towpath.sinks.dead_letters.letter import ParkedKey
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
        behind: Those of rows that wait behind a dead letter of their key.
    """

    records: Sequence[Record]
    changes: Sequence[Change]
    refused: Sequence[Refusal]
    floors: Sequence[Floor]
    behind: Sequence[Change] = ()


class RequestedRefetches(NamedTuple):
    """
    What was asked for.

    Attributes:
        left: What is refused all the same.
        rows: How many rows were asked for.
        is_open: Whether the batch rests upon rows that are owed, asked for by now or
            before.
    """

    left: list[Refusal]
    rows: int
    is_open: bool


def ask(
    told: AppliedBatch, owed: PendingRefetches, repairs: Repairs
) -> RequestedRefetches:
    """
    Ask for what a batch leaves open, durably.

    Raises:
        UnavailableError: They are not known to be asked for.
    """
    asks = [refusal for refusal in told.refused if refusal.asks]
    left = [refusal for refusal in told.refused if not refusal.asks]
    absent = [refusal.change for refusal in asks]
    due = owed.due(_written(told), absent, told.records, told.behind)
    for refusal in left:
        if refusal.change.is_row_as_it_is:
            # It is among the dead letters as it is now: nobody waits for it.
            owed.settle(refusal.change, due)
    asked, silent = _ask(due, owed, repairs)
    owed.take(due, told.floors)
    left += [refusal for refusal in asks if refusal.change.route in silent]
    return RequestedRefetches(left, asked, any(due.rows.values()) or asked > 0)


def ask_overdue(owed: PendingRefetches, repairs: Repairs) -> None:
    """
    Ask for the routes that were put off, as wholes.

    Raises:
        UnavailableError: They are not known to be asked for.
    """
    for route in owed.overdue():
        if owed.is_put_off(route):
            _ask_uncounted(route, owed, repairs)
        elif not _ask_with_all(route, owed, repairs):
            _log.error("rows that are owed cannot be asked for; fill it", route=route)


def _ask_uncounted(route: str, owed: PendingRefetches, repairs: Repairs) -> bool:
    """Ask for a route as a whole, now or later; tell whether that can be."""
    if not owed.is_due(route):
        owed.put_off(route)
        return True
    owed.asking(route)
    is_asked = repairs.ask_all(route, TOO_MANY)
    owed.asked_whole(route)
    return is_asked


def _ask_with_all(route: str, owed: PendingRefetches, repairs: Repairs) -> bool:
    """Ask for rows with all others, now or later; tell whether that can be."""
    if not owed.is_due(route):
        return True
    owed.asking(route)
    is_asked = repairs.ask_all(route, NOT_BY_KEY)
    if is_asked:
        owed.asked_with_all(route)
    else:
        owed.forget(route)
    return is_asked


def _written(told: AppliedBatch) -> Iterable[Change]:
    if not told.refused:
        return told.changes
    refused = {_place(refusal.change) for refusal in told.refused}
    return [change for change in told.changes if _place(change) not in refused]


def _place(change: Change) -> tuple[object, ...]:
    return change.route, change.key, change.position


def _ask(
    due: RefetchPlan, owed: PendingRefetches, repairs: Repairs
) -> tuple[int, set[str]]:
    """Ask; return how many rows were asked for, and of which routes none can be."""
    asked, silent = 0, set()
    wanted: dict[str, list[Row]] = defaultdict(list)
    for row in due.ask:
        wanted[row[0]].append(row)
    for route, rows in wanted.items():
        if not owed.has_room(route, rows):
            is_asked = _ask_uncounted(route, owed, repairs)
            due.forget(route)
        elif _asked_by_key(rows, due, owed, repairs):
            is_asked = True
        else:
            is_asked = _ask_with_all(route, owed, repairs)
            due.whole.add(route)
        if is_asked:
            asked += len(rows)
        else:
            due.forget(route)
            silent.add(route)
    return asked, silent


def _asked_by_key(
    rows: Sequence[Row], due: RefetchPlan, owed: PendingRefetches, repairs: Repairs
) -> bool:
    """Ask for rows of one route by their keys, if that can be."""
    route, _ = rows[0]
    known = (due.rows[row] for row in rows)
    record_keys = [owing.record_key for owing in known if owing is not None]
    if owed.comes_whole(route) or not all(map(_is_listable, record_keys)):
        return False
    return repairs.ask_keys(route, [key for _, key in rows])


def _is_listable(key: ParkedKey) -> bool:
    """Tell whether a signal can list a key: it takes no lists, and no objects."""
    try:
        told = orjson.loads(key.key)
    except orjson.JSONDecodeError:
        # The id of an aggregate is a text of its own.
        return True
    values = told.values() if isinstance(told, dict) else ()
    return not any(isinstance(value, list | dict) for value in values)
