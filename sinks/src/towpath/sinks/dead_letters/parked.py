"""
Parked keys of a sink, and its open dead letters. This module does no I/O.

Only positions decide which records are parked, so that a batch repeated after a crash
leads to the same decisions. Resolutions are remembered, too: a record at or below the
position of its key's resolution is not parked when it is delivered again. The numbers
of parked keys and of remembered resolutions are bounded.

A record that was written to the dead letters twice, because its batch was repeated,
counts as one dead letter.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from towpath.sinks.change import Origin
from towpath.sinks.dead_letters.entries import (
    BEHIND,
    LATER,
    DeadLetter,
    DeadLetterRequest,
    Entry,
    ParkedKey,
    Reply,
    Resolution,
    Subject,
    subject_of,
)
from towpath.sinks.errors import TooManyParkedError

MAX_PARKED_KEYS: Final = 100_000


@dataclass(slots=True)
class ParkedRecords:
    """
    The parked records of one key.

    Attributes:
        lowest: The lowest position; the key's records from there on are parked.
        highest: The highest position of its dead letters.
        dead_letters: The number of dead letters.
        last_offsets: Per topic and partition, the offset of the last dead letter;
            records up to it are already in the dead-letter topic.
    """

    lowest: str
    highest: str
    dead_letters: int = 0
    last_offsets: dict[tuple[str, int], int] = field(default_factory=dict)


class ParkedKeys:
    """The parked keys of one sink."""

    def __init__(self, max_keys: int = MAX_PARKED_KEYS) -> None:
        self._max_keys = max_keys
        self._waiting: dict[ParkedKey, ParkedRecords] = {}
        self._resolved: dict[ParkedKey, str] = {}
        self._retried: set[ParkedKey] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, parked: ParkedKey) -> bool:
        return parked in self._waiting

    def keys(self) -> frozenset[ParkedKey]:
        """Return all parked keys."""
        return frozenset(self._waiting)

    def retried_keys(self) -> frozenset[ParkedKey]:
        """Return the keys that are retried automatically."""
        return frozenset(self._retried)

    def waiting(self, parked: ParkedKey) -> ParkedRecords | None:
        """Return the parked records of a key."""
        return self._waiting.get(parked)

    def restore(self, entries: Iterable[Entry]) -> None:
        """
        Restore the state from the entries of the topic, oldest first.

        Raises:
            TooManyParkedError: More keys are parked than can be kept in memory.
        """
        for entry in entries:
            if isinstance(entry, DeadLetter):
                self.park(entry)
            elif isinstance(entry, Resolution):
                self.resolve(entry)
        self.check(())

    def check(self, dead_letters: Iterable[DeadLetter]) -> None:
        """
        Check that dead letters can be parked in addition to those already parked.

        Raises:
            TooManyParkedError: More keys are parked than can be kept in memory.
        """
        # Not a set difference, which would iterate over all parked keys.
        new = {
            parked
            for dead_letter in dead_letters
            if (parked := dead_letter.parked) is not None
            and parked not in self._waiting
        }
        count = len(self._waiting) + len(new)
        if count > self._max_keys:
            message = f"{count:,} keys of the sink are parked behind dead letters"
            raise TooManyParkedError(message)

    def park(self, dead_letter: DeadLetter) -> None:
        """Park the key of a dead letter that is durable."""
        parked = dead_letter.parked
        if parked is None or self.is_resolved(parked, dead_letter.position):
            return
        position, origin = dead_letter.position, dead_letter.record.origin
        if dead_letter.reason.startswith(LATER):
            self._retried.add(parked)
        elif dead_letter.reason != BEHIND:
            self._retried.discard(parked)
        waiting = self._waiting.setdefault(parked, ParkedRecords(position, position))
        if not self.has(dead_letter):
            waiting.dead_letters += 1
        if position < waiting.lowest:
            # The records in between are not in the topic: the offsets start over.
            waiting.lowest = position
            waiting.last_offsets.clear()
        waiting.highest = max(waiting.highest, position)
        partition = (origin.topic, origin.partition)
        last = waiting.last_offsets.get(partition, -1)
        waiting.last_offsets[partition] = max(last, origin.offset)

    def resolve(self, resolution: Resolution) -> None:
        """Release a key whose records are resolved up to a position."""
        subject = resolution.subject
        if subject.at is not None or subject.key is None:
            return
        parked = ParkedKey(subject.topic, subject.key)
        waiting = self._waiting.get(parked)
        if waiting is not None and waiting.highest <= resolution.position:
            del self._waiting[parked]
            self._retried.discard(parked)
        before = self._resolved.pop(parked, "")
        self._resolved[parked] = max(before, resolution.position)
        if len(self._resolved) > self._max_keys:
            del self._resolved[next(iter(self._resolved))]

    def has(self, dead_letter: DeadLetter) -> bool:
        """Return whether a dead letter is already in the topic."""
        parked, origin = dead_letter.parked, dead_letter.record.origin
        waiting = None if parked is None else self._waiting.get(parked)
        # Offsets say nothing about other positions: a recreated topic restarts them.
        if waiting is None or not (
            waiting.lowest <= dead_letter.position <= waiting.highest
        ):
            return False
        partition = (origin.topic, origin.partition)
        return origin.offset <= waiting.last_offsets.get(partition, -1)

    def is_retried(self, parked: ParkedKey) -> bool:
        """Return whether a key is retried automatically."""
        return parked in self._retried

    def is_new(self, parked: ParkedKey, position: str) -> bool:
        """Return whether a key has no dead letter at or above a position."""
        waiting = self._waiting.get(parked)
        return waiting is None or position > waiting.highest

    def is_resolved(self, parked: ParkedKey, position: str) -> bool:
        """Return whether a position is at or below that of its key's resolution."""
        return position <= self._resolved.get(parked, "")

    def below(self, topic: str, floor: str) -> list[ParkedKey]:
        """Return the keys of a topic whose parked records are all below a floor."""
        return [
            parked
            for parked, waiting in self._waiting.items()
            if parked.topic == topic and waiting.highest < floor
        ]

    def lowest(self) -> str | None:
        """Return the lowest parked position, if there is one."""
        return min((w.lowest for w in self._waiting.values()), default=None)

    def superseded(self, parked: ParkedKey) -> Resolution:
        """Return the resolution for a key superseded by a snapshot's row or a floor."""
        highest = self._waiting[parked].highest
        return Resolution(
            Subject(*parked), highest, "superseded by a snapshot's row or by a floor"
        )


@dataclass(slots=True)
class OpenDeadLetters:
    """
    The open dead letters by subject, in the order of their records.

    Attributes:
        wanted: Subjects whose dead letters are kept; ``None`` for all. A topic may hold
            more dead letters than fit into memory.
        requests: The requests without a resolution or a reply.
    """

    wanted: frozenset[Subject] | None = None
    dead_letters: dict[Subject, dict[Origin, DeadLetter]] = field(default_factory=dict)
    requests: dict[str, DeadLetterRequest] = field(default_factory=dict)
    replies: dict[str, Resolution | Reply] = field(default_factory=dict)
    _resolved: dict[Subject, str] = field(default_factory=dict)

    def read(self, entries: Iterable[Entry]) -> "OpenDeadLetters":
        """Add the entries of the topic, oldest first; return this object."""
        for entry in entries:
            if isinstance(entry, DeadLetter):
                self._open(entry)
            elif isinstance(entry, Resolution):
                self._close(entry)
                self._close_request(entry)
            elif isinstance(entry, DeadLetterRequest):
                self.requests[entry.id] = entry
            else:
                self._close_request(entry)
        return self

    def of(self, subject: Subject) -> list[DeadLetter]:
        """Return a subject's open dead letters, in the order of their replay."""
        found = self.dead_letters.get(subject, {}).values()
        return sorted(found, key=lambda dead_letter: dead_letter.position)

    def resolutions(self) -> list[Resolution]:
        """Return the highest resolution of each wanted subject that has one."""
        return [Resolution(subject, at, "") for subject, at in self._resolved.items()]

    def _open(self, dead_letter: DeadLetter) -> None:
        subject = subject_of(dead_letter)
        if self.wanted is not None and subject not in self.wanted:
            return
        # The dead letter remains resolved: its position is not above the resolution's.
        if (
            subject in self._resolved
            and dead_letter.position <= self._resolved[subject]
        ):
            return
        self.dead_letters.setdefault(subject, {})[dead_letter.record.origin] = (
            dead_letter
        )

    def _close(self, resolution: Resolution) -> None:
        if self.wanted is not None and resolution.subject not in self.wanted:
            return
        kept = {
            origin: dead_letter
            for origin, dead_letter in self.dead_letters.pop(
                resolution.subject, {}
            ).items()
            if dead_letter.position > resolution.position
        }
        if kept:
            self.dead_letters[resolution.subject] = kept
        before = self._resolved.get(resolution.subject, "")
        self._resolved[resolution.subject] = max(before, resolution.position)

    def _close_request(self, entry: Resolution | Reply) -> None:
        if entry.request_id:
            self.requests.pop(entry.request_id, None)
            self.replies[entry.request_id] = entry
