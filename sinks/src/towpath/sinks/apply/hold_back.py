"""
What of a batch waits behind an older record of its key. Pure.

Only positions decide, so that one batch comes to the same as many: a key may be parked
since long ago, or by a record of this batch that cannot be read. What is known of a key
is gone through in the order of positions. What cannot be read parks the key; whatever
comes after it waits. A row as it is, or a floor, above all that waits supersedes it and
lets the key go, until the next one parks it again.

Nothing supersedes events: a row that is read anew says nothing of what happened.

What of a batch is set aside, and what is over by it. Pure.

A refused change may have been folded out of several records: each of them is a letter,
because each is needed to apply it later. A row that is read anew, above all that waits
of its key, is the row as it is: it supersedes what waits, and lets the key go.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from towpath.settings import RouteKind
from towpath.sinks.change import (
    Change,
    EventRow,
    Floor,
    Origin,
    Record,
    Refusal,
    Value,
)
from towpath.sinks.changes.decode import Decoded
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import (
    BEHIND,
    DeadLetter,
    ParkedKey,
    Resolution,
    position_of,
    shared_topic,
)
from towpath.sinks.dead_letters.parked import ParkedKeys


class KeyRule(NamedTuple):
    """
    Which keys have an order to keep, and what lets them go.

    Attributes:
        orders_events: Whether the events of a log are told in the order of their key.
    """

    routes: Routes
    orders_events: bool = False

    def key_of(self, record: Record) -> ParkedKey | None:
        """Return the key that a record parks if it is set aside, if it parks one."""
        reading = self.routes.reading(record.origin.topic)
        is_ordered = any(
            self.orders_events or route.kind is not RouteKind.EVENT_LOG
            for route, _ in reading
        )
        if not is_ordered or not position_of(record):
            return None
        return _place(record)

    def is_superseded(self, topic: str) -> bool:
        """Tell whether what waits of a topic may be superseded: no event may."""
        reading = self.routes.reading(topic)
        return all(route.kind is not RouteKind.EVENT_LOG for route, _ in reading)


class HeldBack(NamedTuple):
    """
    A batch, parted.

    Attributes:
        changes: Those to be applied.
        events: Likewise.
        unread: Records that cannot be read.
        behind: Records of what waits behind its key.
        superseding: Keys whose rows are in the batch as they are now, at a position
            above all that waited.
        mending: Changes behind that were not set aside before: their rows as they are
            now may let their keys go. And such rows, if they were read too early.
    """

    changes: Sequence[Change]
    events: Sequence[EventRow]
    unread: frozenset[Origin]
    held_back: frozenset[Origin]
    superseding: Mapping[ParkedKey, str]
    mending: Sequence[Change] = ()


class _Step(NamedTuple):
    """
    Something that is said of a key.

    Attributes:
        is_floor: Whether it is about no row: what stands at it comes after it.
        is_unread: Whether it says nothing; to another route its record may.
        supersedes: Whether nothing below it counts any more.
    """

    position: str
    origin: Origin
    is_floor: bool = False
    is_unread: bool = False
    supersedes: bool = False

    @property
    def order(self) -> tuple[str, bool, Origin, bool]:
        """Return what steps are sorted by."""
        return self.position, not self.is_floor, self.origin, self.is_unread


class _Course(NamedTuple):
    """What a batch comes to for one key."""

    behind: frozenset[Origin]
    superseded_at: str


def hold_back_parked(
    decoded: Decoded,
    records: Sequence[Record],
    floors: Iterable[Floor],
    parked: ParkedKeys,
    rule: KeyRule,
) -> HeldBack:
    """Hold back what stands behind a key that is parked, or that this batch parks."""
    unread = frozenset(poison.origin for poison in decoded.poison)
    held = HeldBack(decoded.changes, decoded.events, unread, frozenset(), {})
    if not unread and not len(parked):
        return held
    barring = [
        (key, record)
        for record in records
        if record.origin in unread and (key := rule.key_of(record)) is not None
    ]
    behind: set[Origin] = set()
    superseding = {}
    waiting = _waiting(records, barring, parked)
    steps = _steps(decoded, waiting, rule)
    for key, record in barring:
        position = position_of(record) or ""
        if not parked.is_over(key, position):
            steps[key].append(_Step(position, record.origin, is_unread=True))
    by_topic = _by_topic(floors)
    for key, of_key in steps.items():
        above = by_topic[key.topic] if rule.is_superseded(key.topic) else []
        course = _course([*of_key, *above], parked, key)
        behind |= course.behind
        if course.superseded_at:
            superseding[key] = course.superseded_at
    return held._replace(
        changes=[c for c in decoded.changes if c.origin not in behind],
        events=[e for e in decoded.events if e.origin not in behind],
        held_back=frozenset(behind),
        superseding=superseding,
        mending=[*_mending(decoded.changes, behind, waiting, parked, rule)],
    )


def _mending(
    changes: Iterable[Change],
    behind: Collection[Origin],
    waiting: Mapping[Origin, ParkedKey],
    parked: ParkedKeys,
    rule: KeyRule,
) -> Iterator[Change]:
    """List the changes behind whose rows, as they are now, may let their keys go."""
    for change in changes:
        if change.origin in behind:
            key = waiting[change.origin]
            is_new = change.is_row_as_it_is or parked.is_new(key, change.position)
            # What is tried again by itself needs no other row.
            if is_new and rule.is_superseded(key.topic) and not parked.is_retried(key):
                yield change


def _course(steps: Iterable[_Step], parked: ParkedKeys, key: ParkedKey) -> _Course:
    """Go through what is said of a key, in the order of positions."""
    waiting = parked.waiting(key)
    lowest, highest = ("", "") if waiting is None else (waiting.lowest, waiting.highest)
    behind: set[Origin] = set()
    superseded_at = ""
    for step in sorted(steps, key=lambda one: one.order):
        if step.supersedes and step.position > highest:
            if highest and not step.is_floor:
                superseded_at = step.position
            # What waited counts no more: it is folded away.
            lowest = highest = ""
            behind.clear()
        elif step.is_unread:
            lowest = min(lowest or step.position, step.position)
            highest = max(highest, step.position)
        elif lowest and not step.is_floor and step.position >= lowest:
            behind.add(step.origin)
            highest = max(highest, step.position)
    return _Course(frozenset(behind), superseded_at)


def _steps(
    decoded: Decoded, waiting: Mapping[Origin, ParkedKey], rule: KeyRule
) -> dict[ParkedKey, list[_Step]]:
    """Sort what can be read by the keys that are parked."""
    steps: dict[ParkedKey, list[_Step]] = defaultdict(list)
    events = decoded.events if rule.orders_events else ()
    for said in chain[Change | EventRow](decoded.changes, events):
        key = waiting.get(said.origin)
        if key is not None:
            is_now = isinstance(said, Change) and said.is_row_as_it_is
            supersedes = is_now and rule.is_superseded(key.topic)
            step = _Step(said.position, said.origin, supersedes=supersedes)
            steps[key].append(step)
    return steps


def _waiting(
    records: Iterable[Record],
    barring: Iterable[tuple[ParkedKey, Record]],
    parked: ParkedKeys,
) -> dict[Origin, ParkedKey]:
    """Return the records whose keys are parked, or may be by now."""
    barred = {key for key, _ in barring}
    found = {}
    for record in records:
        key = _place(record)
        if key is not None and (key in parked or key in barred):
            found[record.origin] = key
    return found


def _by_topic(floors: Iterable[Floor]) -> dict[str, list[_Step]]:
    steps: dict[str, list[_Step]] = defaultdict(list)
    for floor in floors:
        topic = shared_topic(floor.origin.topic)
        step = _Step(floor.position, floor.origin, is_floor=True, supersedes=True)
        steps[topic].append(step)
    return steps


def _place(record: Record) -> ParkedKey | None:
    if record.key is None:
        return None
    return ParkedKey(shared_topic(record.origin.topic), record.key)


def reasons_of(
    decoded: Decoded, refused: Sequence[Refusal], held: HeldBack
) -> dict[Origin, str]:
    """Return, by record, why it is set aside; causes come before what waits."""
    reasons = {poison.origin: poison.reason for poison in decoded.poison}
    for origin in held.held_back:
        reasons.setdefault(origin, BEHIND)
    if not refused:
        return reasons
    by_key: dict[tuple[str, tuple[Value, ...]], list[Change]] = defaultdict(list)
    for change in held.changes:
        by_key[change.route, change.key].append(change)
    for refusal in refused:
        change = refusal.change
        for piece in merged_changes(change, by_key[change.route, change.key]):
            reasons[piece.origin] = refusal.reason
    return reasons


def dead_letters_of(
    records: Iterable[Record], reasons: Mapping[Origin, str], rule: KeyRule
) -> list[DeadLetter]:
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
        found.append(DeadLetter(record, reason, names, is_parking))
    return found


class ReleasedKeys:
    """
    What a batch lets go: keys by rows as they are, and by floors.

    A row that was refused supersedes nothing. Below a floor there is no row any more,
    and nothing that could be replayed.
    """

    def __init__(
        self,
        held: HeldBack,
        floors: Iterable[Floor],
        dead_letters: Iterable[DeadLetter],
        rule: KeyRule,
    ) -> None:
        self._rule = rule
        waits = held.unread | held.held_back
        refused = {x.parked for x in dead_letters if x.record.origin not in waits}
        self._rows = {k: p for k, p in held.superseding.items() if k not in refused}
        self._floors: dict[str, str] = defaultdict(str)
        for floor in floors:
            topic = shared_topic(floor.origin.topic)
            if rule.is_superseded(topic):
                self._floors[topic] = max(self._floors[topic], floor.position)

    def has(self, dead_letter: DeadLetter) -> bool:
        """Tell whether a letter of the batch is over by what the batch says above."""
        key = dead_letter.parked
        if key is None:
            return False
        above = max(self._rows.get(key, ""), self._floors.get(key.topic, ""))
        return dead_letter.position < above

    def endings(self, parked: ParkedKeys) -> list[Resolution]:
        """Return what of the parked keys is over, once the batch is durable."""
        keys = {key for key in self._rows if key in parked}
        for topic, floor in self._floors.items():
            keys.update(parked.below(topic, floor))
        return [parked.superseded(key) for key in sorted(keys)]


def merged_changes(refused: Change, changes: Iterable[Change]) -> Iterator[Change]:
    """Go from a change back to the full image, or the delete, that it rests upon."""
    below = [change for change in changes if change.position <= refused.position]
    for change in sorted(below, key=lambda c: c.position, reverse=True):
        if change.row is None and refused.row is not None:
            return
        yield change
        if not change.unchanged:
            return
