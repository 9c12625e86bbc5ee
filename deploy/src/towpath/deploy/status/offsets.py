"""
Progress of each sink: its applied offsets against the ends of its topics.

The sink writes ``progress.json`` after each batch; the broker knows the ends.
"""

from collections.abc import Iterable, Mapping

from towpath.schemas.table_name import TableName
from towpath.schemas.topics import dead_letter_topic, is_backfill, table_of, table_topic
from towpath.settings import Settings, Sink
from towpath.sinks.changes.routing import Routes
from towpath.sinks.kafka.client import Topics
from towpath.sinks.state.declare import records_between
from towpath.sinks.state.progress import (
    Offsets,
    Progress,
    progress_path,
    read_progress,
)

# Per topic and partition (as text), the offset of the next record.
Ends = Mapping[str, Mapping[str, int]]


def read_ends(topics: Topics) -> Ends:
    """
    Return the end of every partition of every topic.

    Raises:
        BrokerUnavailableError: The broker does not answer.
    """
    return topics.end_offsets(topics.names())


def lag_records(sink: Sink, applied: Offsets, ends: Ends) -> int:
    """
    Count the records of a sink's topics that it has not applied.

    A partition that the sink says nothing of counts in full: it has not begun it.
    """
    topics = Routes(sink).matching(ends)
    return records_between(applied, {topic: ends[topic] for topic in topics})


def progress_of(settings: Settings, sink: Sink) -> Progress:
    """Read what a sink says of itself."""
    return read_progress(progress_path(settings.state_folder, sink.name), sink.name)


def refusal(why: str) -> str:
    """Say that a sink does not take the block that is declared for it."""
    return f"its changed block is refused, it goes on as it was: {why}"


def table_records(settings: Settings, ends: Ends) -> int:
    """Count the records on the tables' topics that all sinks share."""
    source = settings.database
    named = {
        table_topic(source.prefix, TableName.parse(table))
        for table in settings.capture.names
    }
    names = (
        topic
        for topic in ends
        if topic in named
        or (
            (table := table_of(source.prefix, topic)) is not None
            and settings.capture.takes(table)
        )
    )
    return _records(ends, names)


def event_records(settings: Settings, ends: Ends) -> int:
    """Count the records on the outbox topics that all sinks share."""
    head, _, tail = settings.relay.outbox.topic.partition("{aggregate_type}")
    names = (n for n in ends if n.startswith(head) and n.endswith(tail))
    return _records(ends, (n for n in names if not is_backfill(n)))


def dead_letters(settings: Settings, ends: Ends) -> int:
    """Count the records that the relay and the sinks have set aside."""
    head = dead_letter_topic(settings.database.prefix, "")
    return _records(ends, (name for name in ends if name.startswith(head)))


def _records(ends: Ends, names: Iterable[str]) -> int:
    return sum(sum(ends.get(name, {}).values()) for name in names)
