"""A domain event for the outbox: type, aggregate, payload and time."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEvent:
    """
    One event, not yet recorded.

    Attributes:
        aggregate_type: The aggregate's type, such as ``order``; names the topic.
        aggregate_id: The aggregate's id; the record's key, which keeps events in order.
        type: The event type, such as ``OrderPlaced``; chooses the schema.
        payload: The aggregate's state. Decimals, dates and UUIDs become text.
        occurred_at: Timezone-aware; becomes the header of the same name, in UTC.
        headers: Further record headers, text to text.
        traceparent: The W3C trace context that the event belongs to, if any.
        id: Identifies the event; consumers recognise a redelivery by it.
    """

    aggregate_type: str
    aggregate_id: str
    type: str
    payload: Mapping[str, Any]
    occurred_at: datetime
    headers: Mapping[str, str] = field(default_factory=dict)
    traceparent: str | None = None
    id: uuid.UUID = field(default_factory=uuid.uuid4)
