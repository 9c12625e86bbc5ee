"""
The row of an event: everything that could make it undeliverable is checked here.

The checks cover the payload's schema, text that Postgres or Kafka would refuse, names
that Kafka refuses, headers that collide with the relay's own, and the size of the
record. So a bad event fails the request that records it, and never the relay.
"""

import json
import re
import sys
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NoReturn

from towpath.outbox.errors import EventTooLargeError
from towpath.outbox.event import Events, OutboxEvent
from towpath.outbox.plain import plain, rfc3339
from towpath.schemas import headers
from towpath.schemas.clock import Clock
from towpath.schemas.events import InvalidEventError
from towpath.schemas.headers import valid_traceparent
from towpath.schemas.topics import is_legal_topic

# The broker's default message.max.bytes is 1,048,588; the relay adds about ten headers.
MAX_BYTES: Final = 1_000_000
# Leaves room for a topic template around it, within Kafka's 249 characters.
MAX_AGGREGATE_TYPE_LENGTH: Final = 200
MAX_TYPE_LENGTH: Final = 200
# The header and the payload's field for the location of a payload stored elsewhere.
CLAIM_CHECK: Final = "claim_check"
CORRELATION_ID: Final = "correlation_id"

# The correlation id of the current request; recorded with each of its events.
correlation_id: ContextVar[str | None] = ContextVar("correlation_id", default=None)

# Stores a payload elsewhere and returns the location from which consumers fetch it.
ClaimCheck = Callable[[OutboxEvent, bytes], str]

_RELAY_HEADERS: Final = frozenset(
    {
        headers.EVENT_ID,
        headers.EVENT_TYPE,
        headers.AGGREGATE_TYPE,
        headers.EVENT_SCHEMA,
        headers.POSITION,
        headers.OCCURRED_AT,
        headers.TRACEPARENT,
        headers.SNAPSHOT,
        headers.PARKED,
        headers.RELEASED,
        headers.BARRIER,
        headers.DEAD_LETTERS,
        CLAIM_CHECK,
    }
)
# An escaped NUL in JSON: an odd number of backslashes before u0000.
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
# The fields whose type nothing else checks.
_KINDS: Final = MappingProxyType(
    {
        "id": (uuid.UUID, "is not a UUID"),
        "headers": (Mapping, "is not a mapping of strings"),
        "occurred_at": (datetime | None, "is not a datetime"),
        "traceparent": (str | None, "is not text"),
    }
)
# Half of a surrogate pair has no encoding in UTF-8.
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

Row = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class RowRules:
    """
    The checks of an outbox.

    Attributes:
        events: The event types.
        clock: Gives the time of events that have none.
        max_bytes: The largest accepted record, in bytes: key, payload and headers.
        claim_check: Stores the payload of a larger record; if None, it is refused.
    """

    events: Events
    clock: Clock
    max_bytes: int = MAX_BYTES
    claim_check: ClaimCheck | None = None

    def row(self, event: OutboxEvent) -> Row:
        """
        Return the event as a row of the outbox: the text of each column by its name.

        Raises:
            InvalidEventError: The event does not match its schema or cannot be
                delivered.
        """
        _check_names(event)
        _check_kinds(event)
        payload = _plain_payload(event)
        schema = self.events.check(event.type, payload)
        given = dict(event.headers)
        if (current := correlation_id.get()) is not None:
            given.setdefault(CORRELATION_ID, current)
        _check_headers(event.type, given)
        if schema is not None:
            given[headers.EVENT_SCHEMA] = schema.reference
        text = None if payload is None else _json_text(event.type, payload)
        if _size(event, text, given) > self.max_bytes:
            text, given = self._checked_in(event, text, given)
        return {
            "id": str(event.id),
            "aggregate_type": event.aggregate_type,
            "aggregate_id": event.aggregate_id,
            "type": event.type,
            "payload": text,
            "headers": json.dumps(given, ensure_ascii=False),
            "traceparent": _traceparent(event),
            "occurred_at": self._occurred_at(event),
        }

    def _checked_in(
        self, event: OutboxEvent, text: str | None, given: dict[str, str]
    ) -> tuple[str, dict[str, str]]:
        """
        Store the payload elsewhere; return the stub that replaces it, and the headers.

        Raises:
            EventTooLargeError: There is no claim check, or the record is too large even
                without its payload, or with the payload's location.
        """
        if self.claim_check is None or text is None:
            self._refuse_size(_size(event, text, given), event, "")
        # Checked before the payload is stored: only its location's length is unknown.
        if (rest := _size(event, None, given)) > self.max_bytes:
            self._refuse_size(rest, event, " without its payload")
        location = self.claim_check(event, text.encode())
        stub = json.dumps({CLAIM_CHECK: location})
        named = {**given, CLAIM_CHECK: location}
        if (rest := _size(event, stub, named)) > self.max_bytes:
            self._refuse_size(rest, event, " with the location of its payload")
        return stub, named

    def _refuse_size(self, size: int, event: OutboxEvent, which: str) -> NoReturn:
        reason = f"is a record of {size:,} bytes{which}, above {self.max_bytes:,}"
        raise EventTooLargeError(event.type, "", reason)

    def _occurred_at(self, event: OutboxEvent) -> str:
        try:
            return rfc3339(event.occurred_at or self.clock.now())
        except ValueError as error:
            reason = "has no time zone"
            raise InvalidEventError(event.type, "occurred_at", reason) from error
        except OverflowError as error:
            reason = "is before the year 1 or after the year 9999 in UTC"
            raise InvalidEventError(event.type, "occurred_at", reason) from error


def _plain_payload(event: OutboxEvent) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return plain(event.payload)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidEventError(event.type, "payload", str(error)) from error


def _json_text(event_type: str, payload: object) -> str:
    try:
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError) as error:
        reason = f"has no JSON form: {error}"
        raise InvalidEventError(event_type, "payload", reason) from error
    if "\\u0000" in text and _NUL.search(text):
        reason = "contains a NUL character, which Postgres cannot store"
        raise InvalidEventError(event_type, "payload", reason)
    return text


def _check_names(event: OutboxEvent) -> None:
    for name in ("type", "aggregate_type", "aggregate_id"):
        if not isinstance(getattr(event, name), str):
            raise InvalidEventError(str(event.type), name, "is not text")
    long = len(event.aggregate_type) > MAX_AGGREGATE_TYPE_LENGTH
    if long or not is_legal_topic(event.aggregate_type):
        reason = "cannot be part of a topic's name"
        raise InvalidEventError(event.type, "aggregate_type", reason)
    if not event.aggregate_id or not _is_storable(event.aggregate_id):
        reason = "is empty, or contains a NUL character or half of a surrogate pair"
        raise InvalidEventError(event.type, "aggregate_id", reason)
    if not event.type.isprintable() or not 0 < len(event.type) <= MAX_TYPE_LENGTH:
        reason = f"is not a name of at most {MAX_TYPE_LENGTH} printable characters"
        raise InvalidEventError(ascii(event.type[:MAX_TYPE_LENGTH]), "type", reason)


def _check_kinds(event: OutboxEvent) -> None:
    """Refuse fields of the wrong type, which an event from a mapping may have."""
    for name, (kind, reason) in _KINDS.items():
        if not isinstance(getattr(event, name), kind):
            raise InvalidEventError(event.type, name, reason)


def _is_storable(text: str) -> bool:
    """Return whether UTF-8 can encode the text and Postgres can store it (no NUL)."""
    return "\0" not in text and not _SURROGATE.search(text)


def _check_headers(event_type: str, given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if name in _RELAY_HEADERS or not _are_strings(name, value):
            reason = "is a header of the relay, or its name or value is not text"
            raise InvalidEventError(event_type, f"headers.{name}", reason)
        if not name or not _is_storable(name + value):
            reason = "has no name, or contains a NUL character or half a surrogate pair"
            raise InvalidEventError(event_type, f"headers.{name}", reason)


def _are_strings(*values: object) -> bool:
    return all(isinstance(value, str) for value in values)


def _size(event: OutboxEvent, text: str | None, given: Mapping[str, str]) -> int:
    """Return the size of key, payload and headers in bytes; ASCII is not copied."""
    parts = (text or "", event.aggregate_id, *given, *given.values())
    return sum(len(p) if p.isascii() else len(p.encode()) for p in parts)


def _traceparent(event: OutboxEvent) -> str | None:
    """Return the event's trace context, or OpenTelemetry's for the current span."""
    if event.traceparent is not None:
        # The context may come from a client, whose mistake must not fail the request.
        return valid_traceparent(event.traceparent)
    # If the application has not imported OpenTelemetry, there is no span.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
