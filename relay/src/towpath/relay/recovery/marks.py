"""
Marks: the progress of each partition, so that no record is published twice.

A *mark* means that every streamed record of its partition up to ``position`` is below
``next_offset``. Marks are written while records flow, so they lag a little; after a
crash each partition is read from its mark to its end, which makes the mark exact.
Positions of streamed records only rise within a partition, because one idempotent
producer writes them in the stream's order; so the last position covers all before it.
READ rows are outside that order and move only ``next_offset``.

A record's partition depends on the partition count, which is the number of marks. When
an operator lets a topic use added partitions, a position separates the former count
from the new one (``FormerCount``), so that a replay chooses the same partitions.

This module does no I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from towpath.relay.encode.record import Acknowledgement, Partition
from towpath.relay.errors import PartitionCountChangedError, TopicTruncatedError
from towpath.schemas.position import parse_position


class Mark(NamedTuple):
    """
    The position and offset of a partition.

    ``position`` is that of the last streamed record, as text; None if there is none
    yet.
    """

    next_offset: int
    position: bytes | None


TopicMarks = Mapping[int, Mark]


class FormerCount(NamedTuple):
    """
    A topic's partition count before partitions were added.

    Attributes:
        partition_count: The former number of partitions.
        until: The last position at which it applies, as text.
    """

    partition_count: int
    until: bytes


# By topic, the former counts in the order of their positions.
FormerCounts = Mapping[str, tuple[FormerCount, ...]]
NO_FORMER_COUNTS: Final[FormerCounts] = MappingProxyType({})
_FORMER: Final = "former"


class Confirmed(NamedTuple):
    """
    A checkpoint; stored before its LSN is confirmed to Postgres.

    Attributes:
        lsn: The LSN to confirm to Postgres.
        log_lsn: The same LSN with the lineage's offset added.
        published_log_lsn: The highest log LSN of any record, READ rows included.
        heartbeat: The highest heartbeat counter that was streamed; 0 if none was.
        is_clean: Whether the relay stopped with nothing in flight.
        at: The time, as RFC 3339.
        following_heartbeat: The counter of a heartbeat that was streamed after the
            last published record; None if there was none, or if an earlier release
            stored the checkpoint.
    """

    lsn: int
    log_lsn: int
    published_log_lsn: int
    heartbeat: int
    is_clean: bool
    at: str
    following_heartbeat: int | None = None

    def moved_back(self, lsn: int) -> "Confirmed":
        """Return the checkpoint at a lower LSN; it is not clean, as a run has begun."""
        log_lsn = self.log_lsn - self.lsn + lsn
        return self._replace(lsn=lsn, log_lsn=log_lsn, is_clean=False)

    def heartbeat_after(self, log_lsn: int) -> int | None:
        """Return a counter streamed after a published log LSN; None if not known."""
        is_known = log_lsn <= self.published_log_lsn
        return self.following_heartbeat if is_known else None


class Marks:
    """The current marks of every topic."""

    def __init__(
        self,
        known: Mapping[str, TopicMarks],
        former: FormerCounts = NO_FORMER_COUNTS,
    ) -> None:
        self._marks = {topic: dict(marks) for topic, marks in known.items()}
        self._former = dict(former)
        # By partition and whether the rows are READ: the last acknowledged offset.
        self._last_offsets: dict[tuple[Partition, bool], int] = {}

    def knows(self, topic: str) -> bool:
        """Return whether the topic has its first mark."""
        return topic in self._marks

    def begin(self, topic: str, ends: Mapping[int, int]) -> None:
        """Set the first marks of a topic, from the end offset of each partition."""
        self._marks[topic] = {at: Mark(end, None) for at, end in ends.items()}

    def forget_former(self, topic: str, log_lsn: int) -> bool:
        """Forget former counts below ``log_lsn``; return False if still needed."""
        former = self._former.get(topic, ())
        if former and parse_position(former[-1].until.decode()).log_lsn >= log_lsn:
            return False
        self._former.pop(topic, None)
        return True

    def document(self, topic: str) -> dict[str, Any]:
        """Return a topic's marks as a document of the state topic."""
        return marks_document(self._marks[topic], self._former.get(topic, ()))

    def check_count(self, topic: str, count: int) -> None:
        """
        Check that a topic has as many partitions as marks.

        Raises:
            PartitionCountChangedError: The count has changed.
        """
        marks = self._marks.get(topic)
        if marks is not None and len(marks) != count:
            reason = f"topic {topic} changed from {len(marks)} to {count} partitions"
            raise PartitionCountChangedError(reason)

    def move(
        self,
        ordered: Mapping[Partition, tuple[bytes, Acknowledgement]],
        unordered: Mapping[Partition, Acknowledgement],
    ) -> frozenset[str]:
        """
        Move marks to acknowledged records; return the topics whose marks moved.

        Raises:
            PartitionCountChangedError: Partitions were added to a topic.
            TopicTruncatedError: A topic was deleted and recreated.
        """
        moved: set[str] = set()
        for at, (position, place) in ordered.items():
            moved.update(self._move_mark(at, place.offset(), position))
        for at, place in unordered.items():
            moved.update(self._move_mark(at, place.offset(), None))
        return frozenset(moved)

    def _move_mark(
        self,
        at: Partition,
        offset: int | None,
        position: bytes | None,
    ) -> Iterable[str]:
        topic, partition = at
        marks = self._marks.get(topic or "")
        if marks is None or partition is None or offset is None or topic is None:
            return ()
        before = marks.get(partition)
        if before is None:
            # Partitions were added meanwhile: keys would change their partition.
            reason = f"topic {topic} changed from {len(marks)} to more partitions"
            raise PartitionCountChangedError(reason)
        # The acknowledgements of streamed records and of READ rows are collected
        # separately, so offsets only rise within each kind.
        kind = at, position is None
        last = self._last_offsets.get(kind, offset)
        if offset < last:
            reason = (
                f"partition {partition} of {topic} assigned offset {offset} after "
                f"offset {last}: the topic was recreated"
            )
            raise TopicTruncatedError(reason)
        self._last_offsets[kind] = offset
        marks[partition] = Mark(
            max(before.next_offset, offset + 1), position or before.position
        )
        return (topic,)


class Published:
    """
    The streamed records that Kafka holds at the start of a session.

    Attributes:
        horizon: The highest position of any partition.
    """

    def __init__(
        self,
        tails: Mapping[str, TopicMarks],
        former: FormerCounts = NO_FORMER_COUNTS,
    ) -> None:
        self.former = former
        self._highs = {
            (topic, partition): mark.position
            for topic, marks in tails.items()
            for partition, mark in marks.items()
            if mark.position is not None
        }
        self.horizon = max(self._highs.values(), default=b"")

    @property
    def log_lsn(self) -> int:
        """The log LSN of the horizon; 0 if no record was published."""
        return parse_position(self.horizon.decode()).log_lsn if self.horizon else 0

    def has(self, topic: str, partition: int, position: bytes) -> bool:
        """Return whether Kafka holds the record with this position."""
        high = self._highs.get((topic, partition))
        return high is not None and position <= high


def marks_document(
    marks: TopicMarks, former: Sequence[FormerCount] = ()
) -> dict[str, Any]:
    """Return a topic's marks as a document of the state topic."""
    counts = [
        {"count": each.partition_count, "until": each.until.decode()} for each in former
    ]
    more = {_FORMER: counts} if counts else {}
    return {
        "partitions": {
            str(partition): {
                "next_offset": mark.next_offset,
                "position": mark.position.decode() if mark.position else None,
            }
            for partition, mark in sorted(marks.items())
        }
    } | more


def known_fields(stored: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the fields with these names, without those that a later release added."""
    return {name: stored[name] for name in names if name in stored}


def parse_confirmed(document: Mapping[str, Any]) -> Confirmed:
    """
    Parse a checkpoint; ignore the fields that only a later release knows.

    Raises:
        TypeError: The document is invalid.
    """
    return Confirmed(**known_fields(document, Confirmed._fields))


def parse_marks(document: Mapping[str, Any]) -> TopicMarks:
    """
    Parse a topic's marks.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: The document is invalid.
    """
    return {
        int(partition): Mark(
            int(mark["next_offset"]),
            mark["position"].encode() if mark["position"] is not None else None,
        )
        for partition, mark in document["partitions"].items()
    }


def parse_former(document: Mapping[str, Any]) -> tuple[FormerCount, ...]:
    """
    Parse a topic's former partition counts.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: The document is invalid.
    """
    return tuple(
        FormerCount(int(each["count"]), each["until"].encode())
        for each in document.get(_FORMER, ())
    )
