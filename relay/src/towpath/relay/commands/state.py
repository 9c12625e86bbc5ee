"""
``towpath relay state``: show the state, export it, and skip a transaction.

The commands also work while the relay is running; it reads their records when its next
session starts. The log below the confirmed LSN cannot be streamed again: a slot never
moves back.

LSNs are written in Postgres's format, and positions in the format of headers.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson
from confluent_kafka import Message

from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import FIRST_PARTITION, Record
from towpath.relay.errors import StateRefusedError
from towpath.relay.kafka.reading import TopicReader
from towpath.relay.kafka.recovery import marked_ends, read_parked
from towpath.relay.kafka.state import StateTopic, write_now
from towpath.relay.postgres.catalog import PostgresCatalog, SlotFacts
from towpath.relay.postgres.connect import connect
from towpath.relay.postgres.known_tables import TableReport, report_tables
from towpath.relay.postgres.source_checks import source_problems
from towpath.relay.recovery.lineage import Lineage, parse_lineages
from towpath.relay.recovery.marks import Confirmed, TopicMarks
from towpath.relay.recovery.state import SKIP_KEY, State, changed_settings, parse_state
from towpath.schemas import topics as names
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import TowpathError
from towpath.schemas.findings import CheckFinding
from towpath.schemas.position import (
    READ_ORDINAL,
    format_lsn,
    parse_lsn,
    parse_position,
)
from towpath.settings import Settings


def newest_values(settings: Settings) -> dict[str, bytes]:
    """
    Return the newest value of each key of the state topic.

    Raises:
        StateRefusedError: There is no state topic.
        BrokerUnavailableError: Kafka cannot be reached.
    """
    newest: dict[str, bytes] = {}
    for message in _messages(settings):
        key, value = (message.key() or b"").decode(errors="replace"), message.value()
        newest.pop(key, None)
        if value:
            newest[key] = value
    return newest


def _messages(settings: Settings) -> Iterator[Message]:
    """
    Yield every record of the state topic, oldest first.

    Raises:
        StateRefusedError: There is no state topic.
        BrokerUnavailableError: Kafka cannot be reached.
    """
    topic = StateTopic(settings.kafka, settings.database.prefix)
    with TopicReader(settings.kafka) as reader:
        if topic.topic not in reader.partition_counts():
            reason = f"there is no state topic {topic.topic}"
            raise StateRefusedError(reason)
        yield from topic.messages(reader)


def lineage_offset(settings: Settings) -> int:
    """Return the offset of the current lineage; 0 if it is unknown or unreadable."""
    try:
        lineages = parse_lineages(parse_state(newest_values(settings)).lineage)
    except TowpathError:
        return 0
    return lineages[-1].offset if lineages else 0


def remove_key(settings: Settings, key: str) -> None:
    """
    Remove a key from the state topic; the removal is durable when the call returns.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses the record.
    """
    topic = names.state_topic(settings.database.prefix)
    name, size = key.encode(), len(key)
    tombstone = Record(topic, name, None, [], b"", 0, size, FIRST_PARTITION)
    write_now(settings.kafka, tombstone)


def slot_facts(settings: Settings) -> tuple[SlotFacts | None, str | None]:
    """Return the server's facts about the slot, or why they cannot be read."""
    source = settings.database
    try:
        with connect(source.dsn) as connection:
            return PostgresCatalog(connection).slot(source.slot), None
    except TowpathError as error:
        return None, str(error)


def table_report(settings: Settings) -> tuple[TableReport, list[CheckFinding]]:
    """
    Return the report on all captured tables, and other problems with the source.

    Raises:
        SourceUnavailableError: The source cannot be reached.
    """
    with connect(settings.database.dsn) as connection:
        return report_tables(connection, settings), source_problems(
            connection, settings
        )


Ends = Mapping[tuple[str, int], int]


class StateContext(NamedTuple):
    """
    The facts that are shown along with the state.

    Attributes:
        topic: The state topic.
        ends: The end offset of each partition that has a mark; -1 if the partition is
            missing.
        parked: The parked aggregates.
        skips: The documents of requested skips, by their keys in the state topic.
        differing: Settings of the file that differ from the stored ones.
        slot: The slot's facts; None if there is no slot, or they cannot be read.
        source_error: Why the source cannot be read; None if it can.
    """

    topic: str
    ends: Ends
    parked: ParkedAggregates | None
    skips: Mapping[str, Mapping[str, Any]]
    differing: tuple[str, ...]
    slot: SlotFacts | None
    source_error: str | None


def state_document(state: State, context: StateContext, first: int) -> dict[str, Any]:
    """
    Return the state and its context as one document.

    Args:
        state: The state topic's content.
        context: The facts that are shown along with the state.
        first: The number of parked aggregates to list.
    """
    return {
        "topic": context.topic,
        "lineages": [_lineage(each) for each in parse_lineages(state.lineage)],
        "confirmed": confirmed_document(state),
        "marks": list(_marks(state.marks, context.ends)),
        "parked": _parked(context.parked, first),
        "skips": list(_skips(context.skips)),
        "settings_differ": list(context.differing),
        "slot": slot_document(context.slot),
        "source_error": context.source_error,
    }


def confirmed_document(state: State) -> dict[str, Any] | None:
    """Return the last checkpoint; None before the first."""
    confirmed = state.confirmed
    if confirmed is None:
        return None
    return confirmed._asdict() | {
        "lsn": format_lsn(confirmed.lsn),
        "log_lsn": format_lsn(confirmed.log_lsn),
        "published_log_lsn": format_lsn(confirmed.published_log_lsn),
    }


def slot_document(facts: SlotFacts | None) -> dict[str, Any] | None:
    """Return the server's facts about the slot."""
    if facts is None:
        return None
    return {
        "active": facts.is_active,
        "holder_pid": facts.holder_pid,
        "confirmed_lsn": format_lsn(facts.confirmed_lsn),
        "retained_bytes": facts.retained_bytes,
        "wal_status": facts.wal_status,
    }


def _lineage(lineage: Lineage) -> dict[str, Any]:
    gap, start_lsn = lineage.gap, lineage.start_lsn
    return {
        "number": lineage.number,
        "system_identifier": lineage.system_identifier,
        "timeline": lineage.timeline,
        "offset": lineage.offset,
        "slot": lineage.slot,
        "start_lsn": None if start_lsn is None else format_lsn(start_lsn),
        "started_at": lineage.started_at,
        "gap": None
        if gap is None
        else {
            "reason": gap.reason,
            "since_lsn": format_lsn(gap.since_lsn),
            "at": gap.at,
            "plan": list(gap.plan),
            "started": gap.started,
        },
    }


def _marks(marks: Mapping[str, TopicMarks], ends: Ends) -> Iterator[dict[str, Any]]:
    for topic, of_topic in sorted(marks.items()):
        for partition, mark in sorted(of_topic.items()):
            end = ends.get((topic, partition))
            yield {
                "topic": topic,
                "partition": partition,
                "next_offset": mark.next_offset,
                "end_offset": None if end in {None, -1} else end,
                "position": mark.position.decode() if mark.position else None,
            }


def _parked(parked: ParkedAggregates | None, first: int) -> dict[str, Any] | None:
    if parked is None:
        return None
    found: Sequence[dict[str, Any]] = [
        {
            "aggregate_type": aggregate_type,
            "aggregate_id": aggregate_id.decode(errors="replace"),
            "since": spans.bounds[-1].decode(),
        }
        for aggregate_id, types in parked.spans.items()
        for aggregate_type, spans in types.items()
        if spans.is_open
    ]
    return {
        "count": len(parked),
        "first": sorted(found, key=lambda each: str(each["since"]))[:first],
    }


def _skips(skips: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for key, skip in sorted(skips.items()):
        yield {
            "lsn": key.removeprefix(SKIP_KEY),
            "asked_at": skip.get("asked_at"),
            "done": bool(skip.get("done")),
        }


_ALIGNMENT: Final = 8
_NO_LIMIT: Final = 1 << 62


def show_state(settings: Settings, first: int) -> dict[str, Any]:
    """
    Return everything that is known about the state, as one document.

    Raises:
        StateRefusedError: There is no state topic.
        StateLostError: The state cannot be read.
        BrokerUnavailableError: Kafka cannot be reached.
    """
    source = settings.database
    stored = newest_values(settings)
    state = parse_state(stored)
    with TopicReader(settings.kafka) as reader:
        ends = marked_ends(reader, state.marks)
        letters = names.dead_letter_topic(source.prefix, "relay")
        has_letters = letters in reader.partition_counts()
        parked = read_parked(reader, source.prefix, _NO_LIMIT) if has_letters else None
    facts, source_error = slot_facts(settings)
    context = StateContext(
        topic=names.state_topic(source.prefix),
        ends=ends,
        parked=parked,
        skips={
            key: orjson.loads(value)
            for key, value in stored.items()
            if key.startswith(SKIP_KEY)
        },
        differing=()
        if state.settings is None
        else changed_settings(settings, state.settings),
        slot=facts,
        source_error=source_error,
    )
    return state_document(state, context, first)


def export_state(settings: Settings) -> Iterator[dict[str, Any]]:
    """
    Yield every record of the state topic, oldest first.

    Raises:
        StateRefusedError: There is no state topic.
        BrokerUnavailableError: Kafka cannot be reached.
    """
    for message in _messages(settings):
        _, timestamp_ms = message.timestamp()
        yield {
            "offset": message.offset(),
            "timestamp_ms": timestamp_ms,
            "key": (message.key() or b"").decode(errors="replace"),
            **_exported(message.value()),
        }


def _exported(value: bytes | None) -> dict[str, Any]:
    try:
        return {"value": orjson.loads(value) if value else None}
    except orjson.JSONDecodeError:
        return {"value_base64": base64.b64encode(value or b"").decode()}


def resolve_skip(settings: Settings, text: str) -> int:
    """
    Return the commit LSN of a transaction that can be skipped.

    ``text`` is an LSN as ``X/Y``, or the position of one of the transaction's records.

    Raises:
        StateRefusedError: The transaction cannot be skipped.
        StateLostError: The state cannot be read.
        BrokerUnavailableError: Kafka cannot be reached.
    """
    state = parse_state(newest_values(settings))
    lineages = parse_lineages(state.lineage)
    if not lineages:
        reason = "the state has no lineage: the relay has not run yet"
        raise StateRefusedError(reason)
    lsn = _parse_target(text, lineages[-1].offset)
    if lsn % _ALIGNMENT:
        reason = (
            f"{format_lsn(lsn)} is not the LSN of a commit: those are multiples of 8"
        )
        raise StateRefusedError(reason)
    facts, _ = slot_facts(settings)
    confirmed_lsn = _confirmed_lsn(state.confirmed, lineages[-1])
    highest = max(confirmed_lsn, facts.confirmed_lsn if facts else 0)
    # A commit whose record begins at the confirmed LSN is still to be streamed.
    if lsn < highest:
        reason = (
            f"{format_lsn(lsn)} is confirmed already, up to {format_lsn(highest)}: "
            "Postgres never streams it again"
        )
        raise StateRefusedError(reason)
    return lsn


def _confirmed_lsn(confirmed: Confirmed | None, lineage: Lineage) -> int:
    """Return the confirmed LSN of a lineage; its start before its first checkpoint."""
    start_lsn = lineage.start_lsn or 0
    if confirmed is None:
        return start_lsn
    # A checkpoint of an earlier lineage lies below the offset.
    return max(start_lsn, confirmed.log_lsn - lineage.offset)


def _parse_target(text: str, offset: int) -> int:
    """
    Return the LSN that ``text`` names, in the lineage with this offset.

    Raises:
        StateRefusedError: The text does not name a transaction of this lineage.
    """
    try:
        return parse_lsn(text)
    except ValueError:
        pass
    try:
        position = parse_position(text)
    except ValueError as error:
        reason = f"{text!r} is neither an LSN like 0/16B3748 nor a position"
        raise StateRefusedError(reason) from error
    if position.ordinal == READ_ORDINAL:
        reason = (
            f"{text} belongs to no transaction: a snapshot read the record's row, or "
            "its message was written outside a transaction"
        )
        raise StateRefusedError(reason)
    if position.log_lsn < offset:
        reason = (
            f"{text} is a position of an earlier lineage: Postgres never streams it "
            "again"
        )
        raise StateRefusedError(reason)
    return position.log_lsn - offset


def request_skip(settings: Settings, lsn: int, clock: Clock | None = None) -> None:
    """
    Request the skip of the transaction whose LSN ``resolve_skip`` returned.

    Raises:
        StateRefusedError: There is no state topic.
        StateLostError: The state cannot be read.
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses the record.
    """
    at = (clock or SystemClock()).now().isoformat(timespec="seconds")
    lineages = parse_lineages(parse_state(newest_values(settings)).lineage)
    # Another lineage may have a transaction at the same LSN.
    log_lsn = lineages[-1].offset + lsn
    StateTopic(settings.kafka, settings.database.prefix).write(
        f"{SKIP_KEY}{format_lsn(lsn)}",
        {"asked_at": at, "done": False, "log_lsn": log_lsn},
    )


def cancel_skip(settings: Settings, text: str) -> str:
    """
    Cancel a pending skip, and return its LSN.

    Raises:
        StateRefusedError: No skip of this LSN is pending.
        StateLostError: The state cannot be read.
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses the record.
    """
    state = parse_state(newest_values(settings))
    lineages = parse_lineages(state.lineage)
    offset = lineages[-1].offset if lineages else 0
    lsn = _parse_target(text, offset)
    if offset + lsn not in state.skips:
        reason = f"no skip of {format_lsn(lsn)} is pending"
        raise StateRefusedError(reason)
    remove_key(settings, f"{SKIP_KEY}{format_lsn(lsn)}")
    return format_lsn(lsn)
