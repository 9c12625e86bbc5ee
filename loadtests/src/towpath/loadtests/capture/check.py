"""
Checks a topic against the table and against the committed changes; does no I/O.

The check answers three questions, each key by key:

- Does a reader that applies every record in the order of the topic end up with the rows
  of the table? A key can be *missing*, a *ghost* (deleted in the table, but not in the
  topic), or *stale*.
- Did every committed change arrive? One that never did is *unseen*, even if a later
  change to its key made up for it. A record can also be a *duplicate*, or *unknown*:
  its change was never committed.
- Did the changes to a key arrive in the order of their commits? One that first arrives
  after a later change to its key is *disordered*.

A change that leaves a row is recognized by its number. A delete has no number: a
key's first record of a delete is matched with its first delete, and so on.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from towpath.loadtests.bench.figures import latency_ms
from towpath.loadtests.capture import DELETE, RowImage, TopicRecord

MISSING: Final = "missing"
GHOST: Final = "ghost"
STALE: Final = "stale"
UNSEEN: Final = "unseen"
DISORDERED: Final = "disordered"

# A change to a key, by its number, or by its index among the key's deletes.
_Identity = tuple[int, str, int]


class CommittedChange(NamedTuple):
    """One committed change; ``number`` is ``None`` for a delete."""

    key: int
    operation: str
    number: int | None
    committed_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureCheck:
    """
    The counts of one method; all are zero if each change arrived once and in order.

    Attributes:
        missing: Keys of the table that a reader of the topic does not have.
        ghosts: Deleted keys that a reader of the topic still has.
        stale: Keys for which a reader has an older row.
        wrong_by_version: Keys that are missing, ghosts or stale for a reader that keeps
            the record with the highest version instead of the last one.
        unseen: Changes that never arrived, including those of the next two counts.
        unseen_deletes: Deletes that never arrived.
        unseen_late: Unseen changes of the transactions that the load and the
            scenario ``late`` held open.
        disordered: Changes that arrived after a later change to their key.
        duplicates: Records of changes, except deletes, that had arrived before.
        unknown: Records of changes that were never committed, and repeated records of a
            delete.
    """

    missing: int
    ghosts: int
    stale: int
    wrong_by_version: int
    unseen: int
    unseen_deletes: int
    unseen_late: int
    disordered: int
    duplicates: int
    unknown: int

    @property
    def is_clean(self) -> bool:
        """Whether nothing is missed, repeated or out of order."""
        return not any(self.counts().values())

    def counts(self) -> dict[str, int]:
        """Return each count by its name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


class _Arrivals(NamedTuple):
    """
    The arrivals, matched with the committed changes.

    Attributes:
        first: The first record of each committed change that arrived.
        disordered: The changes that arrived after a later change to their key.
    """

    first: Mapping[_Identity, TopicRecord]
    disordered: tuple[_Identity, ...]
    duplicates: int
    unknown: int


class CaptureHistory:
    """
    The committed changes, the final table and the topic of one method.

    Args:
        committed: The committed changes in the order of their commits.
        table: The rows of the table at the end.
        topic: The records; those of a partition in the order of their offsets.
    """

    def __init__(
        self,
        committed: Sequence[CommittedChange],
        table: Mapping[int, RowImage],
        topic: Sequence[TopicRecord],
    ) -> None:
        self._committed = dict(_identified(committed))
        self._table = table
        self._topic = topic
        self._arrived = self._match()
        self._wrong = self._wrong_keys(by_version=False)

    def check(self, late: frozenset[int] = frozenset()) -> CaptureCheck:
        """
        Count everything that is wrong.

        Args:
            late: The numbers of the changes that ``unseen_late`` counts if unseen.
        """
        kinds = Counter(self._wrong.values())
        unseen = self._unseen()
        return CaptureCheck(
            missing=kinds[MISSING],
            ghosts=kinds[GHOST],
            stale=kinds[STALE],
            wrong_by_version=len(self._wrong_keys(by_version=True)),
            unseen=len(unseen),
            unseen_deletes=sum(one.operation == DELETE for one in unseen),
            unseen_late=sum(one.number in late for one in unseen),
            disordered=len(self._arrived.disordered),
            duplicates=self._arrived.duplicates,
            unknown=self._arrived.unknown,
        )

    def wrong(self, keys: Iterable[int]) -> tuple[str, ...]:
        """Return the kinds of fault found at any of these keys, each once."""
        wanted = set(keys)
        found = {kind for key, kind in self._wrong.items() if key in wanted}
        if any(one.key in wanted for one in self._unseen()):
            found.add(UNSEEN)
        if any(key in wanted for key, _, _ in self._arrived.disordered):
            found.add(DISORDERED)
        return tuple(sorted(found))

    def lags_ms(self, since_us: int) -> list[float]:
        """Return the lags in ms of the changes committed at or after ``since_us``."""
        return [
            latency_ms(self._committed[identity][1].committed_us, record.appended_ms)
            for identity, record in self._arrived.first.items()
            if self._committed[identity][1].committed_us >= since_us
        ]

    def _match(self) -> _Arrivals:
        first: dict[_Identity, TopicRecord] = {}
        newest: dict[int, int] = {}
        disordered = []
        duplicates = unknown = 0
        for identity, record in _arrived(self._topic):
            if identity in first:
                duplicates += 1
            elif identity not in self._committed:
                unknown += 1
            else:
                first[identity] = record
                ordinal, change = self._committed[identity]
                if ordinal < newest.get(change.key, -1):
                    disordered.append(identity)
                newest[change.key] = max(newest.get(change.key, -1), ordinal)
        return _Arrivals(first, tuple(disordered), duplicates, unknown)

    def _unseen(self) -> list[CommittedChange]:
        return [
            change
            for identity, (_, change) in self._committed.items()
            if identity not in self._arrived.first
        ]

    def _wrong_keys(self, *, by_version: bool) -> dict[int, str]:
        """Return how a reader differs from the table, by key."""
        read = folded(self._topic, by_version=by_version)
        wrong = dict.fromkeys(self._table.keys() - read.keys(), MISSING)
        wrong |= dict.fromkeys(read.keys() - self._table.keys(), GHOST)
        both = self._table.keys() & read.keys()
        stale = (key for key in both if self._table[key] != read[key])
        return wrong | dict.fromkeys(stale, STALE)


def folded(topic: Iterable[TopicRecord], *, by_version: bool) -> dict[int, RowImage]:
    """
    Return the rows that a reader of the topic has at its end.

    Args:
        topic: The records; those of a partition in the order of their offsets.
        by_version: Whether a record with a lower version than the last one of its key
            is ignored.
    """
    rows: dict[int, RowImage | None] = {}
    versions: dict[int, str] = {}
    for _, _, _, record in topic:
        if by_version and record.version < versions.get(record.key, ""):
            continue
        rows[record.key] = record.image
        versions[record.key] = record.version
    return {key: image for key, image in rows.items() if image is not None}


def rows_after(committed: Iterable[CommittedChange]) -> dict[int, int]:
    """Return, for each row that the changes leave, the number of its last change."""
    rows: dict[int, int] = {}
    for change in committed:
        if change.number is None:
            rows.pop(change.key, None)
        else:
            rows[change.key] = change.number
    return rows


def _identified(
    committed: Iterable[CommittedChange],
) -> Iterator[tuple[_Identity, tuple[int, CommittedChange]]]:
    """Yield each change with its identity and its ordinal in commit order."""
    deletes: dict[int, int] = defaultdict(int)
    for ordinal, change in enumerate(committed):
        if change.number is None:
            yield (change.key, DELETE, deletes[change.key]), (ordinal, change)
            deletes[change.key] += 1
        else:
            yield (change.key, "", change.number), (ordinal, change)


def _arrived(topic: Iterable[TopicRecord]) -> Iterator[tuple[_Identity, TopicRecord]]:
    """Yield each record with the identity of its change."""
    deletes: dict[int, int] = defaultdict(int)
    for one in topic:
        key, _, image, _ = one.record
        if image is None:
            yield (key, DELETE, deletes[key]), one
            deletes[key] += 1
        else:
            yield (key, "", image.change), one
