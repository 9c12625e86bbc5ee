"""
Traces one row or aggregate from the source through Kafka to the sinks.

Each topic is searched for the records of one key, from its first record, or from a
given time, to its current end. A sink that cannot be read is reported with its error;
the other sinks are reported as usual.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

import psycopg
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from psycopg import sql

from towpath.deploy.status import progress_of
from towpath.deploy.trace.journey import Journey, Scan, TracedRecord, TracedRoute
from towpath.schemas import headers as names
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import TowpathError, UsageError, first_line
from towpath.schemas.table_name import TableName
from towpath.schemas.topics import (
    BACKFILL,
    backfill_topic,
    is_backfill,
    table_topic,
)
from towpath.settings import Route, RouteKind, Settings, Sink
from towpath.sinks.dead_letters.parked import OpenDeadLetters
from towpath.sinks.dead_letters.requests import subject_summary
from towpath.sinks.errors import SourceUnavailableError
from towpath.sinks.kafka import client
from towpath.sinks.kafka.client import SINKS_GROUP, Topics, headers_of, records_to
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic
from towpath.sinks.kafka.offsets import position_of_headers
from towpath.sinks.kafka.progress_topic import ProgressReader
from towpath.sinks.key_text import key_parts, key_text
from towpath.sinks.kinds import reader_of
from towpath.sinks.ports import StoredRow
from towpath.sinks.postgres import connected
from towpath.sinks.verify.settle import KeyReader
from towpath.sinks.verify.source import primary_key_of

_OPERATIONS: Final[Mapping[str, str]] = {
    "c": "create",
    "u": "update",
    "d": "delete",
    "r": "read",
}
_TIMEOUT_S: Final = 10.0
# The starts of the first and the last year that a ``datetime`` can represent.
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_370_764_800_000
_READING: Final = {"isolation.level": "read_committed", "fetch.wait.max.ms": 10}


class UnknownTopicError(UsageError):
    """Kafka has no topic for the row or aggregate to be traced."""

    remedy: ClassVar[str] = (
        "Check the spelling. A topic exists after the first event of the type, or "
        "the first change to the table."
    )


def trace_aggregate(
    settings: Settings, type_: str, id_: str, since: datetime | None
) -> Journey:
    """
    Trace the events of an aggregate.

    Args:
        settings: The configuration.
        type_: The aggregate's type.
        id_: The aggregate's id.
        since: Only records from this time on; None for all records that Kafka has.

    Raises:
        UnknownTopicError: No event of the type was published.
        UnavailableError: The broker does not answer.
    """
    topic = settings.relay.outbox.topic_of(type_)
    subject, named = f"{type_} {id_}", key_text([id_])
    return _trace(settings, subject, topic, named, since, is_in_source=None)


def trace_row(
    settings: Settings, table: str, key: str, since: datetime | None
) -> Journey:
    """
    Trace a row of a table.

    Args:
        settings: The configuration.
        table: The table, ``schema.table``.
        key: The values of its primary key, in key order, joined with colons; a colon in
            a value is ``%3A``, and a percent sign ``%25``.
        since: Only records from this time on; None for all records that Kafka has.

    Raises:
        UsageError: There is no such table, or the key does not fit its primary key.
        UnknownTopicError: No change to the table was published.
        UnavailableError: The source or the broker does not answer.
    """
    try:
        name = TableName.parse(table)
    except ValueError as error:
        raise UsageError(str(error)) from error
    topic = table_topic(settings.database.prefix, name)
    is_in_source = _is_in_source(settings, name, key)
    subject = f"{table} {key}"
    # Two strings can name the same key: ``50%`` and ``50%25``.
    named = key_text(key_parts(key))
    return _trace(settings, subject, topic, named, since, is_in_source=is_in_source)


def _trace(
    settings: Settings,
    subject: str,
    topic: str,
    key: str,
    since: datetime | None,
    *,
    is_in_source: bool | None,
) -> Journey:
    found = Topics(settings.kafka).names()
    if topic not in found:
        message = f"Kafka has no topic {topic}"
        raise UnknownTopicError(message)
    topics = [topic, *sorted(n for n in found if n.startswith(topic + BACKFILL))]
    scans, records = [], []
    for one in topics:
        scan, of_key = _search(settings, one, key, since)
        scans.append(scan)
        records += of_key
    with closing(ProgressReader(settings, SystemClock())) as published:
        routes = [
            _route(settings, published, (sink, route), topic, key)
            for sink in settings.sink
            for route in sink.route
            if _reads(route, topic)
        ]
    return Journey(
        subject=subject,
        is_in_source=is_in_source,
        scans=scans,
        records=sorted(records, key=lambda record: record.position),
        routes=routes,
    )


def _reads(route: Route, topic: str) -> bool:
    if route.topic.endswith("*"):
        return topic.startswith(route.topic[:-1]) and not is_backfill(topic)
    return route.topic == topic


def _is_in_source(settings: Settings, table: TableName, key: str) -> bool | None:
    """Return whether the table currently has the row."""
    try:
        with closing(connected(settings.database.dsn)) as connection:
            columns = primary_key_of(connection, table.sql)
            parts = key_parts(key)
            if not columns:
                message = f"{table.text} has no primary key, so no row can be named"
                raise UsageError(message)
            if len(columns) != len(parts):
                message = (
                    f"the key of {table.text} has {len(columns)} values: "
                    f"{', '.join(columns)}; separate them with colons"
                )
                raise UsageError(message)
            is_row = sql.SQL(" and ").join(
                sql.SQL("{} = %s").format(sql.Identifier(column)) for column in columns
            )
            query = sql.SQL("select exists (select from {} where {})").format(
                sql.Identifier(table.schema, table.table), is_row
            )
            row = connection.execute(query, parts).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        # Postgres 15 reports a missing schema with a separate error.
        message = f"the source has no table {table.text}"
        raise UsageError(message) from error
    except psycopg.DataError as error:
        message = f"{key!r} is not a key of {table.text}: {first_line(error)}"
        raise UsageError(message) from error
    except psycopg.Error as error:
        raise SourceUnavailableError(str(error).strip()) from error
    return bool(row and row[0])


def _search(
    settings: Settings, topic: str, key: str, since: datetime | None
) -> tuple[Scan, list[TracedRecord]]:
    """Search a topic; return the number of records searched, and the key's records."""
    cluster = Topics(settings.kafka)
    ends = by_number(cluster.end_offsets([topic]).get(topic, {}))
    begins = by_number(cluster.first_offsets([topic]).get(topic, {}))
    consumer = client.consumer(settings.kafka, SINKS_GROUP, _READING)
    count = 0
    records: list[TracedRecord] = []
    try:
        if since is not None:
            begins |= offsets_at(consumer, topic, ends, since)
        for message in records_to(ends, consumer, topic, begins):
            count += 1
            if key in names_of_key(message.key()):
                records.append(_record(message))
    except KafkaException as error:
        raise client.unavailable(error) from error
    finally:
        consumer.close()
    return Scan(topic, count), records


def by_number(offsets: Mapping[str, int]) -> dict[int, int]:
    """Return offsets keyed by partition number."""
    return {int(partition): offset for partition, offset in offsets.items()}


def offsets_at(
    consumer: Consumer, topic: str, ends: Mapping[int, int], since: datetime
) -> dict[int, int]:
    """
    Return the offset of each partition's first record at or after a time.

    Raises:
        KafkaException: A partition's leader does not answer.
    """
    if not ends:
        # The client refuses a request for no partitions.
        return {}
    # Kafka interprets negative times as the beginning or the end of a partition.
    at_ms = max(0, int(since.timestamp() * 1000))
    wanted = [TopicPartition(topic, partition, at_ms) for partition in ends]
    found = consumer.offsets_for_times(wanted, timeout=_TIMEOUT_S)
    for one in found:
        if one.error is not None:
            raise KafkaException(one.error)
    # A partition without such a record is not searched: its search begins at its end.
    return {
        one.partition: one.offset if one.offset >= 0 else ends[one.partition]
        for one in found
    }


def names_of_key(key: bytes | str | None) -> Iterator[str]:
    """Yield the possible texts of a record's key, as ``key_text`` writes them."""
    if key is None:
        return
    text = key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
    # The key of an event is its aggregate's id.
    yield key_text([text])
    # A different program may have written an arbitrary key.
    with suppress(ValueError, TypeError, RecursionError):
        values = json.loads(text)
        if isinstance(values, dict):
            inner = values.get("payload", values) if "schema" in values else values
            yield key_text([*inner.values()] if isinstance(inner, dict) else [inner])
        elif isinstance(values, str):
            yield key_text([values])


def _record(message: Message) -> TracedRecord:
    pairs = headers_of(message)
    found = {name: value.decode("utf-8", "backslashreplace") for name, value in pairs}
    return TracedRecord(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        kind=found.get(names.EVENT_TYPE) or operation_of(message.value()),
        position=position_of_headers(pairs) or "",
        committed_at=time_of(message.timestamp()[1]),
        event_id=found.get(names.EVENT_ID),
        traceparent=found.get(names.TRACEPARENT),
    )


def time_of(time_ms: int) -> datetime:
    """Return a record's time, or the nearest date if the time is out of range."""
    nearest = min(max(time_ms, _FIRST_MS), _LAST_MS)
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=nearest)


def operation_of(value: bytes | str | None) -> str:
    """Return the operation of a row's record; empty if its format does not show it."""
    if value is None:
        return "tombstone"
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return ""
    inner = document.get("payload", document) if isinstance(document, dict) else {}
    operation = inner.get("op") if isinstance(inner, dict) else None
    return _OPERATIONS.get(str(operation), "")


def _route(
    settings: Settings,
    published: ProgressReader,
    sink_and_route: tuple[Sink, Route],
    topic: str,
    key: str,
) -> TracedRoute:
    sink, route = sink_and_route
    # A route with a ``key`` stores different keys, and an event log stores none.
    stores_position = route.kind is not RouteKind.EVENT_LOG and not route.key
    traced = TracedRoute(
        sink=sink.name, route=route.name, stores_position=stores_position, applied={}
    )
    try:
        progress = progress_of(published, sink)
        traced = replace(
            traced, applied=progress.applied, updated_at=progress.updated_at
        )
        found = _dead_letters(settings, sink, topic, key, progress.dead_letters)
        stored = _stored(settings, sink, route, key) if stores_position else None
    except TowpathError as error:
        return replace(traced, error=str(error))
    return replace(
        traced,
        dead_letters=found,
        stored_position=None if stored is None else stored.position,
        is_deleted=stored is not None and stored.is_deleted,
    )


def _dead_letters(
    settings: Settings, sink: Sink, topic: str, key: str, written: int
) -> Sequence[dict[str, object]]:
    """Summarize the key's open dead letters; read no topic if none was ever written."""
    if not written:
        return ()
    open_dead_letters = OpenDeadLetters().read(
        DeadLetterTopic(settings, sink.name).entries()
    )
    topics = {topic, backfill_topic(topic, sink.name)}
    return [
        subject_summary(subject, open_dead_letters.of(subject))
        for subject in open_dead_letters.dead_letters
        if subject.topic in topics and key in names_of_key(subject.key)
    ]


def _stored(settings: Settings, sink: Sink, route: Route, key: str) -> StoredRow | None:
    """Return the sink's newest row of a key, by a lookup or else a scan of all rows."""
    with closing(reader_of(sink, settings)) as reader:
        rows: Iterable[StoredRow] = (
            reader.at(route.name, [key])
            if isinstance(reader, KeyReader)
            else (row for row in reader.rows(route.name) if row.key == key)
        )
        return max(rows, key=lambda row: row.position, default=None)
