"""
Recovers the state that a session starts from, before it publishes anything.

The delivery modes of the previous and the current process determine how topics are
read. Open transactions of a transactional process are aborted first, even if the
current process works without transactions. On replicated topics, records of an
idempotent process may be on the leader only: barriers make them readable before end
offsets are used.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from towpath.relay.context import ProcessContext
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.kafka.producer import KafkaProducer, fence
from towpath.relay.kafka.reading import TopicReader, write_barriers
from towpath.relay.kafka.recovery import (
    read_parked,
    read_tails,
    require_topics,
)
from towpath.relay.kafka.state import StateTopic
from towpath.relay.recovery.marks import Marks, Published
from towpath.relay.recovery.state import (
    CONFIRMED_KEY,
    DELIVERY_KEY,
    MARKS_KEY,
    State,
)
from towpath.schemas import topics as names
from towpath.schemas.table_name import TableName
from towpath.settings import DeliveryMode, Settings


class RecoveredState(NamedTuple):
    """
    The state recovered from Kafka at a session's start.

    Attributes:
        state: The state topic's content.
        marks: Exact marks, read from the topics.
        published: The streamed records that Kafka holds.
        published_log_lsn: The highest log LSN of any record, READ rows included.
        parked: The parked aggregates.
    """

    state: State
    marks: Marks
    published: Published
    published_log_lsn: int
    parked: ParkedAggregates


_TRANSACTIONAL: Final = DeliveryMode.TRANSACTIONAL


def transactional_id(settings: Settings) -> str:
    """Return the relay's ``transactional.id``."""
    return f"towpath-{settings.database.prefix}-{settings.database.slot}"


def check_existing_topics(reader: TopicReader, topic: StateTopic) -> Mapping[str, int]:
    """
    Check for deleted topics before any topic is created.

    Returns:
        By topic, the partition count of its marks.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        TopicTruncatedError: A topic that had records was deleted.
        StateLostError: The state cannot be read.
    """
    if topic.topic not in reader.partition_counts():
        return {}
    marks = topic.read(reader).marks
    require_topics(reader, marks)
    return {name: len(each) for name, each in marks.items()}


def store_first_marks(process: ProcessContext, topic: StateTopic, marks: Marks) -> None:
    """
    Store the first marks of all captured tables' topics together.

    Call order: after the lineage is decided, because marks prove that there was a
    lineage, and before the stream begins. Other topics get their marks with their first
    record.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses a mark.
    """
    prefix, opened = process.settings.database.prefix, process.topics.opened
    topics = [
        names.table_topic(prefix, TableName.parse(table)) for table in process.captured
    ]
    new = {
        name: opened[name]
        for name in topics
        if name in opened and not marks.knows(name)
    }
    places = [(name, at) for name in new for at in range(new[name].partition_count)]
    if not places:
        return
    ends: dict[str, dict[int, int]] = defaultdict(dict)
    for (name, at), end in process.topics.known_ends(places).items():
        ends[name][at] = end
    for name, of_topic in ends.items():
        marks.begin(name, of_topic)
    topic.write_all({f"{MARKS_KEY}{name}": marks.document(name) for name in ends})


def recover(
    process: ProcessContext,
    reader: TopicReader,
    topic: StateTopic,
    producer: KafkaProducer,
) -> RecoveredState:
    """
    Return the state recovered from Kafka. Call order: after the slot is claimed.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses transactions, or a record.
        TopicTruncatedError: A topic's end offset is below its mark.
        PartitionCountChangedError: A topic's partition count has changed.
        StateLostError: The state cannot be read.
        ParkedOverflowError: More aggregates are parked than allowed.
    """
    settings = process.settings
    state = topic.read(reader)
    before = DeliveryMode(state.delivery or settings.relay.delivery)
    was_transactional = before is _TRANSACTIONAL
    is_transactional = settings.relay.delivery is _TRANSACTIONAL
    if was_transactional and not is_transactional:
        fence(settings.kafka, transactional_id(settings))
    producer.begin()
    if was_transactional or is_transactional:
        # An open transaction may have hidden the records after it.
        state = topic.read(reader)
    if not was_transactional:
        _write_barriers(settings, reader, topic, state)
    tails = read_tails(
        reader,
        state.marks,
        is_transactional=was_transactional or is_transactional,
    )
    if state.delivery != settings.relay.delivery:
        topic.write(DELIVERY_KEY, {"mode": settings.relay.delivery})
    parked = read_parked(
        reader, settings.database.prefix, settings.relay.max_parked_keys
    )
    confirmed = state.confirmed
    stored = 0 if confirmed is None else confirmed.published_log_lsn
    published = Published(tails.marks, state.former)
    highest = max(stored, tails.log_lsn, published.log_lsn)
    return RecoveredState(
        state, Marks(tails.marks, state.former), published, highest, parked
    )


def _write_barriers(
    settings: Settings, reader: TopicReader, topic: StateTopic, state: State
) -> None:
    """
    Make a dead process's records on replicated topics readable.

    If the last process stopped cleanly, mark this run as unclean until it, too, has
    stopped cleanly.
    """
    confirmed = state.confirmed
    counts = reader.replicated(state.marks)
    if confirmed is None or not confirmed.is_clean:
        if counts:
            write_barriers(settings.kafka, counts)
    elif counts or settings.topics.replication_factor > 1:
        # Until a clean stop, a restart treats this run as unclean.
        begun = confirmed._replace(is_clean=False)
        topic.write(CONFIRMED_KEY, begun._asdict())


def has_records(
    process: ProcessContext, topic: StateTopic, recovered: RecoveredState
) -> bool:
    """
    Return whether the relay's topics hold records although there is no state.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached, or a partition has no leader.
    """
    if not recovered.state.is_empty:
        return False
    places = [
        (name, partition)
        for name, each in process.topics.opened.items()
        if name != topic.topic
        for partition in range(each.partition_count)
    ]
    return any(process.topics.known_ends(places).values())
