"""
``towpath relay dead-letters``: list parked aggregates, publish or discard their events.

An aggregate is parked from its first dead letter on, so its dead letters are its
unpublished events, in order. ``replay`` publishes them to their own topics and then
writes a *release* to the dead-letter topic: a record with the aggregate's id as its
key, no value, and a header with the position up to which events are released.
``discard`` only writes the release. The relay reads releases when it starts, so both
commands hold the slot's claim: while they work, no other event can become a dead
letter.

Only dead letters that hold their record can be published: not those with a row or
message that cannot be decoded as an event, or with the stub of a record that was too
large.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

from confluent_kafka import Message

from towpath.relay.encode.parked_aggregates import (
    ParkedAggregates,
    as_text,
    parking_id,
    parking_type,
)
from towpath.relay.encode.record import ANY_PARTITION, Header, Record
from towpath.relay.errors import StateRefusedError
from towpath.relay.kafka.reading import TopicReader
from towpath.relay.kafka.state import StateTopic, publish_now
from towpath.relay.kafka.topics import KafkaTopics
from towpath.relay.postgres.replication import Wakeup
from towpath.relay.postgres.slot import SlotOwnership
from towpath.relay.recover import check_existing_topics
from towpath.schemas import headers
from towpath.schemas import topics as names
from towpath.schemas.clock import SystemClock
from towpath.settings import Settings

_NO_LIMIT: Final = 1 << 62
_RECORD: Final = b"record"


class Aggregate(NamedTuple):
    """A parked aggregate; without a type, its id is parked for every type."""

    type: str | None
    id: bytes


class RelayDeadLetter(NamedTuple):
    """
    An event that was not published.

    Attributes:
        position: The event's position, as text.
        reason: Why the event is a dead letter.
        form: The form of the value: a record, a row, a message or a stub.
        record: The event as it would have been published; None if only parts of it
            exist.
    """

    position: bytes
    reason: str
    form: str
    record: Record | None


Parked = Mapping[Aggregate, Sequence[RelayDeadLetter]]


def read_parked_events(settings: Settings, only: Aggregate | None = None) -> Parked:
    """
    Return the dead letters of each parked aggregate, in the order of their positions.

    Args:
        settings: The configuration.
        only: The aggregate to return; None for all of them, all in memory at once.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses to read the topic.
    """
    topic = names.dead_letter_topic(settings.database.prefix, "relay")
    with TopicReader(settings.kafka) as reader:
        count = reader.partition_counts().get(topic, 0)
        if not count:
            return {}
        starts = {(topic, partition): 0 for partition in range(count)}
        return parked_events(reader.read_to_ends(starts, topic), only)


def parked_events(messages: Iterable[Message], only: Aggregate | None = None) -> Parked:
    """Return the dead letters of parked aggregates, from the topic's messages."""
    known = ParkedAggregates(_NO_LIMIT)
    found: dict[Aggregate, dict[bytes, RelayDeadLetter]] = defaultdict(dict)
    for message in messages:
        given: list[Header] = list(_pairs(message))
        known.restore(message.key(), message.value(), given)
        by_name = {name: _bytes(value) for name, value in given}
        aggregate_id = by_name.get(headers.PARKED)
        position = by_name.get(headers.POSITION)
        if aggregate_id is None or position is None:
            continue
        kind = by_name.get(headers.AGGREGATE_TYPE)
        type_name = None if kind is None else as_text(kind)
        aggregate = _parked_as(type_name, aggregate_id)
        if only not in {None, aggregate}:
            continue
        # A relay that restarts after a crash may write a dead letter twice.
        found[aggregate][position] = _dead_letter(message, given, by_name)
    parked = {}
    for aggregate, letters in found.items():
        # Partitions are read in any order, so releases apply once all have been read.
        released = known.released_up_to(*aggregate)
        left = [letters[at] for at in sorted(letters) if at > released]
        if left:
            parked[aggregate] = left
    return parked


def _parked_as(kind: str | None, id_: bytes) -> Aggregate:
    """Return the aggregate as it is parked: long types and ids as their hashes."""
    return Aggregate(parking_type(kind), parking_id(id_))


def _dead_letter(
    message: Message, given: list[Header], by_name: Mapping[str, bytes]
) -> RelayDeadLetter:
    form, position = by_name.get(headers.FORM, b""), by_name[headers.POSITION]
    reason = as_text(by_name.get(headers.REASON, b""))
    record = None
    if form == _RECORD:
        # The dead letter's own headers follow those of its record.
        own = max(at for at, (name, _) in enumerate(given) if name == headers.FORM)
        _, timestamp_ms = message.timestamp()
        record = Record(
            by_name[headers.SOURCE_TOPIC].decode(),
            message.key(),
            message.value(),
            given[:own],
            position,
            timestamp_ms,
            len(message.value() or b""),
            _partition(given[own:]),
        )
    return RelayDeadLetter(position, reason, as_text(form), record)


def _partition(added: Sequence[Header]) -> int:
    """Return the partition that an event's row named, or ``ANY_PARTITION``."""
    named = _bytes(dict(added).get(headers.SOURCE_PARTITION))
    return int(named) if named else ANY_PARTITION


def _pairs(message: Message) -> Iterable[Header]:
    found = message.headers() or []
    return found.items() if isinstance(found, dict) else found


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def aggregate_named(kind: str | None, id_: str) -> Aggregate:
    """
    Return the aggregate that a command names.

    An id from a ``bytea`` column may not be valid UTF-8: if so, its bytes are written
    with Python's ``surrogateescape``, as in the arguments of a process.
    """
    # A type is always UTF-8, so an argument in any other encoding matches no aggregate.
    text = None if kind is None else kind.encode(errors="replace").decode()
    return _parked_as(text, id_.encode(errors="surrogateescape"))


def printable_id(id_: str) -> str:
    """Return an id as ``listed`` shows it: bytes that are not UTF-8 are replaced."""
    return id_.encode(errors="surrogateescape").decode(errors="replace")


def parked_aggregate(parked: Parked, kind: str | None, id_: str) -> Aggregate:
    """
    Return the parked aggregate of a type and an id.

    Raises:
        StateRefusedError: The aggregate is not parked.
    """
    aggregate = aggregate_named(kind, id_)
    if aggregate not in parked:
        what = f"{kind or 'the untyped aggregate'} {printable_id(id_)}"
        reason = f"{what} is not parked: see towpath relay dead-letters list"
        raise StateRefusedError(reason)
    return aggregate


def listed(parked: Parked) -> list[dict[str, Any]]:
    """Return a line for each parked aggregate, longest parked first."""
    lines = [
        {
            "aggregate_type": aggregate.type,
            "aggregate_id": aggregate.id.decode(errors="replace"),
            "letters": len(letters),
            "first_position": as_text(letters[0].position),
            "reason": letters[0].reason,
            "publishable": sum(letter.record is not None for letter in letters),
        }
        for aggregate, letters in parked.items()
    ]
    return sorted(lines, key=lambda line: str(line["first_position"]))


def release_aggregate(
    settings: Settings, kind: str | None, id_: str, *, publishes: bool, drops: bool
) -> tuple[int, int]:
    """
    Release a parked aggregate; return how many events were published and dropped.

    Args:
        settings: The configuration.
        kind: The aggregate's type; None if its dead letters have none.
        id_: The aggregate's id.
        publishes: Whether to publish the events before the release.
        drops: Whether to drop dead letters that hold no record.

    Raises:
        StateRefusedError: The aggregate is not parked, or a dead letter that is to be
            published holds no record.
        SlotHeldError: The relay is running.
        SourceUnavailableError: The source cannot be reached.
        BrokerUnavailableError: Kafka did not acknowledge an event; all remain parked.
        BrokerRefusedError: Kafka refuses an event or a topic; all remain parked.
        TopicTruncatedError: A topic that had records was deleted.
        StateLostError: An event's topic does not exist, and the state cannot be read.
    """
    source = settings.database
    with closing(SlotOwnership(source.dsn, source.slot)) as ownership:
        ownership.acquire(SystemClock(), Wakeup(), 0.0, lambda: False)
        parked = read_parked_events(settings, aggregate_named(kind, id_))
        aggregate = parked_aggregate(parked, kind, id_)
        letters = parked[aggregate]
        records = publishable(letters, drops=drops) if publishes else []
        with TopicReader(settings.kafka) as reader:
            counts = create_missing(settings, records, reader)
        placed = placed_records(records, counts)
        publish_now(settings.kafka, *placed)
        publish_now(
            settings.kafka, release_of(source.prefix, aggregate, letters[-1].position)
        )
        return len(records), len(letters) - len(records)


def publishable(letters: Sequence[RelayDeadLetter], *, drops: bool) -> list[Record]:
    """
    Return the events of dead letters.

    Raises:
        StateRefusedError: A dead letter holds no record, and ``drops`` is false.
    """
    for letter in letters:
        if letter.record is None and not drops:
            reason = (
                f"the dead letter at {as_text(letter.position)} holds a {letter.form}"
                f" and no record, so it cannot be published: {letter.reason}; "
                "discard it with --drop"
            )
            raise StateRefusedError(reason)
    return [letter.record for letter in letters if letter.record is not None]


def create_missing(
    settings: Settings, records: Iterable[Record], reader: TopicReader
) -> Mapping[str, int]:
    """
    Create the missing topics of records; return all partition counts.

    The relay creates a topic with its first published event, so the topic may not exist
    yet. A topic that was deleted with its records is not created: otherwise the next
    start of the relay might not detect that they are lost.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses a topic.
        TopicTruncatedError: A topic that had records was deleted.
        StateLostError: A topic is missing, and the state cannot be read.
    """
    counts, source = reader.partition_counts(), settings.database
    missing = {record.topic for record in records if not counts.get(record.topic)}
    if not missing:
        return counts
    marked = check_existing_topics(reader, StateTopic(settings.kafka, source.prefix))
    made = {name: marked.get(name, settings.topics.partitions) for name in missing}
    topics = KafkaTopics(settings.kafka, settings.topics, SystemClock())
    topics.recreate(source.prefix, made)
    return {**counts, **made}


def placed_records(
    records: Iterable[Record], counts: Mapping[str, int]
) -> list[Record]:
    """Return the records; one whose topic lacks its partition is placed by its key."""
    return [
        record
        if record.partition < counts.get(record.topic, 0)
        else record._replace(partition=ANY_PARTITION)
        for record in records
    ]


def release_of(prefix: str, aggregate: Aggregate, position: bytes) -> Record:
    """Return the record that releases an aggregate's events up to a position."""
    topic = names.dead_letter_topic(prefix, "relay")
    kind = aggregate.type
    # The header is null if there is no type: a release that lacks the header applies to
    # aggregates of this id with any type.
    added: list[Header] = [
        (headers.RELEASED, position),
        (headers.AGGREGATE_TYPE, None if kind is None else kind.encode()),
    ]
    return Record(
        topic, aggregate.id, None, added, position, 0, len(aggregate.id), ANY_PARTITION
    )
