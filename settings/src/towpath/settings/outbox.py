"""
``[relay.outbox]``: the outbox table, and the events made from its rows.

``route_regex`` and ``route_replacement`` rewrite the value in a topic's name. The
replacement has Java's syntax, as in Debezium's router: ``$1`` and ``${name}`` refer to
groups, and a backslash escapes the next character. The pattern must match the whole
value; otherwise the value remains unchanged.
"""

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from pydantic import Field

from towpath.schemas import headers
from towpath.schemas.failure import ConfigurationError
from towpath.schemas.topics import outbox_topic
from towpath.settings.section import OPTIONAL_NAME, Section, TableText
from towpath.settings.syntax import Pattern, PlacementText, TopicTemplate, compiled

_REFERENCE: Final = re.compile(
    r"\\(?P<plain>.)|\$\{(?P<name>[^}]*)\}|\$(?P<digits>\d+)", re.DOTALL
)

_Part = Callable[["re.Match[str]"], str]


class MissingColumn(enum.StrEnum):
    """The reaction to a placement of a column that the table lacks."""

    ERROR = "error"
    SKIP = "skip"


class EmptyPayload(enum.StrEnum):
    """
    The record for a null, empty or blank payload.

    ``event``: an event whose value is that payload, in its envelope if it has one.
    ``tombstone``: an event without a value, with or without an envelope.
    """

    EVENT = "event"
    TOMBSTONE = "tombstone"


class OnUpdate(enum.StrEnum):
    """The reaction to an update of an outbox row, which is never an event."""

    WARN = "warn"
    ERROR = "error"
    HALT = "halt"


class Traceparent(enum.StrEnum):
    """The treatment of the writer's trace: passed on as it is, or continued."""

    CARRY = "carry"
    CONTINUE = "continue"


class OutboxColumns(Section):
    """
    ``[relay.outbox.columns]``: the names of the outbox table's columns.

    An empty name means that the table has no such column. ``timestamp`` names a column
    whose value becomes the record's timestamp, which is the commit time otherwise.
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
    def standard_headers(self) -> Mapping[str, str]:
        """The headers of every event, each with its column."""
        return {
            headers.EVENT_ID: self.id,
            headers.EVENT_TYPE: self.type,
            headers.AGGREGATE_TYPE: self.aggregate_type,
            headers.OCCURRED_AT: self.occurred_at,
            headers.TRACEPARENT: self.traceparent,
            headers.SCHEMA_VERSION: self.schema_version,
        }


# Precedes the aggregate type in signals, as a schema precedes a table.
COLLECTION_SCHEMA: Final = "outbox"


class IdForm(enum.StrEnum):
    """The form of an aggregate's id as the key of its events."""

    TEXT = "text"
    INTEGER = "integer"
    UUID = "uuid"


class AggregateView(Section):
    """
    ``[[relay.outbox.view]]``: a SQL view that returns the state of each aggregate.

    The view has the columns ``aggregate_id, type, payload`` and one row per aggregate.
    It is read in place of outbox rows that no longer exist. ``id_form`` is the form of
    the id in events of this type. Events of ``state_types`` carry the aggregate's whole
    state, so the relay does not read the aggregate again after one of them; ``*`` means
    all types. If the topic of a type carries several kinds of events, the type may have
    several views; each further view has a ``name``.
    """

    aggregate_type: str = Field(min_length=1)
    view: TableText
    name: str = Field(default="", pattern=OPTIONAL_NAME)
    id_form: IdForm = IdForm.TEXT
    state_types: tuple[str, ...] = ()

    @property
    def collection(self) -> str:
        """The name of the view in signals."""
        name = f".{self.name}" if self.name else ""
        return f"{COLLECTION_SCHEMA}.{self.aggregate_type}{name}"


class Outbox(Section):
    """
    ``[relay.outbox]``.

    ``topic`` is a template with ``{aggregate_type}``. ``route_by`` names another column
    to use in its place; ``route_regex`` and ``route_replacement`` rewrite the value
    first (``$1``, ``${name}``). ``placements`` are ``column:header|partition|envelope``
    with an optional ``:alias``. ``cloudevents`` is the source URI of CloudEvents
    headers; without it there are none. Logical messages with the prefix
    ``message_prefix`` are events without a row.
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
        """Return the topic of events with this aggregate type or ``route_by`` value."""
        rewritten = rewriting(self.route_regex, self.route_replacement)
        return outbox_topic(self.topic, rewritten(routed_by))


# The defaults of Debezium's event router; `id` and `type` are the same.
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


def rewriting(route_regex: str, replacement: str) -> Callable[[str], str]:
    """
    Return a function that rewrites a value; without a pattern it changes nothing.

    Raises:
        ConfigurationError: The replacement names a group that the pattern lacks.
    """
    if not route_regex:
        return str
    pattern = compiled(route_regex)
    parts = tuple(_parts(replacement, pattern))

    def rewritten(value: str) -> str:
        if pattern.fullmatch(value) is None:
            return value
        found = pattern.search(value)
        if found is None:
            return value
        written = "".join(part(found) for part in parts)
        return value[: found.start()] + written + value[found.end() :]

    return rewritten


def _parts(replacement: str, pattern: "re.Pattern[str]") -> Iterable[_Part]:
    """Split a replacement into plain text and references to groups."""
    at = 0
    for found in _REFERENCE.finditer(replacement):
        yield _plain_text(replacement[at : found.start()])
        at = found.end()
        if found["plain"] is not None:
            yield _plain_text(found["plain"])
        elif found["name"] is not None:
            yield _group(found["name"], pattern)
        else:
            yield from _numbered(found["digits"], pattern)
    yield _plain_text(replacement[at:])


def _numbered(digits: str, pattern: "re.Pattern[str]") -> Iterable[_Part]:
    """Use as many digits as name a group; the remaining digits are plain text."""
    length = len(digits)
    while length > 1 and int(digits[:length]) > pattern.groups:
        length -= 1
    yield _group(int(digits[:length]), pattern)
    yield _plain_text(digits[length:])


def _group(group: str | int, pattern: "re.Pattern[str]") -> _Part:
    known = group in pattern.groupindex or (
        isinstance(group, int) and group <= pattern.groups
    )
    if not known:
        named = f"${group}" if isinstance(group, int) else f"${{{group}}}"
        mistake = (
            f"relay.outbox.route_replacement: {named} is not a group of "
            "relay.outbox.route_regex"
        )
        raise ConfigurationError([mistake])
    return lambda found: found[group] or ""


def _plain_text(text: str) -> _Part:
    return lambda _found: text
