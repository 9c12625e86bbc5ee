"""
Hold back the records of a batch that follow an older dead letter of their key.

Only positions decide, so that the outcome does not depend on how records are split into
batches. A key may have been parked long ago, or by an unreadable record of this batch.
The records of a key are checked in the order of positions: an unreadable one parks the
key, and later ones are held back. A whole row from a snapshot, or a floor, supersedes
them if it is above all of them; this releases the key, until another record parks it
again. Events are never superseded: a row does not replace them.

A refused change may have been folded from several records. Each of them becomes a dead
letter, because each is needed for a replay. No I/O.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from towpath.settings import RouteKind
from towpath.sinks.change import Change, EventRow, Floor, Origin, Record, Refusal, Value
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
from towpath.sinks.fold import highest_per_route


class KeyRule(NamedTuple):
    """
    Decides which keys are kept in order, and which rows supersede their dead letters.

    Attributes:
        orders_events: Whether the events of a log are delivered in order per key.
    """

    routes: Routes
    orders_events: bool = False

    def key_of(self, record: Record) -> ParkedKey | None:
        """Return the key, if any, that a record parks if it becomes a dead letter."""
        reading = self.routes.reading(record.origin.topic)
        is_ordered = any(
            self.orders_events or route.kind is not RouteKind.EVENT_LOG
            for route, _ in reading
        )
        if not is_ordered or not position_of(record):
            return None
        return _parked_key(record)

    def is_superseded(self, topic: str) -> bool:
        """Return whether a row may supersede the dead letters of a topic."""
        reading = self.routes.reading(topic)
        return all(route.kind is not RouteKind.EVENT_LOG for route, _ in reading)


class HeldBack(NamedTuple):
    """
    A batch without the records that are held back.

    Attributes:
        changes: The changes to be applied.
        events: The events to be applied.
        unreadable: Records that cannot be read.
        held_back: Records behind a dead letter of their key.
        superseding: Keys with a whole row from a snapshot above all their dead letters;
            each with that row's position.
        refetch_candidates: Changes held back for the first time, and rows from
            snapshots that were read too early: a refetch of their row may release the
            key.
    """

    changes: Sequence[Change]
    events: Sequence[EventRow]
    unreadable: frozenset[Origin]
    held_back: frozenset[Origin]
    superseding: Mapping[ParkedKey, str]
    refetch_candidates: Sequence[Change] = ()


class _Step(NamedTuple):
    """
    A record or a floor that concerns a key.

    Attributes:
        is_floor: Whether it is a floor; a record at its position sorts after it.
        is_unreadable: Whether a route cannot read it; another route may be able to.
        supersedes: Whether it makes every lower record irrelevant.
    """

    position: str
    origin: Origin
    is_floor: bool = False
    is_unreadable: bool = False
    supersedes: bool = False

    @property
    def order(self) -> tuple[str, bool, Origin, bool]:
        """The sort key."""
        return self.position, not self.is_floor, self.origin, self.is_unreadable


class _KeyOutcome(NamedTuple):
    """The outcome of a batch for one key."""

    behind: frozenset[Origin]
    superseded_at: str


def hold_back_parked(
    decoded: Decoded,
    records: Sequence[Record],
    floors: Iterable[Floor],
    parked: ParkedKeys,
    rule: KeyRule,
) -> HeldBack:
    """Hold back the records of parked keys, including keys that this batch parks."""
    unreadable = frozenset(record.origin for record in decoded.unreadable)
    held = HeldBack(decoded.changes, decoded.events, unreadable, frozenset(), {})
    if not unreadable and not len(parked):
        return held
    blocking = [
        (key, record)
        for record in records
        if record.origin in unreadable and (key := rule.key_of(record)) is not None
    ]
    behind: set[Origin] = set()
    superseding = {}
    waiting = _waiting(records, blocking, parked)
    steps = _steps(decoded, waiting, rule)
    for key, record in blocking:
        position = position_of(record) or ""
        if not parked.is_resolved(key, position):
            steps[key].append(_Step(position, record.origin, is_unreadable=True))
    by_topic = _by_topic(_shared_floors(floors, rule))
    for key, key_steps in steps.items():
        above = by_topic[key.topic] if rule.is_superseded(key.topic) else []
        outcome = _outcome([*key_steps, *above], parked, key)
        behind |= outcome.behind
        if outcome.superseded_at:
            superseding[key] = outcome.superseded_at
    return held._replace(
        changes=[c for c in decoded.changes if c.origin not in behind],
        events=[e for e in decoded.events if e.origin not in behind],
        held_back=frozenset(behind),
        superseding=superseding,
        refetch_candidates=[
            *_refetch_candidates(decoded.changes, behind, waiting, parked, rule)
        ],
    )


def _refetch_candidates(
    changes: Iterable[Change],
    behind: Collection[Origin],
    waiting: Mapping[Origin, ParkedKey],
    parked: ParkedKeys,
    rule: KeyRule,
) -> Iterator[Change]:
    """Yield the held-back changes for which a refetched row can release the key."""
    for change in changes:
        if change.origin in behind:
            key = waiting[change.origin]
            is_new = change.is_row_as_it_is or parked.is_new(key, change.position)
            # A key that is retried automatically needs no refetch.
            if is_new and rule.is_superseded(key.topic) and not parked.is_retried(key):
                yield change


def _outcome(steps: Iterable[_Step], parked: ParkedKeys, key: ParkedKey) -> _KeyOutcome:
    """Process the steps of a key in the order of positions."""
    waiting = parked.waiting(key)
    lowest, highest = ("", "") if waiting is None else (waiting.lowest, waiting.highest)
    behind: set[Origin] = set()
    superseded_at = ""
    for step in sorted(steps, key=lambda one: one.order):
        if step.supersedes and step.position > highest:
            if highest and not step.is_floor:
                superseded_at = step.position
            # The records below it are folded away.
            lowest = highest = ""
            behind.clear()
        elif step.is_unreadable:
            lowest = min(lowest or step.position, step.position)
            highest = max(highest, step.position)
        elif lowest and not step.is_floor and step.position >= lowest:
            behind.add(step.origin)
            highest = max(highest, step.position)
    return _KeyOutcome(frozenset(behind), superseded_at)


def _steps(
    decoded: Decoded, waiting: Mapping[Origin, ParkedKey], rule: KeyRule
) -> dict[ParkedKey, list[_Step]]:
    """Group the readable changes and events by their parked keys."""
    steps: dict[ParkedKey, list[_Step]] = defaultdict(list)
    events = decoded.events if rule.orders_events else ()
    for item in chain[Change | EventRow](decoded.changes, events):
        key = waiting.get(item.origin)
        if key is not None:
            is_snapshot_row = isinstance(item, Change) and item.is_row_as_it_is
            supersedes = is_snapshot_row and rule.is_superseded(key.topic)
            step = _Step(item.position, item.origin, supersedes=supersedes)
            steps[key].append(step)
    return steps


def _waiting(
    records: Iterable[Record],
    blocking: Iterable[tuple[ParkedKey, Record]],
    parked: ParkedKeys,
) -> dict[Origin, ParkedKey]:
    """Map the origins of records to their keys if those are, or will be, parked."""
    blocked = {key for key, _ in blocking}
    found = {}
    for record in records:
        key = _parked_key(record)
        if key is not None and (key in parked or key in blocked):
            found[record.origin] = key
    return found


def _shared_floors(floors: Iterable[Floor], rule: KeyRule) -> list[Floor]:
    """
    Return the floors that hold for every route of their topic.

    A floor of one route supersedes no dead letter of another: a TRUNCATE deletes
    nothing from a route with ``on_truncate = "keep"``.
    """
    by_topic: dict[str, list[Floor]] = defaultdict(list)
    for floor in floors:
        by_topic[shared_topic(floor.origin.topic)].append(floor)
    shared: list[Floor] = []
    for topic, found in by_topic.items():
        highest = highest_per_route(found)
        routes = {route.name for route, _ in rule.routes.reading(topic)}
        least = min((highest.get(route, "") for route in routes), default="")
        shared += [floor for floor in found if floor.position <= least]
    return shared


def _by_topic(floors: Iterable[Floor]) -> dict[str, list[_Step]]:
    steps: dict[str, list[_Step]] = defaultdict(list)
    for floor in floors:
        topic = shared_topic(floor.origin.topic)
        step = _Step(floor.position, floor.origin, is_floor=True, supersedes=True)
        steps[topic].append(step)
    return steps


def _parked_key(record: Record) -> ParkedKey | None:
    if record.key is None:
        return None
    return ParkedKey(shared_topic(record.origin.topic), record.key)


def reasons_of(
    decoded: Decoded, refused: Sequence[Refusal], held: HeldBack
) -> dict[Origin, str]:
    """
    Return the reason of each record that is a dead letter.

    The reason of an unreadable record takes precedence over being held back.
    """
    reasons = {record.origin: record.reason for record in decoded.unreadable}
    for origin in held.held_back:
        reasons.setdefault(origin, BEHIND)
    if not refused:
        return reasons
    by_key: dict[tuple[str, tuple[Value, ...]], list[Change]] = defaultdict(list)
    for change in held.changes:
        by_key[change.route, change.key].append(change)
    for refusal in refused:
        change = refusal.change
        for merged in merged_changes(change, by_key[change.route, change.key]):
            reasons[merged.origin] = refusal.reason
    return reasons


def dead_letters_of(
    records: Iterable[Record], reasons: Mapping[Origin, str], rule: KeyRule
) -> list[DeadLetter]:
    """Return the dead letters of a batch, in the order of its records."""
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
    Keys that a batch releases: by whole rows from snapshots, and by floors.

    A row that was refused releases nothing. Below a floor, no row remains that a replay
    could change.
    """

    def __init__(
        self,
        held: HeldBack,
        floors: Iterable[Floor],
        dead_letters: Iterable[DeadLetter],
        rule: KeyRule,
    ) -> None:
        self._rule = rule
        waits = held.unreadable | held.held_back
        refused = {x.parked for x in dead_letters if x.record.origin not in waits}
        self._rows = {k: p for k, p in held.superseding.items() if k not in refused}
        self._floors: dict[str, str] = defaultdict(str)
        for floor in _shared_floors(floors, rule):
            topic = shared_topic(floor.origin.topic)
            if rule.is_superseded(topic):
                self._floors[topic] = max(self._floors[topic], floor.position)

    def has(self, dead_letter: DeadLetter) -> bool:
        """Return whether the batch itself supersedes one of its dead letters."""
        key = dead_letter.parked
        if key is None:
            return False
        above = max(self._rows.get(key, ""), self._floors.get(key.topic, ""))
        return dead_letter.position < above

    def resolutions(self, parked: ParkedKeys) -> list[Resolution]:
        """Return the resolutions of the released keys, to be stored after the batch."""
        keys = {key for key in self._rows if key in parked}
        for topic, floor in self._floors.items():
            keys.update(parked.below(topic, floor))
        return [parked.superseded(key) for key in sorted(keys)]


def merged_changes(refused: Change, changes: Iterable[Change]) -> Iterator[Change]:
    """Yield a change and those below it, down to a full image or a delete."""
    below = [change for change in changes if change.position <= refused.position]
    for change in sorted(below, key=lambda c: c.position, reverse=True):
        if change.row is None and refused.row is not None:
            return
        yield change
        if not change.unchanged:
            return
