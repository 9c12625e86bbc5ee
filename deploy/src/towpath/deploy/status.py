"""
The state of the platform as one document: parts, relay, snapshots, sinks, problems.

Each part is read separately, and a failure is reported in the entry of that part. The
lag of a sink is the number of records between the offsets that its driver publishes
after each batch and the ends of its topics on the broker.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from towpath.deploy.errors import SourceUnreachableError
from towpath.deploy.local.lifecycle import PartState, PartStatus, part_document
from towpath.deploy.snapshots import signals
from towpath.deploy.snapshots.signals import INCOMPLETE
from towpath.relay.commands.state import lineage_offset, slot_facts, table_report
from towpath.relay.commands.status import read_process_state
from towpath.schemas.clock import Clock
from towpath.schemas.failure import TowpathError, with_remedy
from towpath.schemas.position import format_lsn
from towpath.schemas.table_name import TableName
from towpath.schemas.topics import dead_letter_topic, is_backfill, table_of, table_topic
from towpath.settings import Settings, Sink
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.parked import OpenDeadLetters
from towpath.sinks.kafka.client import Topics
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic
from towpath.sinks.kafka.offsets import KafkaRecordAges
from towpath.sinks.kafka.progress_topic import ProgressReader
from towpath.sinks.state.declare import records_between
from towpath.sinks.state.lag import Alarm, budget_s, lag_of
from towpath.sinks.state.progress import Offsets, Progress, State
from towpath.sinks.state.published import ProgressSource, ReceivedProgress, not_alive
from towpath.sinks.wait.source import PostgresSlot

Document = dict[str, Any]

_LOST: Final = frozenset({"unreserved", "lost"})
_UNFINISHED: Final = frozenset({"queued", "running", "paused"})


def overview(
    parts: Sequence[PartStatus], settings: Settings | None, clock: Clock
) -> Document:
    """
    Return the state of the platform.

    Args:
        parts: The parts of the local stack; empty without a local stack.
        settings: The configuration; None if there is none yet.
        clock: Provides the time for ages and lags.

    Returns:
        ``parts``, ``relay``, ``snapshots``, ``sinks``, and ``wrong``: a sentence for
        each problem.
    """
    document: Document = {"parts": [part_document(part) for part in parts]}
    if settings is None:
        document |= {"relay": None, "snapshots": [], "sinks": []}
        return document | {"wrong": [*problems_of(document, 0)]}
    relay, is_slot_read = _relay(settings)
    snapshots, unread = _snapshots(settings)
    document |= {
        "relay": relay,
        "snapshots": snapshots,
        "sinks": _sinks(settings, clock),
    }
    wrong = [*problems_of(document, settings.relay.retained_critical_bytes)]
    # If the slot cannot be read either, the relay's entry has the source's error.
    is_known = isinstance(unread, SourceUnreachableError) and not is_slot_read
    if unread is not None and not is_known:
        reason = with_remedy(str(unread), unread.remedy)
        wrong.append(f"the snapshots cannot be read: {reason}")
    return document | {"wrong": wrong}


def _relay(settings: Settings) -> tuple[Document, bool]:
    """Return the state of the relay, and whether its slot could be looked up."""
    source = settings.database
    document: Document = {"slot": source.slot, "error": None, "active": False}
    process = read_process_state(settings.state_folder, source.slot)
    document["halted"] = "" if process is None else process.sentence
    document["lineage_offset"] = lineage_offset(settings)
    facts, error = slot_facts(settings)
    if error is not None:
        return document | {"error": error}, False
    if facts is None:
        return document | {"error": f"there is no slot {source.slot}"}, True
    document |= {
        "active": facts.is_active,
        "confirmed_lsn": format_lsn(facts.confirmed_lsn),
        "retained_bytes": facts.retained_bytes,
        "wal_status": facts.wal_status,
    }
    try:
        slot = PostgresSlot(source.dsn, source.slot)
        try:
            position = slot.status()
        finally:
            slot.close()
    except TowpathError as failure:
        return document | {"error": str(failure)}, True
    if position is not None:
        document["lag_bytes"] = max(0, position.log_end_lsn - position.confirmed_lsn)
    return document | _tables(settings), True


def _tables(settings: Settings) -> Document:
    try:
        tables, problems = table_report(settings)
    except TowpathError as failure:
        return {"error": str(failure)}
    return {
        "problems": [str(each) for each in problems],
        "dropped_tables": list(tables.dropped),
        "changed_keys": dict(tables.changed_keys),
        "tables_without_snapshot": dict(tables.unreadable),
        "notices": [f"{each.what}; {each.cure}" for each in tables.findings()],
    }


def _snapshots(settings: Settings) -> tuple[list[Document], TowpathError | None]:
    """Return the snapshots to be shown, and the error if they cannot be read."""
    try:
        rows = list(signals.progress(settings.database))
    except TowpathError as failure:
        return [], failure
    found = [
        {
            "snapshot": row.snapshot_id,
            "table": row.collection,
            "target": row.target,
            "state": row.state,
            "rows": row.rows,
            "percent": row.percent,
            "error": row.error,
        }
        for row in rows
        if row.state in _UNFINISHED or _is_incomplete(row, rows)
    ]
    return found, None


def _is_incomplete(
    row: signals.TableProgress, rows: Sequence[signals.TableProgress]
) -> bool:
    """Return whether the snapshot lacks rows that no later snapshot has delivered."""
    if row.state != INCOMPLETE:
        return False
    later = rows[rows.index(row) + 1 :]
    return not any(
        other.collection == row.collection
        and other.target in {None, row.target}
        and other.state == "completed"
        and other.asked_keys is None
        for other in later
    )


def _sinks(settings: Settings, clock: Clock) -> list[Document]:
    source, kafka = settings.database, settings.kafka
    if not settings.sink:
        return []
    oldest = KafkaRecordAges(kafka, source.prefix)
    published = ProgressReader(settings, clock)
    try:
        return [
            _sink(settings, sink, published, oldest, clock) for sink in settings.sink
        ]
    finally:
        published.close()
        oldest.close()


def _sink(
    settings: Settings,
    sink: Sink,
    published: ProgressSource,
    oldest: KafkaRecordAges,
    clock: Clock,
) -> Document:
    received, unread = _read_progress(published, sink)
    progress = Progress(sink.name) if received is None else received.record.progress
    document = {
        "sink": sink.name,
        "kind": str(sink.kind),
        "driver": sink.driver,
        "is_alive": received is not None and received.is_alive,
        "not_alive": unread or not_alive(received, sink.name),
        "budget_s": budget_s(sink),
        "unfilled": () if received is None else received.record.unfilled,
        "lag_records": None,
        "lag_s": None,
        "is_late": None,
        "open_letters": None,
    }
    document |= _counts(progress)
    document["running_state"] = (
        str(progress.state) if document["is_alive"] else "stopped"
    )
    if unread is not None:
        return document | {"error": unread, "running_state": "unknown"}
    try:
        topics = Topics(settings.kafka)
        ends = topics.end_offsets(topics.names())
        lag = lag_of(sink, progress.applied, ends, oldest, clock.now())
        document["open_letters"] = _count_open_dead_letters(settings, progress)
    except TowpathError as failure:
        return document | {"error": progress.error or str(failure)}
    document |= {"lag_records": lag.records, "lag_s": round(lag.seconds, 3)}
    return document | {"is_late": is_late(document)}


def _read_progress(
    published: ProgressSource, sink: Sink
) -> tuple[ReceivedProgress | None, str | None]:
    """Return the last progress of a sink's driver, or why it cannot be read."""
    try:
        return published.read(sink.name), None
    except TowpathError as failure:
        return None, str(failure)


def _count_open_dead_letters(settings: Settings, progress: Progress) -> int:
    """
    Count a sink's dead letters that have been neither replayed nor discarded.

    The topic is read only if the sink has ever written to it.

    Raises:
        BrokerUnavailableError: The broker does not answer.
    """
    if not progress.dead_letters:
        return 0
    open_dead_letters = OpenDeadLetters().read(
        DeadLetterTopic(settings, progress.sink).entries()
    )
    return sum(len(letters) for letters in open_dead_letters.dead_letters.values())


def is_late(sink: Document) -> bool:
    """Return whether a sink is known to be behind by more than twice its budget."""
    lag_s, alarm = sink["lag_s"], Alarm(sink["budget_s"])
    return lag_s is not None and alarm.update(lag_s)


def _counts(progress: Progress) -> Document:
    names = (
        *("state", "error", "position", "records", "rows", "stale", "tombstones"),
        *("dead_letters", "parked", "asked", "pending_refetches", "retries", "refused"),
        *("last_batch_ms", "last_stages_ms", "updated_at"),
    )
    return {name: getattr(progress, name) for name in names}


def problems_of(document: Document, critical_bytes: int) -> Iterator[str]:
    """
    List the problems of a document, one sentence each.

    Args:
        document: Parts, relay, snapshots and sinks.
        critical_bytes: The size at which the retained log becomes a problem.
    """
    for part in document["parts"]:
        if part["state"] is PartState.STOPPED:
            yield f"the part {part['name']!r} is stopped"
    relay = document["relay"]
    if relay is not None:
        yield from _relay_problems(relay, critical_bytes)
    for table in document["snapshots"]:
        if table["state"] == INCOMPLETE:
            yield f"snapshot {table['snapshot']} of {table['table']}: {table['error']}"
    for sink in document["sinks"]:
        yield from _sink_problems(sink)


def _relay_problems(relay: Document, critical_bytes: int) -> Iterator[str]:
    if relay["error"]:
        yield f"the relay: {relay['error']}"
    elif not relay["active"]:
        state = relay["halted"] or "is not running"
        yield f"no relay is consuming the slot {relay['slot']}: the relay {state}"
    yield from relay.get("problems", ())
    if relay.get("wal_status") in _LOST:
        yield f"the slot's log is {relay['wal_status']}"
    if relay.get("retained_bytes", 0) >= critical_bytes:
        yield f"the slot retains {relay['retained_bytes']:,} bytes of log"


def _sink_problems(sink: Document) -> Iterator[str]:
    name = sink["sink"]
    if sink["state"] is State.FAILED or sink["error"]:
        yield f"{name}: {sink['error']}"
    elif not sink["is_alive"]:
        driver, reason = sink["driver"], sink["not_alive"]
        yield f"{name}: its driver {driver!r} is not running: {reason}"
    elif sink["refused"]:
        yield f"{name}: {refused_text(sink['refused'])}"
    if is_late(sink):
        yield (
            f"{name}: {sink['lag_s']:,.0f} s behind, more than twice its budget of "
            f"{sink['budget_s']:g} s"
        )
    if sink["parked"]:
        keys = "1 key is" if sink["parked"] == 1 else f"{sink['parked']:,} keys are"
        yield f"{name}: {keys} parked"
    if sink["unfilled"]:
        routes = ", ".join(sink["unfilled"])
        yield f"{name}: it lost rows, which are being read again (routes: {routes})"


# The offset of the next record, by topic and partition (as text).
Ends = Mapping[str, Mapping[str, int]]


def read_ends(topics: Topics) -> Ends:
    """
    Return the end offset of every partition of every topic.

    Raises:
        BrokerUnavailableError: The broker does not answer.
    """
    return topics.end_offsets(topics.names())


def lag_records(sink: Sink, applied: Offsets, ends: Ends) -> int:
    """
    Count the records of a sink's topics that it has not applied.

    All records of a partition without an applied offset count, because the sink has
    applied none of them.
    """
    topics = Routes(sink).matching(ends)
    return records_between(applied, {topic: ends[topic] for topic in topics})


def progress_of(published: ProgressSource, sink: Sink) -> Progress:
    """
    Read the newest progress of a sink, even if its driver is not running.

    Raises:
        TowpathError: The progress cannot be read.
    """
    received = published.read(sink.name)
    return Progress(sink.name) if received is None else received.record.progress


def refused_text(reason: str) -> str:
    """Return the sentence about a sink that refuses its changed block."""
    return f"its changed block is refused; the sink continues as before: {reason}"


def table_records(settings: Settings, ends: Ends) -> int:
    """Count all records ever written to the table topics that all sinks share."""
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
            and settings.capture.includes(table)
        )
    )
    return _records(ends, names)


def is_event_topic(settings: Settings, topic: str) -> bool:
    """Return whether a topic's name matches the pattern of the outbox topics."""
    head, _, tail = settings.relay.outbox.topic.partition("{aggregate_type}")
    return topic.startswith(head) and topic.endswith(tail)


def event_records(settings: Settings, ends: Ends) -> int:
    """Count all records ever written to the outbox topics that all sinks share."""
    names = (name for name in ends if is_event_topic(settings, name))
    return _records(ends, (n for n in names if not is_backfill(n)))


def dead_letter_records(settings: Settings, ends: Ends) -> int:
    """Count all records ever written to dead-letter topics, the relay's included."""
    head = dead_letter_topic(settings.database.prefix, "")
    return _records(ends, (name for name in ends if name.startswith(head)))


def _records(ends: Ends, names: Iterable[str]) -> int:
    return sum(sum(ends.get(name, {}).values()) for name in names)
