"""``[relay.outbox]``: the outbox table, and what becomes of its rows."""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pydantic import Field

from towpath.schemas import headers
from towpath.schemas.topics import outbox_topic
from towpath.settings.rewriting import rewriting
from towpath.settings.section import Section, TableText
from towpath.settings.syntax import Pattern, PlacementText, TopicTemplate


class MissingColumn(enum.StrEnum):
    """What a placement of a column that the table lacks does."""

    ERROR = "error"
    SKIP = "skip"


class EmptyPayload(enum.StrEnum):
    """
    What a null, empty or blank payload becomes.

    ``event``: an event whose value is the payload as it is, null or empty, in its
    envelope if it has one. ``tombstone``: an event without a value, envelope or not.
    """

    EVENT = "event"
    TOMBSTONE = "tombstone"


class OnUpdate(enum.StrEnum):
    """What an updated outbox row, which is never an event, does."""

    WARN = "warn"
    ERROR = "error"
    HALT = "halt"


class Traceparent(enum.StrEnum):
    """Whether the trace of the writer is passed on as it is, or continued."""

    CARRY = "carry"
    CONTINUE = "continue"


class OutboxColumns(Section):
    """
    ``[relay.outbox.columns]``: how the table names what an event is made of.

    An empty name: the table has no such column. ``timestamp`` names a column whose
    value becomes the record's timestamp; without one that is the commit time.
    """

    id: str = Field(default="id", min_length=1)
    aggregate_type: str = Field(default="aggregate_type", min_length=1)
    aggregate_id: str = Field(default="aggregate_id", min_length=1)
    type: str = "type"
    payload: str = Field(default="payload", min_length=1)
    headers: str = "headers"
    traceparent: str = "traceparent"
    occurred_at: str = "occurred_at"
    timestamp: str = ""
    schema_version: str = ""

    @property
    def standing_headers(self) -> Mapping[str, str]:
        """The headers that every event has, and the column that each comes from."""
        return {
            headers.EVENT_ID: self.id,
            headers.EVENT_TYPE: self.type,
            headers.AGGREGATE_TYPE: self.aggregate_type,
            headers.OCCURRED_AT: self.occurred_at,
            headers.TRACEPARENT: self.traceparent,
            headers.SCHEMA_VERSION: self.schema_version,
        }


# What stands in a signal before the aggregate type, as a schema before a table.
COLLECTION_SCHEMA: Final = "outbox"


class IdForm(enum.StrEnum):
    """How an aggregate's id is spelt when it is the key of its events."""

    TEXT = "text"
    INTEGER = "integer"
    UUID = "uuid"


class AggregateView(Section):
    """
    ``[[relay.outbox.view]]``: a SQL view that gives the state of each aggregate.

    The view has the columns ``aggregate_id, type, payload``, a row per aggregate, and
    is read in place of outbox rows that are gone. ``id_form`` says how the events of
    this type spell the id. Events of ``state_types`` carry the aggregate's whole state,
    so that whoever has one needs no row of the view; ``*``: all do. Further views of a
    type, which give other events of the same aggregates, have a ``name``.
    """

    aggregate_type: str = Field(min_length=1)
    view: TableText
    name: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9_-]*)?$")
    id_form: IdForm = IdForm.TEXT
    state_types: tuple[str, ...] = ()

    @property
    def collection(self) -> str:
        """What a signal calls it."""
        name = f".{self.name}" if self.name else ""
        return f"{COLLECTION_SCHEMA}.{self.aggregate_type}{name}"


class Outbox(Section):
    """
    ``[relay.outbox]``.

    ``topic`` is a template with ``{aggregate_type}``. ``route_by`` names another column
    that takes its place; ``route_regex`` and ``route_replacement`` rewrite the value
    first (``$1``, ``${name}``). ``placements`` are ``column:header|partition|envelope``
    with an optional ``:alias``. ``cloudevents`` is the source URI of CloudEvents
    headers; without one there are none. ``message_prefix`` marks the logical messages
    that are events without a table.
    """

    table: TableText = "towpath.outbox"
    topic: TopicTemplate = "outbox.event.{aggregate_type}"
    columns: OutboxColumns = OutboxColumns()
    route_by: str = ""
    route_regex: Pattern = ""
    route_replacement: str = ""
    placements: tuple[PlacementText, ...] = ()
    on_missing_column: MissingColumn = MissingColumn.ERROR
    on_empty_payload: EmptyPayload = EmptyPayload.EVENT
    on_update: OnUpdate = OnUpdate.WARN
    cloudevents: str = ""
    traceparent: Traceparent = Traceparent.CARRY
    message_prefix: str = "towpath.outbox"
    view: tuple[AggregateView, ...] = ()

    def topic_of(self, routed_by: str) -> str:
        """Name the topic of events whose aggregate type, or ``route_by``, is this."""
        rewritten = rewriting(self.route_regex, self.route_replacement)
        return outbox_topic(self.topic, rewritten(routed_by))


# What Debezium's event router reads and writes; `id` and `type` are the same.
DEBEZIUM_OUTBOX: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "columns": {
            "aggregate_type": "aggregatetype",
            "aggregate_id": "aggregateid",
            "headers": "",
            "traceparent": "",
            "occurred_at": "",
        },
        "placements": ["type:header:eventType"],
    }
)
