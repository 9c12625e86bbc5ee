"""
The row of an event: everything that could make it undeliverable is checked here.

Checked are the payload's schema, text that Postgres or Kafka would refuse, names that
Kafka accepts, headers that do not collide with the relay's own, and the size of the
record. So a bad event fails the request that records it, and never the relay.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from towpath.outbox.errors import EventTooLargeError
from towpath.outbox.event import Events, OutboxEvent
from towpath.outbox.plain import plain, rfc3339
from towpath.schemas import headers
from towpath.schemas.clock import Clock
from towpath.schemas.events import InvalidEventError
from towpath.schemas.topics import is_legal_topic

# The broker's default message.max.bytes is 1,048,588; the relay adds about ten headers.
MAX_BYTES: Final = 1_000_000
# Room for a topic template around it, within Kafka's 249 characters.
MAX_AGGREGATE_TYPE_LENGTH: Final = 200
MAX_TYPE_LENGTH: Final = 200
# The header, and the payload's field, with the place of a payload stored elsewhere.
CLAIM_CHECK: Final = "claim_check"
CORRELATION_ID: Final = "correlation_id"

# The correlation id of the current request; recorded with each of its events.
correlation_id: ContextVar[str | None] = ContextVar("correlation_id", default=None)

# Stores a payload elsewhere and returns the place from which consumers fetch it.
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
        CLAIM_CHECK,
    }
)
# An escaped NUL in JSON: an odd number of backslashes before u0000.
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

Row = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class RowRules:
    """
    The checks of an outbox.

    Attributes:
        events: The event types.
        clock: The time of events that have none.
        max_bytes: The largest record: key, payload and headers.
        claim_check: Stores the payload of a larger one; None: it is refused.
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
        payload = _plain_payload(event)
        schema = self.events.check(event.type, payload)
        given = dict(event.headers)
        if (current := correlation_id.get()) is not None:
            given.setdefault(CORRELATION_ID, current)
        _check_headers(event.type, given)
        if schema is not None:
            given[headers.EVENT_SCHEMA] = schema.reference
        text = None if payload is None else _json_text(event.type, payload)
        if text is not None and _size(event, text, given) > self.max_bytes:
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
        self, event: OutboxEvent, text: str, given: dict[str, str]
    ) -> tuple[str, dict[str, str]]:
        """Store the payload elsewhere; return what takes its place, and the headers."""
        if self.claim_check is None:
            size = _size(event, text, given)
            reason = f"is a record of {size:,} bytes, above {self.max_bytes:,}"
            raise EventTooLargeError(event.type, "", reason)
        place = self.claim_check(event, text.encode())
        return json.dumps({CLAIM_CHECK: place}), {**given, CLAIM_CHECK: place}

    def _occurred_at(self, event: OutboxEvent) -> str:
        try:
            return rfc3339(event.occurred_at or self.clock.now())
        except ValueError as error:
            reason = "has no time zone"
            raise InvalidEventError(event.type, "occurred_at", reason) from error


def _plain_payload(event: OutboxEvent) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return plain(event.payload)
    except ValueError as error:
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
    if not event.aggregate_id or "\0" in event.aggregate_id:
        reason = "is empty or contains a NUL character"
        raise InvalidEventError(event.type, "aggregate_id", reason)
    if not event.type.isprintable() or not 0 < len(event.type) <= MAX_TYPE_LENGTH:
        reason = f"is not a name of at most {MAX_TYPE_LENGTH} printable characters"
        raise InvalidEventError(ascii(event.type[:MAX_TYPE_LENGTH]), "type", reason)


def _check_headers(event_type: str, given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if name in _RELAY_HEADERS or not isinstance(value, str):
            reason = "is a header of the relay, or its value is not text"
            raise InvalidEventError(event_type, f"headers.{name}", reason)
        if not name or "\0" in name or "\0" in value:
            reason = "has no name, or contains a NUL character"
            raise InvalidEventError(event_type, f"headers.{name}", reason)


def _size(event: OutboxEvent, text: str, given: Mapping[str, str]) -> int:
    """Return the bytes of key, payload and headers; ASCII is counted without a copy."""
    parts = (text, event.aggregate_id, *given, *given.values())
    return sum(len(p) if p.isascii() else len(p.encode()) for p in parts)


def _traceparent(event: OutboxEvent) -> str | None:
    """Return the event's trace context, or that of OpenTelemetry's current span."""
    if event.traceparent is not None:
        # It may come from a client, whose mistake must not fail the request.
        return event.traceparent if event.traceparent.isprintable() else None
    # Not imported: without the application's own import there is no span either.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
