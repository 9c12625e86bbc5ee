"""
Records of topics and dead letters of sinks, as the console shows them.

A query of a topic reads a bounded number of records. Columns that a route masks or
hashes are in the topic in clear text; the console hides them in the values of records,
but not in keys and headers. For a value that is not JSON, such as Avro, only the size
is shown.
"""

import heapq
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaException, Message

from towpath.deploy.console import Document
from towpath.deploy.status import is_event_topic
from towpath.deploy.trace import (
    UnknownTopicError,
    by_number,
    names_of_key,
    offsets_at,
    operation_of,
    time_of,
)
from towpath.schemas import headers as names
from towpath.schemas.topics import BACKFILL, dead_letter_topic, is_backfill
from towpath.settings import Route, Settings
from towpath.sinks.dead_letters.parked import OpenDeadLetters
from towpath.sinks.dead_letters.requests import (
    dead_letter_documents,
    named_subjects,
    subject_summary,
)
from towpath.sinks.kafka import client
from towpath.sinks.kafka.client import SINKS_GROUP, Topics, headers_of, records_to
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic
from towpath.sinks.kafka.offsets import position_of_headers
from towpath.sinks.state.declare import sink_named

HIDDEN: Final = "••••••"
MAX_RECORDS: Final = 200
# A search by key reads at most this many records: the newest, or those from an offset.
SEARCHED: Final = 50_000
_READING: Final = {"isolation.level": "read_committed", "fetch.wait.max.ms": 10}


class RecordQuery(NamedTuple):
    """
    A selection of a topic's records.

    Attributes:
        topic: The topic.
        key: Only records with this key, as text or as its values joined by colons.
        partition: Only this partition.
        offset: From this offset on; needs a partition.
        since: Only records from this time on.
        limit: The maximum number of records.
    """

    topic: str
    key: str | None = None
    partition: int | None = None
    offset: int | None = None
    since: datetime | None = None
    limit: int = 50


class FoundRecords(NamedTuple):
    """The records that were found, newest first, and the number of searched records."""

    records: Sequence[Document]
    read: int
    hidden: Sequence[str]


def topic_names(settings: Settings) -> list[str]:
    """
    Return the topics of the platform's tables, events and state.

    Topics that are named by the aggregate type alone cannot be recognized.

    Raises:
        BrokerUnavailableError: The broker does not answer.
    """
    prefix = settings.database.prefix
    is_known = settings.relay.outbox.topic != "{aggregate_type}"
    return [
        name
        for name in Topics(settings.kafka).names()
        if name.startswith(f"{prefix}.")
        or (is_known and is_event_topic(settings, name.partition(BACKFILL)[0]))
    ]


def find_records(settings: Settings, query: RecordQuery) -> FoundRecords:
    """
    Read records of a topic.

    Raises:
        UnknownTopicError: Kafka has no such topic, or it is not one of the platform's.
        BrokerUnavailableError: The broker does not answer.
    """
    if query.topic not in topic_names(settings):
        message = f"the platform has no topic {query.topic}"
        raise UnknownTopicError(message)
    hidden = hidden_columns(settings, query.topic)
    read = itertools.count()
    matching = (
        _record(one, hidden)
        for one, _ in zip(_read(settings, query), read, strict=False)
        if query.key is None or _has_key(one, query.key)
    )
    # A key can have thousands of large records, so only the shown records are kept.
    found = heapq.nlargest(
        query.limit, matching, key=lambda record: (record["at"], record["offset"])
    )
    return FoundRecords(found, next(read), sorted(hidden))


def _read(settings: Settings, query: RecordQuery) -> Iterator[Message]:
    cluster = Topics(settings.kafka)
    ends = by_number(cluster.end_offsets([query.topic]).get(query.topic, {}))
    begins = by_number(cluster.first_offsets([query.topic]).get(query.topic, {}))
    if query.partition is not None:
        ends = {p: end for p, end in ends.items() if p == query.partition}
    most = query.limit if query.key is None else SEARCHED // max(1, len(ends))
    consumer = client.consumer(settings.kafka, SINKS_GROUP, _READING)
    try:
        if query.since is not None:
            begins |= offsets_at(consumer, query.topic, ends, query.since)
        if query.offset is not None:
            begins = {p: max(query.offset, begins.get(p, 0)) for p in ends}
            ends = {p: min(end, begins[p] + most) for p, end in ends.items()}
        begins = {p: max(begins.get(p, 0), ends[p] - most) for p in ends}
        yield from records_to(ends, consumer, query.topic, begins)
    except KafkaException as error:
        raise client.unavailable(error) from error
    finally:
        consumer.close()


def _has_key(message: Message, key: str) -> bool:
    """Return whether a record has a key, as text or in the form of ``key_text``."""
    own = message.key()
    return own is not None and key in {_text(own), *names_of_key(own)}


def _record(message: Message, hidden: frozenset[str]) -> Document:
    pairs = headers_of(message)
    found = {name: value.decode("utf-8", "backslashreplace") for name, value in pairs}
    _, time_ms = message.timestamp()
    key, value = message.key(), message.value()
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "at": time_of(time_ms).isoformat(timespec="milliseconds"),
        "kind": found.get(names.EVENT_TYPE) or operation_of(value),
        "position": position_of_headers(pairs) or "",
        "key": None if key is None else _text(key),
        "headers": found,
        "value": None if value is None else shown_value(value, hidden),
    }


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def shown_value(value: bytes | str, hidden: frozenset[str]) -> str:
    """Return a value as text, masking hidden columns; for opaque bytes, their size."""
    try:
        shown = _without(json.loads(value), hidden)
        text = json.dumps(shown, indent=1, ensure_ascii=False)
        # JSON can contain half of a surrogate pair, which UTF-8 cannot encode.
        return text.encode("utf-8", "backslashreplace").decode()
    except ValueError:
        return f"({len(value):,} bytes that are not JSON)"
    except RecursionError:
        return f"({len(value):,} bytes, nested too deeply)"


def _without(value: Any, hidden: frozenset[str]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, list):
        return [_without(each, hidden) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: HIDDEN if name in hidden else _without(each, hidden)
        for name, each in value.items()
    }


def hidden_columns(settings: Settings, topic: str) -> frozenset[str]:
    """
    Return the columns of a topic that any route masks or hashes.

    A dead letter topic holds records of all topics, as they were published.
    """
    has_all = topic.startswith(dead_letter_topic(settings.database.prefix, ""))
    return frozenset(
        column
        for sink in settings.sink
        for route in sink.route
        if has_all or _reads(route, topic)
        for column in _masked(route)
    )


def _masked(route: Route) -> set[str]:
    """Return the topic's columns whose values a route masks or hashes."""
    origins: dict[str, set[str]] = {}
    masked: set[str] = set()
    for transform in route.transforms:
        read = {o for name in transform.inputs for o in origins.get(name, {name})}
        if transform.mask is not None or transform.hash is not None:
            masked |= read
        origins |= dict.fromkeys(transform.outputs, read)
    return masked


def hidden_fields(settings: Settings, route: Route) -> frozenset[str]:
    """Return the fields of a route's rows whose values come from hidden columns."""
    hidden = set(hidden_columns(settings, route.topic))
    for transform in route.transforms:
        # A function that names no columns reads all of them.
        reads_all = transform.python is not None and not transform.inputs
        if reads_all or hidden.intersection(transform.inputs):
            hidden.update(transform.outputs)
    return frozenset(hidden.union(route.rename.get(name, name) for name in hidden))


def _reads(route: Route, topic: str) -> bool:
    name = topic.partition(".backfill.")[0] if is_backfill(topic) else topic
    if route.topic.endswith("*"):
        return name.startswith(route.topic[:-1])
    return route.topic == name


def dead_letters_of(
    settings: Settings, sink: str | None, key: str | None
) -> list[Document]:
    """
    Return a summary for each key with open dead letters, and their records.

    Raises:
        UsageError: There is no such sink.
        BrokerUnavailableError: The broker does not answer.
    """
    sinks = settings.sink if sink is None else [sink_named(settings, sink)]
    found: list[Document] = []
    for each in sinks:
        topic = DeadLetterTopic(settings, each.name)
        open_dead_letters = OpenDeadLetters().read(topic.entries())
        found += _letters(settings, each.name, open_dead_letters, key)
    return found


def _letters(
    settings: Settings, sink: str, open_dead_letters: OpenDeadLetters, key: str | None
) -> Iterator[Document]:
    for subject in named_subjects(open_dead_letters, key):
        dead_letters = open_dead_letters.of(subject)
        hidden = hidden_columns(settings, subject.topic)
        records: list[Mapping[str, Any]] = [
            one
            | {
                "value": None
                if dead_letter.record.value is None
                else shown_value(dead_letter.record.value, hidden)
            }
            for one, dead_letter in zip(
                dead_letter_documents(dead_letters), dead_letters, strict=True
            )
        ]
        summary = subject_summary(subject, dead_letters)
        yield {"sink": sink, **summary, "records": records}
