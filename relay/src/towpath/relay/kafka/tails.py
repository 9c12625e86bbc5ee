"""
The tails of our topics: each partition from its mark to its end, read at start.

What a dead process had published after its last marks stands there; its positions make
the marks exact. Only headers are looked at. A partition that ends below its mark was
truncated or made anew, and nobody can tell what it had: that stops the start.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public
    AdminClient,
    OffsetSpec,
)

from towpath.relay.errors import PartitionCountChangedError, TopicTruncatedError
from towpath.relay.kafka.client import (
    REQUEST_TIMEOUT_S,
    made,
    translated,
)
from towpath.relay.kafka.reading import (
    Place,
    partition_counts,
    place_of,
    read_to_ends,
)
from towpath.relay.marks import Mark, TopicMarks
from towpath.schemas import headers
from towpath.schemas.position import parse_position
from towpath.settings import Kafka

# How many topics one message names.
_NAMED: Final = 5


class Tails(NamedTuple):
    """
    What the topics tell.

    Attributes:
        marks: Exact, by topic.
        log_lsn: The highest log LSN behind the stored marks, READ rows included.
    """

    marks: Mapping[str, TopicMarks]
    log_lsn: int


def read_tails(
    kafka: Kafka, marks: Mapping[str, TopicMarks], *, is_transactional: bool
) -> Tails:
    """
    Return what the topics themselves tell.

    Args:
        kafka: The brokers.
        marks: As stored.
        is_transactional: Whether only what was committed counts.

    Raises:
        BrokerUnavailableError: Kafka does not answer.
        TopicTruncatedError: A partition ends below its mark.
        PartitionCountChangedError: A topic has other partitions than it had.
    """
    places = {
        (topic, partition): mark
        for topic, of_topic in marks.items()
        for partition, mark in of_topic.items()
    }
    log_lsn = 0
    if places:
        _check_counts(kafka, marks)
        ends = end_offsets(kafka, places)
        _check_ends(places, ends)
        longer = {at: places[at] for at, end in ends.items() if end > places[at][0]}
        if longer:
            scan = TailScan(longer)
            scan.run(kafka, is_committed=is_transactional)
            places |= scan.found
            log_lsn = scan.log_lsn
        places = {at: Mark(ends[at], mark.position) for at, mark in places.items()}
    exact = {
        topic: {at: places[topic, at] for at in of_topic}
        for topic, of_topic in marks.items()
    }
    return Tails(exact, log_lsn)


def end_offsets(kafka: Kafka, places: Iterable[Place]) -> dict[Place, int]:
    """
    Return the end offset of each partition; -1 for one that is not there.

    Raises:
        BrokerUnavailableError: Kafka does not answer.
    """
    admin = made(AdminClient, kafka)
    asked = {
        TopicPartition(*at): OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library's
        for at in places
    }
    futures = admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S)
    ends = {}
    for place, future in futures.items():
        try:
            ends[place.topic, place.partition] = future.result().offset
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise translated(error, f"finding the end of {place.topic}") from error
            ends[place.topic, place.partition] = -1
    return ends


def refuse_gone(kafka: Kafka, marks: Mapping[str, TopicMarks]) -> None:
    """
    Make sure that each topic is there that has had records. Makes none.

    Raises:
        TopicTruncatedError: Topics are gone; the message tells what they had.
        BrokerUnavailableError: Kafka does not answer.
    """
    written = {topic: each for topic, each in marks.items() if reached(each)}
    counts = partition_counts(kafka) if written else {}
    gone = {topic: each for topic, each in written.items() if topic not in counts}
    if gone:
        raise TopicTruncatedError(told_gone(gone))


def reached(marks: TopicMarks) -> int:
    """Return how many records a topic has had, by its marks."""
    return sum(mark.next_offset for mark in marks.values())


def told_gone(gone: Mapping[str, TopicMarks]) -> str:
    """Say which topics are gone, and what was lost with them."""
    told = []
    for topic, marks in sorted(gone.items()):
        highest = max((m.position for m in marks.values() if m.position), default=b"")
        last = f", the last change at {highest.decode()}" if highest else ""
        told.append(
            f"topic {topic} is gone, and what it kept of {reached(marks)} records in "
            f"{len(marks)} partitions{last}"
        )
    more = len(told) - _NAMED
    return "; ".join(told[:_NAMED]) + (f"; and {more} more topics" if more > 0 else "")


def _check_counts(kafka: Kafka, marks: Mapping[str, TopicMarks]) -> None:
    counts = partition_counts(kafka)
    for topic, of_topic in marks.items():
        count = counts.get(topic, 0)
        if not count:
            raise TopicTruncatedError(told_gone({topic: of_topic}))
        if count != len(of_topic):
            reason = f"topic {topic} had {len(of_topic)} partitions and has {count} now"
            raise PartitionCountChangedError(reason)


def _check_ends(places: Mapping[Place, Mark], ends: Mapping[Place, int]) -> None:
    for (topic, partition), mark in sorted(places.items()):
        end = ends[topic, partition]
        if end < mark.next_offset:
            what = "is gone" if end < 0 else f"ends at {end}"
            reason = (
                f"partition {partition} of {topic} {what}, "
                f"but reached {mark.next_offset} before"
            )
            raise TopicTruncatedError(reason)


class TailScan:
    """Reads partitions from their marks to their ends."""

    def __init__(self, places: Mapping[Place, Mark]) -> None:
        self.found = dict(places)
        self.log_lsn = 0

    def run(self, kafka: Kafka, *, is_committed: bool) -> None:
        """
        Read everything.

        Raises:
            BrokerUnavailableError: Kafka does not answer.
        """
        starts = {at: mark.next_offset for at, mark in self.found.items()}
        what = "the tails of our topics"
        for message in read_to_ends(kafka, starts, what, is_committed=is_committed):
            self.take(message)

    def take(self, message: Message) -> None:
        """Move a partition to a streamed record; a READ row moves none."""
        told = dict(message.headers() or ())
        position = told.get(headers.POSITION)
        if not isinstance(position, bytes):
            return
        self.log_lsn = max(self.log_lsn, parse_position(position.decode()).log_lsn)
        at = place_of(message)
        before = self.found[at].position
        is_streamed = headers.SNAPSHOT not in told
        if is_streamed and (before is None or position > before):
            self.found[at] = self.found[at]._replace(position=position)


def streamed_position(message: Message) -> bytes | None:
    """Return the position of a streamed record; None for any other record."""
    told = dict(message.headers() or ())
    if headers.SNAPSHOT in told:
        return None
    position = told.get(headers.POSITION)
    return position if isinstance(position, bytes) else None
