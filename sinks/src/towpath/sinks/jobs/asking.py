"""
Rows asked for as they are now, once a batch is written: what, and how much at once.

What is to be asked for, ``owed`` decides. A route of which more rows are owed than can
be kept count of is asked for as a whole: it lacks rows then, and all that is owed comes
with them. One that lacks rows already is asked for once it has them.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from towpath.sinks.change import Change, Floor, Record, Refusal
from towpath.sinks.jobs.owed import Due, Owed, Row
from towpath.sinks.ports import Repairs

TOO_MANY: Final = "more of its rows are owed than are kept count of"


class Told(NamedTuple):
    """
    What became of a batch.

    Attributes:
        changes: Those that were given to the sink.
        refused: Those that were not applied.
    """

    records: Sequence[Record]
    changes: Sequence[Change]
    refused: Sequence[Refusal]
    floors: Sequence[Floor]


class Asked(NamedTuple):
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


def ask(told: Told, owed: Owed, repairs: Repairs) -> Asked:
    """
    Ask for what a batch leaves open, durably.

    Raises:
        UnavailableError: They are not known to be asked for.
    """
    asks = [refusal for refusal in told.refused if refusal.asks]
    left = [refusal for refusal in told.refused if not refusal.asks]
    absent = [refusal.change for refusal in asks]
    due = owed.due(_written(told), absent, told.records)
    asked, silent = _ask(due, owed, repairs)
    owed.take(due, told.floors)
    left += [refusal for refusal in asks if refusal.change.route in silent]
    return Asked(left, asked, any(due.rows.values()) or asked > 0)


def ask_overdue(owed: Owed, repairs: Repairs) -> None:
    """
    Ask for the routes that were put off, as wholes.

    Raises:
        UnavailableError: They are not known to be asked for.
    """
    for route in owed.overdue():
        repairs.ask_all(route, TOO_MANY)
        owed.asked_whole(route)


def _ask_whole(route: str, owed: Owed, repairs: Repairs) -> bool:
    """Ask for a route as a whole, now or later; tell whether that can be."""
    if route in owed.lacking():
        owed.put_off(route)
        return True
    is_asked = repairs.ask_all(route, TOO_MANY)
    owed.asked_whole(route)
    return is_asked


def _written(told: Told) -> Iterable[Change]:
    if not told.refused:
        return told.changes
    refused = {_place(refusal.change) for refusal in told.refused}
    return [change for change in told.changes if _place(change) not in refused]


def _place(change: Change) -> tuple[object, ...]:
    return change.route, change.key, change.position


def _ask(due: Due, owed: Owed, repairs: Repairs) -> tuple[int, set[str]]:
    """Ask; return how many rows were asked for, and of which routes none can be."""
    asked, silent = 0, set()
    wanted: dict[str, list[Row]] = defaultdict(list)
    for row in due.ask:
        wanted[row[0]].append(row)
    for route, rows in wanted.items():
        if not owed.has_room(route, rows):
            is_asked = _ask_whole(route, owed, repairs)
            due.forget(route)
        else:
            is_asked = repairs.ask_keys(route, [key for _, key in rows])
        if is_asked:
            asked += len(rows)
        else:
            due.forget(route)
            silent.add(route)
    return asked, silent
