"""
The state of the platform as one document: parts, relay, snapshots, sinks, problems.

Each part is asked by itself: the failure of one is reported in its place, and the
others are reported all the same.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from towpath.deploy.local.lifecycle import PartState, PartStatus, part_document
from towpath.deploy.snapshots import signals
from towpath.deploy.snapshots.signals import INCOMPLETE
from towpath.deploy.status import offsets
from towpath.relay.commands.state import lineage_offset, slot_facts, table_report
from towpath.relay.commands.status import read_process_state
from towpath.schemas.clock import Clock
from towpath.schemas.failure import TowpathError
from towpath.schemas.position import format_lsn
from towpath.settings import Settings, Sink
from towpath.sinks.dead_letters.parked import OpenDeadLetters
from towpath.sinks.kafka.client import Topics
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic
from towpath.sinks.kafka.offsets import KafkaOldest
from towpath.sinks.state import incomplete
from towpath.sinks.state.lag import Alarm, budget_s, lag_of
from towpath.sinks.state.progress import (
    Progress,
    State,
    is_alive,
    progress_path,
    read_progress,
)
from towpath.sinks.wait.source import PostgresSlot

Document = dict[str, Any]

_LOST: Final = frozenset({"unreserved", "lost"})
_UNFINISHED: Final = frozenset({"queued", "waiting", "running", "paused"})


def overview(
    parts: Sequence[PartStatus], settings: Settings | None, clock: Clock
) -> Document:
    """
    Ask everybody how they are.

    Args:
        parts: The local stack's; none, if there is no local stack.
        settings: The configuration; None, if there is none yet.
        clock: The time.

    Returns:
        ``parts``, ``relay``, ``snapshots``, ``sinks``, and ``wrong``: a sentence for
        each thing that somebody should look at.
    """
    told: Document = {
        "parts": [part_document(part) for part in parts],
        "relay": None if settings is None else _relay(settings),
        "snapshots": [] if settings is None else _snapshots(settings),
        "sinks": [] if settings is None else _sinks(settings, clock),
    }
    critical_bytes = 0
    if settings is not None:
        critical_bytes = settings.relay.retained_critical_bytes
    told["wrong"] = [*problems_of(told, critical_bytes)]
    return told


def _relay(settings: Settings) -> Document:
    source = settings.database
    told: Document = {"slot": source.slot, "error": None, "active": False}
    process = read_process_state(settings.state_folder, source.slot)
    told["halted"] = "" if process is None else process.sentence
    told["lineage_offset"] = lineage_offset(settings)
    facts, error = slot_facts(settings)
    if facts is None:
        return told | {"error": error or f"there is no slot {source.slot}"}
    told |= {
        "active": facts.is_active,
        "confirmed_lsn": format_lsn(facts.confirmed_lsn),
        "retained_bytes": facts.retained_bytes,
        "wal_status": facts.wal_status,
    }
    try:
        slot = PostgresSlot(source.dsn, source.slot)
        try:
            sight = slot.see()
        finally:
            slot.close()
    except TowpathError as failure:
        return told | {"error": str(failure)}
    if sight is not None:
        told["lag_bytes"] = max(0, sight.log_end_lsn - sight.confirmed_lsn)
    return told | _tables(settings)


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


def _snapshots(settings: Settings) -> list[Document]:
    try:
        rows = list(signals.progress(settings.database))
    except TowpathError:
        # The relay's own line tells that the source does not answer.
        return []
    return [
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


def _is_incomplete(
    row: signals.TableProgress, rows: Sequence[signals.TableProgress]
) -> bool:
    """Tell whether rows are missing that no later snapshot has delivered."""
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
    oldest = KafkaOldest(kafka, source.prefix)
    try:
        return [
            _sink(settings, sink, Topics(kafka), oldest, clock)
            for sink in settings.sink
        ]
    finally:
        oldest.close()


def _sink(
    settings: Settings, sink: Sink, topics: Topics, oldest: KafkaOldest, clock: Clock
) -> Document:
    folder = settings.state_folder
    progress = read_progress(progress_path(folder, sink.name), sink.name)
    told = {
        "sink": sink.name,
        "kind": str(sink.kind),
        "driver": sink.driver,
        "is_alive": is_alive(folder, sink.name, clock.now()),
        "budget_s": budget_s(sink),
        "unfilled": incomplete.routes(folder, sink.name),
        "lag_records": None,
        "lag_s": None,
        "is_late": None,
        "open_letters": None,
    }
    told |= _counts(progress)
    told["running_state"] = str(progress.state) if told["is_alive"] else "stopped"
    try:
        ends = topics.end_offsets(topics.names())
        lag = lag_of(sink, progress.applied, ends, oldest, clock.now())
        told["open_letters"] = _open_letters(settings, progress)
    except TowpathError as failure:
        return told | {"error": progress.error or str(failure)}
    told |= {"lag_records": lag.records, "lag_s": round(lag.seconds, 3)}
    return told | {"is_late": is_late(told)}


def _open_letters(settings: Settings, progress: Progress) -> int:
    """
    Count the dead letters of a sink that nobody has replayed or discarded yet.

    The topic is read only if the sink has ever written to it.

    Raises:
        BrokerUnavailableError: The broker does not answer.
    """
    if not progress.dead_letters:
        return 0
    book = OpenDeadLetters().read(DeadLetterTopic(settings, progress.sink).entries())
    return sum(len(letters) for letters in book.letters.values())


def is_late(sink: Document) -> bool:
    """Tell whether a sink is known to be behind by more than twice its budget."""
    lag_s, alarm = sink["lag_s"], Alarm(sink["budget_s"])
    return lag_s is not None and alarm.take(lag_s)


def _counts(progress: Progress) -> Document:
    names = (
        *("state", "error", "position", "records", "rows", "stale", "tombstones"),
        *("dead_letters", "parked", "asked", "owed", "retries", "refused"),
        *("last_batch_ms", "last_stages_ms", "updated_at"),
    )
    return {name: getattr(progress, name) for name in names}


def problems_of(told: Document, critical_bytes: int) -> Iterator[str]:
    """
    Say what somebody should look at.

    Args:
        told: Parts, relay, snapshots and sinks.
        critical_bytes: So much log kept by the slot is too much.
    """
    for part in told["parts"]:
        if part["state"] is PartState.STOPPED:
            yield f"the part {part['name']} is stopped"
    relay = told["relay"]
    if relay is not None:
        yield from _wrong_relay(relay, critical_bytes)
    for table in told["snapshots"]:
        if table["state"] == INCOMPLETE:
            yield f"snapshot {table['snapshot']} of {table['table']}: {table['error']}"
    for sink in told["sinks"]:
        yield from _wrong_sink(sink)


def _wrong_relay(relay: Document, critical_bytes: int) -> Iterator[str]:
    if relay["error"]:
        yield f"the relay: {relay['error']}"
    elif not relay["active"]:
        why = relay["halted"] or "does not run"
        yield f"nobody follows the slot {relay['slot']}: the relay {why}"
    yield from relay.get("problems", ())
    if relay.get("wal_status") in _LOST:
        yield f"the slot's log is {relay['wal_status']}"
    if relay.get("retained_bytes", 0) >= critical_bytes:
        yield f"the slot keeps {relay['retained_bytes']:,} bytes of log"


def _wrong_sink(sink: Document) -> Iterator[str]:
    name = sink["sink"]
    if sink["state"] is State.FAILED or sink["error"]:
        yield f"{name}: {sink['error']}"
    elif not sink["is_alive"]:
        yield f"{name}: its driver {sink['driver']} does not run"
    elif sink["refused"]:
        yield f"{name}: {offsets.refusal(sink['refused'])}"
    if is_late(sink):
        yield (
            f"{name}: {sink['lag_s']:,.0f} s behind, more than twice its budget of "
            f"{sink['budget_s']:g} s"
        )
    if sink["parked"]:
        yield f"{name}: {sink['parked']:,} keys are parked"
    if sink["unfilled"]:
        routes = ", ".join(sink["unfilled"])
        yield f"{name}: it lost rows of {routes}, which are being read anew"
