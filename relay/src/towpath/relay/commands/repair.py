"""``towpath relay state repair``: rebuild the state from Kafka and the source."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

from towpath.relay.commands.state import newest_values, remove_key
from towpath.relay.encode.outbox_columns import ReservedTopics
from towpath.relay.errors import StateLostError, StateRefusedError
from towpath.relay.kafka.reading import TopicReader
from towpath.relay.kafka.recovery import marked_ends, scan_topics
from towpath.relay.kafka.state import StateTopic
from towpath.relay.kafka.topics import KafkaTopics, captured_in
from towpath.relay.postgres.backfill import request_tables, selects_by_table
from towpath.relay.postgres.connect import connect, translated_errors
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.replication import SlotStream, Wakeup
from towpath.relay.postgres.slot import read_slot
from towpath.relay.postgres.source_facts import read_captured
from towpath.relay.recovery.lineage import SourceHistory, parse_lineages
from towpath.relay.recovery.marks import TopicMarks
from towpath.relay.recovery.rebuild import (
    Evidence,
    MismatchFacts,
    RepairPlan,
    find_mismatches,
    plan_marks,
    plan_repair,
)
from towpath.relay.recovery.state import State, parse_state, publishing_settings
from towpath.schemas import topics as names
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.table_name import TableName
from towpath.settings import Settings
from towpath.settings.syntax import ROUTED_VALUE


def prepare_repair(settings: Settings, clock: Clock | None = None) -> RepairPlan:
    """
    Read Kafka and the source, and return the planned repair.

    Raises:
        StateRefusedError: The state is intact, or the slot is missing or in use.
        BrokerUnavailableError: Kafka cannot be reached.
        SourceUnavailableError: The source cannot be reached.
    """
    time = clock or SystemClock()
    state = _whole_state(settings)
    if state is not None:
        return _plan_marks(settings, state, time)
    found = _source_history(settings, time)
    with TopicReader(settings.kafka) as reader:
        own = _own_topics(settings, reader)
        contents = scan_topics(reader, own, settings.database.prefix)
    return plan_repair(
        Evidence(
            marks=streamed_marks(settings.database.prefix, contents.marks),
            published_log_lsn=contents.published_log_lsn,
            offsets=contents.offsets,
            found=found,
            highest_gap=_highest_gap(settings),
            settings=publishing_settings(settings),
            tables=_captured(settings),
            at=time.now().isoformat(timespec="seconds"),
        )
    )


def streamed_marks(
    prefix: str, marks: Mapping[str, TopicMarks]
) -> Mapping[str, TopicMarks]:
    """
    Return the marks of topics that the relay streams to.

    Other topics, such as the topics of READ rows for one sink, belong to a sink and may
    be deleted with it; a deleted topic that has marks halts the relay.
    """
    own, foreign = _own_streamed(prefix), ReservedTopics(prefix)
    return {
        topic: of_topic
        for topic, of_topic in marks.items()
        if topic in own or topic not in foreign
    }


def _plan_marks(settings: Settings, state: State, clock: Clock) -> RepairPlan:
    """Plan the repair of marks that no longer fit their topics."""
    with TopicReader(settings.kafka) as reader:
        ends = marked_ends(reader, state.marks)
        mismatches = find_mismatches(state.marks, reader.partition_counts(), ends)
        if not mismatches:
            reason = "the state exists and fits the topics: there is nothing to repair"
            raise StateRefusedError(reason)
        contents = scan_topics(reader, mismatches, settings.database.prefix)
    topics = MismatchFacts(
        mismatches,
        stored=state.marks,
        former=state.former,
        current=contents.marks,
        collections=_collections(settings, mismatches),
        at=clock.now().isoformat(timespec="seconds"),
    )
    return plan_marks(topics, _source_history(settings, clock))


def _collections(settings: Settings, topics: Iterable[str]) -> dict[str, str | None]:
    """Return each topic's collection, or None; omit topics of former tables."""
    prefix, outbox = settings.database.prefix, settings.relay.outbox
    filled: dict[str, str | None] = {
        names.table_topic(prefix, TableName.parse(table)): table
        for table in _captured(settings)
    }
    filled |= {
        names.outbox_topic(outbox.topic, view.aggregate_type): view.collection
        for view in outbox.view
    }
    return {
        topic: filled.get(topic)
        for topic in topics
        if topic in filled or names.table_of(prefix, topic) is None
    }


def apply_repair(
    settings: Settings, repair: RepairPlan, clock: Clock | None = None
) -> None:
    """
    Write the repaired state, with the lineage last so that a repair can be repeated.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses a topic or a record.
        SourceUnavailableError: The source cannot be reached to request snapshots.
    """
    source = settings.database
    topics = KafkaTopics(settings.kafka, settings.topics, clock or SystemClock())
    topics.recreate(source.prefix, repair.recreated)
    topics.open(source.prefix, settings.capture.names)
    if repair.requested:
        # Snapshots are requested before the marks are written, so that a repeated
        # repair requests them again.
        with (
            connect(source.dsn) as connection,
            translated_errors("requesting snapshots"),
        ):
            selects, relay = selects_by_table(settings), source.slot
            signal_id, tables = repair.signal_id, repair.requested
            request_tables(
                connection, signal_id, tables, selects, relay=relay, sweeps=True
            )
    topic = StateTopic(settings.kafka, source.prefix)
    if repair.is_whole:
        for key in set(newest_values(settings)) - set(repair.documents):
            remove_key(settings, key)
    for key, each in repair.documents.items():
        if each is None:
            remove_key(settings, key)
        else:
            topic.write(key, each)


def _whole_state(settings: Settings) -> State | None:
    """Return the state, if it has a lineage; None if it is lost or unreadable."""
    try:
        state = parse_state(newest_values(settings))
        return state if parse_lineages(state.lineage) else None
    except (StateLostError, StateRefusedError):
        return None


def _source_history(settings: Settings, clock: Clock) -> SourceHistory:
    """Read the source's history; its heartbeat is 0, as there is none to compare."""
    source = settings.database
    with ExitStack() as closing:
        connection = closing.enter_context(connect(source.dsn))
        stream = SlotStream(source.dsn, clock, Wakeup())
        closing.callback(stream.close)
        identity = stream.identify()
        with translated_errors("reading the source's history"):
            row = connection.execute(query("read_log_end")).fetchone()
            slot = read_slot(connection, source.slot)
        return SourceHistory(
            system_identifier=identity.system_identifier,
            timeline=identity.timeline,
            forks=stream.forks(identity.timeline),
            current_lsn=int(row[0]) if row else 0,
            slot=slot,
            heartbeat=0,
            slot_name=source.slot,
        )


def _highest_gap(settings: Settings) -> int:
    """Return the highest number among lineages whose gap has a signal, or 0."""
    with (
        connect(settings.database.dsn) as connection,
        translated_errors("reading the signals of gaps"),
    ):
        row = connection.execute(query("read_highest_gap")).fetchone()
    return int(row[0]) if row else 0


def _captured(settings: Settings) -> tuple[str, ...]:
    with connect(settings.database.dsn) as connection:
        return read_captured(connection, settings)


def _own_topics(settings: Settings, reader: TopicReader) -> set[str]:
    """Return the topics that may have streamed records."""
    source, outbox = settings.database, settings.relay.outbox
    prefix = source.prefix
    existing = set(reader.partition_counts())
    own = {
        names.table_topic(prefix, TableName.parse(table))
        for table in captured_in(existing, settings)
    }
    own |= _own_streamed(prefix)
    head, _, tail = outbox.topic.partition(ROUTED_VALUE)
    others = existing - _not_streamed(prefix)
    return own | {
        name
        for name in others
        if name.startswith(head) and name.endswith(tail) and not name.startswith("__")
    }


def _own_streamed(prefix: str) -> set[str]:
    """Return the relay's own topics with streamed records."""
    return {
        names.dead_letter_topic(prefix, "relay"),
        names.transaction_topic(prefix),
        names.message_topic(prefix),
    }


def _not_streamed(prefix: str) -> set[str]:
    return {
        names.state_topic(prefix),
        names.relations_topic(prefix),
        names.notifications_topic(prefix),
    }
