"""
Marks: what each partition of our topics has, so that nothing is published twice.

A *mark* of a partition says: every streamed record up to ``position`` that belongs here
stands below ``next_offset``. Marks are written while records flow, so they trail a
little; after a crash the partition is read from its mark to its end, and what is found
there makes the mark exact. Within a partition, positions of streamed records only rise,
because one idempotent producer writes them in the stream's order; so the last position
tells of all before it. READ rows stand out of that order and move only ``next_offset``.

Which partition a record belongs to depends on the partition count, which is stored by
the marks themselves: there is one for each partition. When an operator lets a topic use
partitions that were added, a position decides which count holds (``FormerCount``), so
that records which are streamed again come to the same partitions as the first time.

Pure: what is read and written, and how, is told by ``kafka``.
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

    ``position`` is the text of the last streamed record's; None: there is none yet.
    """

    next_offset: int
    position: bytes | None


TopicMarks = Mapping[int, Mark]


class FormerCount(NamedTuple):
    """
    A topic's partition count of before partitions were added.

    Attributes:
        partition_count: Among how many partitions records were spread.
        until: The last position at which that holds, as text.
    """

    partition_count: int
    until: bytes


# By topic, the former counts in the order of their positions.
FormerCounts = Mapping[str, tuple[FormerCount, ...]]
NO_FORMER_COUNTS: Final[FormerCounts] = MappingProxyType({})
_FORMER: Final = "former"


class Confirmed(NamedTuple):
    """
    How far Postgres may forget; stored before Postgres is told.

    Attributes:
        lsn: The LSN confirmed to Postgres.
        log_lsn: The same with the lineage's offset.
        published_log_lsn: The highest log LSN of any streamed record so far.
        heartbeat: The highest heartbeat counter that was streamed; 0: none.
        is_clean: Whether the relay stopped by itself, with nothing on its way.
        at: When, as RFC 3339.
    """

    lsn: int
    log_lsn: int
    published_log_lsn: int
    heartbeat: int
    is_clean: bool
    at: str


class Marks:
    """The marks of every topic, as they move."""

    def __init__(
        self,
        known: Mapping[str, TopicMarks],
        former: FormerCounts = NO_FORMER_COUNTS,
    ) -> None:
        self._marks = {topic: dict(marks) for topic, marks in known.items()}
        self._former = dict(former)
        # By partition, and whether it is of a READ row: the last acknowledged offset.
        self._last_offsets: dict[tuple[Partition, bool], int] = {}

    def knows(self, topic: str) -> bool:
        """Tell whether the topic has its first mark."""
        return topic in self._marks

    def begin(self, topic: str, ends: Mapping[int, int]) -> None:
        """Take a topic in, with the end offset of each partition."""
        self._marks[topic] = {at: Mark(end, None) for at, end in ends.items()}

    def forget_former(self, topic: str, log_lsn: int) -> bool:
        """Let go of former partition counts below ``log_lsn``; False: not yet."""
        former = self._former.get(topic, ())
        if former and parse_position(former[-1].until.decode()).log_lsn >= log_lsn:
            return False
        self._former.pop(topic, None)
        return True

    def document(self, topic: str) -> dict[str, Any]:
        """Return a topic's marks as the state topic holds them."""
        return marks_document(self._marks[topic], self._former.get(topic, ()))

    def check_count(self, topic: str, count: int) -> None:
        """
        Make sure that a topic has the partitions that it had.

        Raises:
            PartitionCountChangedError: It has others.
        """
        marks = self._marks.get(topic)
        if marks is not None and len(marks) != count:
            reason = f"topic {topic} had {len(marks)} partitions and has {count} now"
            raise PartitionCountChangedError(reason)

    def move(
        self,
        reached: Mapping[Partition, tuple[bytes, Acknowledgement]],
        passed: Mapping[Partition, Acknowledgement],
    ) -> frozenset[str]:
        """
        Take in what was acknowledged; return the topics whose marks moved.

        Raises:
            PartitionCountChangedError: A topic has more partitions than it had.
            TopicTruncatedError: A topic was deleted and made again meanwhile.
        """
        moved: set[str] = set()
        for at, (position, place) in reached.items():
            moved.update(self._raise(at, place.offset(), position))
        for at, place in passed.items():
            moved.update(self._raise(at, place.offset(), None))
        return frozenset(moved)

    def _raise(
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
            # Partitions were added while we ran: keys begin to stand elsewhere.
            reason = f"topic {topic} had {len(marks)} partitions and has more now"
            raise PartitionCountChangedError(reason)
        # Streamed records are confirmed in the order of transactions, READ rows as they
        # are acknowledged: only among its own kind does an offset never go back.
        kind = at, position is None
        last = self._last_offsets.get(kind, offset)
        if offset < last:
            reason = (
                f"partition {partition} of {topic} took a record at {offset}, but "
                f"reached {last + 1} before: the topic was made again"
            )
            raise TopicTruncatedError(reason)
        self._last_offsets[kind] = offset
        marks[partition] = Mark(
            max(before.next_offset, offset + 1), position or before.position
        )
        return (topic,)


class Published:
    """
    Which records Kafka has already, as of the start.

    Attributes:
        horizon: The highest position of any partition; nothing above it is there.
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
        """The log LSN of the horizon; 0 if nothing was ever published."""
        return parse_position(self.horizon.decode()).log_lsn if self.horizon else 0

    def has(self, topic: str, partition: int, position: bytes) -> bool:
        """Tell whether the record at this position is there."""
        high = self._highs.get((topic, partition))
        return high is not None and position <= high


def marks_document(
    marks: TopicMarks, former: Sequence[FormerCount] = ()
) -> dict[str, Any]:
    """Return a topic's marks as the state topic holds them."""
    told = [
        {"count": each.partition_count, "until": each.until.decode()} for each in former
    ]
    more = {_FORMER: told} if told else {}
    return {
        "partitions": {
            str(partition): {
                "next_offset": mark.next_offset,
                "position": mark.position.decode() if mark.position else None,
            }
            for partition, mark in sorted(marks.items())
        }
    } | more


def parse_marks(document: Mapping[str, Any]) -> TopicMarks:
    """
    Read a topic's marks.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is not what was written.
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
    Read a topic's former partition counts, if it had any.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is not what was written.
    """
    return tuple(
        FormerCount(int(each["count"]), each["until"].encode())
        for each in document.get(_FORMER, ())
    )
