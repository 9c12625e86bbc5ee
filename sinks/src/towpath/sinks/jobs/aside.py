"""
What of a batch is set aside, and what is over by it. Pure.

A refused change may have been folded out of several records: each of them is a letter,
because each is needed to apply it later. A row that is read anew, above all that waits
of its key, is the row as it is: it supersedes what waits, and lets the key go.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from towpath.sinks.change import Change, Floor, Origin, Record, Refusal, Value
from towpath.sinks.dead_letters.letter import (
    BEHIND,
    Ending,
    Letter,
    shared_topic,
)
from towpath.sinks.dead_letters.parked import ParkedKeys
from towpath.sinks.decode import Decoded
from towpath.sinks.jobs.behind import Held, KeyRule


def reasons_of(
    decoded: Decoded, refused: Sequence[Refusal], held: Held
) -> dict[Origin, str]:
    """Return, by record, why it is set aside; causes come before what waits."""
    reasons = {poison.origin: poison.reason for poison in decoded.poison}
    for origin in held.behind:
        reasons.setdefault(origin, BEHIND)
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
    records: Iterable[Record], reasons: Mapping[Origin, str], rule: KeyRule
) -> list[Letter]:
    """Make the letters of a batch, in the order of its records."""
    if not reasons:
        return []
    found = []
    for record in records:
        reason = reasons.get(record.origin)
        if reason is None:
            continue
        reading = rule.routes.reading(record.origin.topic)
        names = ", ".join(route.name for route, _ in reading)
        is_parking = rule.key_of(record) is not None
        found.append(Letter(record, reason, names, is_parking))
    return found


class Over:
    """
    What a batch lets go: keys by rows as they are, and by floors.

    A row that was refused supersedes nothing. Below a floor there is no row any more,
    and nothing that could be replayed.
    """

    def __init__(
        self,
        held: Held,
        floors: Iterable[Floor],
        letters: Iterable[Letter],
        rule: KeyRule,
    ) -> None:
        self._rule = rule
        waits = held.unread | held.behind
        refused = {x.parked for x in letters if x.record.origin not in waits}
        self._rows = {k: p for k, p in held.superseding.items() if k not in refused}
        self._floors: dict[str, str] = defaultdict(str)
        for floor in floors:
            topic = shared_topic(floor.origin.topic)
            if rule.is_superseded(topic):
                self._floors[topic] = max(self._floors[topic], floor.position)

    def has(self, letter: Letter) -> bool:
        """Tell whether a letter of the batch is over by what the batch says above."""
        key = letter.parked
        if key is None:
            return False
        above = max(self._rows.get(key, ""), self._floors.get(key.topic, ""))
        return letter.position < above

    def endings(self, parked: ParkedKeys) -> list[Ending]:
        """Return what of the parked keys is over, once the batch is durable."""
        keys = {key for key in self._rows if key in parked}
        for topic, floor in self._floors.items():
            keys.update(parked.below(topic, floor))
        return [parked.superseded(key) for key in sorted(keys)]


def pieces_of(refused: Change, changes: Iterable[Change]) -> Iterator[Change]:
    """Go from a change back to the full image, or the delete, that it rests upon."""
    below = [change for change in changes if change.position <= refused.position]
    for change in sorted(below, key=lambda c: c.position, reverse=True):
        if change.row is None and refused.row is not None:
            return
        yield change
        if not change.unchanged:
            return
