"""
Whether a topic holds a table: every key, its last value, and nothing stale. Pure.

The fold is what any reader does: of each key, the record that stands last in its
partition. A row that was read from the table is *stale* if it is older than a change of
the same key that stands before it: by the row's version, and for records that carry
positions by these too.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_NONE: Final = -1


class Delivered(NamedTuple):
    """
    One record of the topic.

    ``log_lsn`` is the log position of its header, 0 without one; ``is_read`` tells the
    rows that were read from the table from the changes that were streamed.
    """

    partition: int
    key: int
    version: int
    digest: int
    is_read: bool
    appended_ms: int
    log_lsn: int = 0


class Expected(NamedTuple):
    """
    What there ought to be.

    Attributes:
        digests: The table's rows at the end, by id; ids count from one.
        updates: When each update was committed (us), by id and version.
        is_initial: Whether what was committed before a row was first read need not be
            streamed.
    """

    digests: "array[int]"
    updates: Mapping[tuple[int, int], int]
    is_initial: bool = False


class Verdict(NamedTuple):
    """
    How many rows there ought to be, and what is wrong with those that are there.

    ``lost`` keys are not in the topic at all, ``missing`` updates neither; ``changed``
    keys end with another value than the table's; ``stale`` are rows read that are older
    than what stands before them, ``outdated`` the keys that end with one of these, and
    ``overtaken`` updates that a newer row that was read stands before.
    ``repeated`` updates stand there twice, ``disordered`` ones behind a newer one or in
    a second partition, and ``unknown`` records have a key or a version that never was.
    """

    rows: int
    lost: int = 0
    missing: int = 0
    changed: int = 0
    stale: int = 0
    outdated: int = 0
    overtaken: int = 0
    repeated: int = 0
    disordered: int = 0
    unknown: int = 0

    @property
    def forgiven(self) -> "Verdict":
        """The verdict without what is stale: with others that is a figure."""
        return self._replace(stale=0, outdated=0, overtaken=0)

    def findings(self) -> tuple[str, ...]:
        """Name what is wrong."""
        return tuple(
            f"{count:,} {name}"
            for name, count in self._asdict().items()
            if name != "rows" and count
        )


@dataclass(slots=True)
class Notes:
    """
    What was seen of a topic besides its contents.

    Attributes:
        read_at_ms: When each row that was read was appended, as the records came.
        updated_at: When each update was committed (us) and appended (ms).
    """

    read_at_ms: "array[int]" = field(default_factory=lambda: array("q"))
    updated_at: list[tuple[int, int]] = field(default_factory=list)


class Judge:
    """Takes a topic's records, each partition's in order. Call order: take*, close."""

    def __init__(self, expected: Expected) -> None:
        self.notes = Notes()
        self._expected = expected
        count = len(expected.digests)
        self._home = array("b", (_NONE,)) * count
        self._streamed_version = array("i", (_NONE,)) * count
        self._read_version = array("i", (_NONE,)) * count
        self._digest = array("q", (0,)) * count
        self._streamed_lsn = array("Q", (0,)) * count
        self._stale_last = bytearray(count)
        # The version of a key's first record, if that was a row that was read.
        self._first_read = array("i", (_NONE,)) * count
        self._streamed: set[tuple[int, int]] = set()
        self._stale = self._overtaken = self._repeated = 0
        self._disordered = self._unknown = 0

    def take(self, record: Delivered) -> None:
        """Take the next record."""
        key = record.key
        if not 0 < key < len(self._home):
            self._unknown += 1
            return
        if self._home[key] == _NONE:
            self._home[key] = record.partition
            self._first_read[key] = record.version if record.is_read else _NONE
        elif self._home[key] != record.partition:
            self._disordered += 1
        if record.is_read:
            self._read(record)
        else:
            self._update(record)
        self._digest[key] = record.digest

    def close(self) -> Verdict:
        """Compare what is there with what ought to be."""
        digests = self._expected.digests
        lost = changed = outdated = 0
        for key in range(1, len(digests)):
            if self._home[key] == _NONE:
                lost += 1
            elif self._digest[key] != digests[key]:
                if self._stale_last[key]:
                    outdated += 1
                else:
                    changed += 1
        return Verdict(
            rows=len(digests) - 1,
            lost=lost,
            missing=sum(self._is_missing(one) for one in self._expected.updates),
            changed=changed,
            stale=self._stale,
            outdated=outdated,
            overtaken=self._overtaken,
            repeated=self._repeated,
            disordered=self._disordered,
            unknown=self._unknown,
        )

    def _read(self, record: Delivered) -> None:
        key = record.key
        self.notes.read_at_ms.append(record.appended_ms)
        # A row that was read stands below the changes of a commit at the same place.
        is_older = 0 < record.log_lsn <= self._streamed_lsn[key]
        is_stale = is_older or record.version < self._streamed_version[key]
        self._read_version[key] = record.version
        self._stale += is_stale
        self._stale_last[key] = is_stale

    def _update(self, record: Delivered) -> None:
        key, version = record.key, record.version
        committed_us = self._expected.updates.get((key, version))
        if committed_us is None:
            self._unknown += 1
            return
        if (key, version) in self._streamed:
            self._repeated += 1
            return
        self._streamed.add((key, version))
        self._stale_last[key] = False
        self._disordered += (
            version < self._streamed_version[key]
            or record.log_lsn < self._streamed_lsn[key]
        )
        self._overtaken += version < self._read_version[key]
        self._streamed_version[key] = version
        self._streamed_lsn[key] = max(self._streamed_lsn[key], record.log_lsn)
        self.notes.updated_at.append((committed_us, record.appended_ms))

    def _is_missing(self, update: tuple[int, int]) -> bool:
        key, version = update
        if update in self._streamed:
            return False
        is_covered = self._first_read[key] >= version
        return not (self._expected.is_initial and is_covered)


def judge(expected: Expected, records: Iterable[Delivered]) -> tuple[Verdict, Notes]:
    """Compare a topic with what ought to be in it; return what was noted besides."""
    one = Judge(expected)
    for record in records:
        one.take(record)
    return one.close(), one.notes
