"""
What Kafka has, when nobody knows any more: every topic of ours, from its end back.

Within a partition positions of streamed records only rise, so the last one tells of all
before it. It is looked for in a window at the end; a window full of READ rows is made
wider. A topic without our headers is not ours. A row change also tells the LSN that it
had in the source, which proves the offset of its lineage.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import orjson
from confluent_kafka import Message

from towpath.relay.kafka.reading import (
    Place,
    partition_counts,
    place_of,
    read_to_ends,
)
from towpath.relay.kafka.tails import end_offsets, streamed_position
from towpath.relay.marks import Mark, TopicMarks
from towpath.schemas import headers
from towpath.schemas.position import parse_position
from towpath.settings import Kafka

# Far more than the records of one change, far less than a topic.
_WINDOW: Final = 1_000
_WIDER: Final = 20


class Remains(NamedTuple):
    """
    What was found.

    Attributes:
        marks: Of each topic of ours, as exact as they ever were.
        offsets: What is added to the source's LSNs, where a row change proves it, by
            the log LSN of the change.
    """

    marks: Mapping[str, TopicMarks]
    offsets: Mapping[int, int]

    @property
    def published_log_lsn(self) -> int:
        """The highest log LSN of any streamed record; 0: there is none."""
        positions = (
            mark.position.decode()
            for of_topic in self.marks.values()
            for mark in of_topic.values()
            if mark.position is not None
        )
        return max((parse_position(text).log_lsn for text in positions), default=0)


class _Place:
    """One partition while it is looked through."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.start = max(0, end - _WINDOW)
        self.position: bytes | None = None
        self.is_ours = False
        self.proof: tuple[int, int] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether a wider window would tell no more."""
        return self.position is not None or not self.is_ours or self.start == 0

    def widen(self) -> None:
        """Go further back."""
        self.start = max(0, self.end - (self.end - self.start) * _WIDER)

    def take(self, message: Message) -> None:
        """Look at one record."""
        told = dict(message.headers() or ())
        self.is_ours |= headers.POSITION in told
        position = streamed_position(message)
        if position is None or (self.position is not None and position < self.position):
            return
        self.position = position
        self.proof = _proof(message, position) or self.proof


def look_through(kafka: Kafka, topics: Iterable[str]) -> Remains:
    """
    Return what the topics have.

    Raises:
        BrokerUnavailableError: Kafka does not answer.
    """
    wanted = frozenset(topics)
    counts = partition_counts(kafka)
    ats = [(topic, n) for topic in wanted for n in range(counts.get(topic, 0))]
    ends = end_offsets(kafka, ats) if ats else {}
    places = {at: _Place(max(0, end)) for at, end in ends.items()}
    open_places = {at: place for at, place in places.items() if place.end}
    while open_places:
        _read(kafka, open_places)
        open_places = {a: p for a, p in open_places.items() if not p.is_settled}
        for place in open_places.values():
            place.widen()
    ours = {topic for (topic, _), place in places.items() if place.is_ours}
    return Remains(
        marks={
            topic: {
                n: Mark(place.end, place.position)
                for (name, n), place in sorted(places.items())
                if name == topic
            }
            for topic in sorted(ours)
        },
        offsets=dict(place.proof for place in places.values() if place.proof),
    )


def known_ends(kafka: Kafka, marks: Mapping[str, TopicMarks]) -> dict[Place, int]:
    """
    Return the end offset of each marked partition; -1 for one that is not there.

    A client that asks for one topic that is gone gets no answer for the others either.

    Raises:
        BrokerUnavailableError: Kafka does not answer.
    """
    counts = partition_counts(kafka)
    ats = [(topic, n) for topic, of_topic in marks.items() for n in of_topic]
    there = [(topic, n) for topic, n in ats if n < counts.get(topic, 0)]
    found = end_offsets(kafka, there) if there else {}
    return {at: found.get(at, -1) for at in ats}


def _read(kafka: Kafka, places: Mapping[Place, _Place]) -> None:
    """Read each window to its end."""
    starts = {at: place.start for at, place in places.items()}
    for message in read_to_ends(kafka, starts, "the ends of our topics"):
        places[place_of(message)].take(message)


def _proof(message: Message, position: bytes) -> tuple[int, int] | None:
    """Return log LSN and lineage offset, if the record tells its commit's LSN."""
    try:
        value = orjson.loads(message.value() or b"")
        value = value.get("payload", value)
        commit_lsn = int(value["source"]["commit_lsn"])
        log_lsn = parse_position(position.decode()).log_lsn
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return log_lsn, log_lsn - commit_lsn
