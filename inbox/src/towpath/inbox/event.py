"""
An event as a consumer receives it: its identity, its content and its record's offset.

An inbox stores an event's strings in a form that Postgres accepts and can index.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import Message

from towpath.inbox.tables import ID_BYTES, ID_START
from towpath.schemas import headers
from towpath.schemas.headers import trace_id_of, valid_traceparent


@dataclass(frozen=True)
class Event:
    """
    One event.

    Attributes:
        id: Identifies the event, however often it is delivered: the header ``id``, or
            the topic, partition, offset and time of a record without that header.
        type: The event type; empty for a record without the header ``type``.
        aggregate_type: The aggregate's type, or empty.
        key: The record's key as text, which is the aggregate's id; events of one key
            are delivered in order. None if the record has no key and thus no order.
        value: The record's value; None for a tombstone.
        headers: All headers as text.
        topic: The topic of the record.
        partition: The partition of the record.
        offset: The offset of the record.
        decode: Decodes the payload, unless there is no value; None for JSON payloads.
    """

    id: str
    type: str
    aggregate_type: str
    key: str | None
    value: bytes | None
    headers: Mapping[str, str] = field(repr=False)
    topic: str
    partition: int
    offset: int
    decode: "Decode | None" = field(default=None, repr=False, compare=False)

    @property
    def is_read(self) -> bool:
        """Whether a snapshot read the event: it then shows a state, not a new fact."""
        return headers.SNAPSHOT in self.headers

    @property
    def trace_id(self) -> str | None:
        """The id of the trace that the event belongs to, for log records."""
        traceparent = valid_traceparent(self.headers.get(headers.TRACEPARENT))
        return None if traceparent is None else trace_id_of(traceparent)

    @cached_property
    def payload(self) -> Any:  # noqa: ANN401 - any JSON value
        """
        The value as JSON, or as ``decode`` returns it; None for a tombstone.

        Raises:
            ValueError: The value does not have that form.
        """
        if self.value is None:
            return None
        return json_payload(self) if self.decode is None else self.decode(self)


Decode = Callable[[Event], Any]


def json_payload(event: Event) -> Any:  # noqa: ANN401 - any JSON value
    """
    Return the value of an event as JSON.

    Raises:
        ValueError: The value is not JSON.
    """
    return json.loads(event.value or b"")


# Replaces headers that cannot be read.
UNREADABLE: Final = "towpath-unreadable"


def is_control(event: Event) -> bool:
    """Return whether a record is not an event but a barrier or sweep of the relay."""
    is_marked = headers.BARRIER in event.headers or headers.SWEEP in event.headers
    return is_marked and headers.is_command(event.headers)


def event_of(message: Message, decode: Decode | None = None) -> Event:
    """
    Return the event of a confluent-kafka message, which must not be an error.

    The payload is JSON, or the result of ``decode``.

    Bytes that are not UTF-8 are kept with Python's ``surrogateescape``, so that such a
    record can be parked like any other.
    """
    found: Iterable[tuple[str, bytes | None]]
    try:
        found = message.headers() or ()  # type: ignore[assignment]  # never a mapping here
    except SystemError:
        # The client raises this if the name of a header is not UTF-8.
        found = ((UNREADABLE, b""),)
    given = {
        name: (value or b"").decode(errors="surrogateescape") for name, value in found
    }
    topic, partition = str(message.topic()), int(message.partition() or 0)
    offset, key = int(message.offset() or 0), message.key()
    return Event(
        # The time distinguishes this record from a record of an earlier topic of the
        # same name.
        id=given.get(headers.EVENT_ID)
        or f"{topic}/{partition}/{offset}@{message.timestamp()[1]}",
        type=given.get(headers.EVENT_TYPE, ""),
        aggregate_type=given.get(headers.AGGREGATE_TYPE, ""),
        key=key.decode(errors="surrogateescape") if isinstance(key, bytes) else key,
        value=message.value(),
        headers=MappingProxyType(given),
        topic=topic,
        partition=partition,
        offset=offset,
        decode=decode,
    )


def storable(text: str) -> str:
    """Return text that Postgres can store: valid UTF-8 without NUL."""
    # U+DC80 to U+DCFF stand for bytes; other surrogates are halves of a broken pair.
    kept = re.sub("[\ud800-\udc7f\udd00-\udfff]", lambda m: repr(m[0])[1:-1], text)
    encoded = kept.encode(errors="surrogateescape")
    return encoded.decode(errors="backslashreplace").replace("\0", "\\0")


def stored_id(given: str) -> str:
    """
    Return an event's id as it is stored; an id in that form is unchanged.

    ``create_statements`` converts ids that earlier versions stored to this form.
    """
    text = storable(given)
    encoded = text.encode()
    if len(encoded) <= ID_BYTES:
        return text
    return f"{text[:ID_START]}...sha256:{hashlib.sha256(encoded).hexdigest()}"


def whole_id(stored: str, given: Mapping[str, str]) -> str:
    """Return the full id of a parked event, taken from its headers."""
    whole = given.get(headers.EVENT_ID, stored)
    return whole if stored_id(whole) == stored else stored
