"""
What of a batch is set aside, and what is held back behind a parked key. Pure.

A refused change may have been folded out of several records: each of them is a letter,
because each is needed to apply it later. A row that is read anew, above all that waits
of its key, is the row as it is: it supersedes what waits, and lets the key go.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from towpath.settings import Route, RouteKind
from towpath.sinks.change import Change, Floor, Origin, Record, Refusal, Value
from towpath.sinks.dead_letters.letter import (
    BEHIND,
    Ending,
    Letter,
    ParkedKey,
    position_of,
    shared_topic,
)
from towpath.sinks.dead_letters.parked import ParkedKeys
from towpath.sinks.decode import Decoded
from towpath.sinks.routes import Routes

# How a position ends whose change was read, not streamed.
_READ_ORDINAL: Final = ".-"


class Held(NamedTuple):
    """
    A batch's changes, parted.

    Attributes:
        changes: Those to be applied.
        behind: Records of those that wait behind their key.
        superseding: Keys whose rows are in the batch as they are now.
    """

    changes: Sequence[Change]
    behind: frozenset[Origin]
    superseding: frozenset[ParkedKey]


def key_of(record: Record, routes: Sequence[Route]) -> ParkedKey | None:
    """Return the key that a record parks if it is set aside; a log has no order."""
    is_ordered = any(route.kind is not RouteKind.EVENT_LOG for route in routes)
    if not is_ordered or record.key is None:
        return None
    return ParkedKey(shared_topic(record.origin.topic), record.key)


def hold(
    changes: Sequence[Change], records: Iterable[Record], parked: ParkedKeys
) -> Held:
    """Hold back what stands behind a parked key."""
    waiting = _waiting(records, parked) if len(parked) else {}
    if not waiting:
        return Held(changes, frozenset(), frozenset())
    superseding = frozenset(
        key
        for change in changes
        if (key := waiting.get(change.origin)) is not None
        and _is_row_as_it_is(change)
        and change.position > _highest(parked, key)
    )
    kept: list[Change] = []
    behind: set[Origin] = set()
    for change in changes:
        key = waiting.get(change.origin)
        if key is None or key in superseding or change.position < _lowest(parked, key):
            kept.append(change)
        else:
            behind.add(change.origin)
    return Held(kept, frozenset(behind), superseding)


def reasons_of(
    decoded: Decoded, refused: Sequence[Refusal], held: Held
) -> dict[Origin, str]:
    """Return, by record, why it is set aside."""
    reasons = dict.fromkeys(held.behind, BEHIND)
    for poison in decoded.poison:
        reasons[poison.origin] = poison.reason
    if not refused:
        return reasons
    by_key: dict[tuple[str, tuple[Value, ...]], list[Change]] = defaultdict(list)
    for change in held.changes:
        by_key[change.route, change.key].append(change)
    for refusal in refused:
        change = refusal.change
        for piece in pieces_of(change, by_key[change.route, change.key]):
            reasons[piece.origin] = refusal.reason
    return reasons


def letters_of(
    records: Iterable[Record], reasons: Mapping[Origin, str], routes: Routes
) -> list[Letter]:
    """Make the letters of a batch, in the order of its records."""
    if not reasons:
        return []
    found = []
    for record in records:
        reason = reasons.get(record.origin)
        if reason is None:
            continue
        reading = [r.route for r in routes.reading(record.origin.topic)]
        is_parking = key_of(record, reading) is not None and position_of(record)
        names = ", ".join(route.name for route in reading)
        found.append(Letter(record, reason, names, bool(is_parking)))
    return found


def endings_of(
    held: Held, floors: Iterable[Floor], letters: Iterable[Letter], parked: ParkedKeys
) -> list[Ending]:
    """
    Return what of the parked keys is over, once the batch is durable.

    A row that was refused supersedes nothing. Below a floor there is no row any more,
    and nothing that could be replayed.
    """
    keys = set(held.superseding) - {letter.parked for letter in letters}
    for floor in floors:
        keys.update(parked.below(shared_topic(floor.origin.topic), floor.position))
    return [parked.superseded(key) for key in sorted(keys) if key in parked]


def pieces_of(refused: Change, changes: Iterable[Change]) -> Iterator[Change]:
    """Go from a change back to the full image, or the delete, that it rests upon."""
    below = [change for change in changes if change.position <= refused.position]
    for change in sorted(below, key=lambda c: c.position, reverse=True):
        if change.row is None and refused.row is not None:
            return
        yield change
        if not change.unchanged:
            return


def _waiting(records: Iterable[Record], parked: ParkedKeys) -> dict[Origin, ParkedKey]:
    """Return the records of parked keys."""
    found = {}
    for record in records:
        if record.key is not None:
            key = ParkedKey(shared_topic(record.origin.topic), record.key)
            if key in parked:
                found[record.origin] = key
    return found


def _is_row_as_it_is(change: Change) -> bool:
    """Tell whether a snapshot says all there is of a row: its columns, or its end."""
    is_read = change.is_read or change.position.endswith(_READ_ORDINAL)
    return is_read and not change.unchanged


def _highest(parked: ParkedKeys, key: ParkedKey) -> str:
    waiting = parked.waiting(key)
    return "" if waiting is None else waiting.highest


def _lowest(parked: ParkedKeys, key: ParkedKey) -> str:
    waiting = parked.waiting(key)
    return "" if waiting is None else waiting.lowest
