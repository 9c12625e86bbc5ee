"""
The JSON API of the console, described by ``GET /openapi.json``.

=======================  ============================================================
route                    response
=======================  ============================================================
GET /api/status          the document of ``towpath status``, and its age
GET /api/topology        parts and flows, with rates, lags and states
GET /api/samples         columns of numbers of the last half hour, for plots
GET /api/histograms      histograms of the sinks
GET /api/snapshots       all snapshots except the relay's own, table by table
GET /api/findings        the findings of ``towpath doctor``
GET /api/topics          the topics of the platform
GET /api/messages        records of one topic
GET /api/trace           the path of one aggregate or row
GET /api/dead-letters    open dead letters with their records
GET /api/relay/...       the relay's parked aggregates (.../dead-letters)
=======================  ============================================================

The operations of runs are in ``run_routes``, those of kills in ``kills``, and the
other operations that change something in ``action_routes``.
"""

from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from flask import Blueprint, Response, current_app, request
from pydantic import AwareDatetime, Field, field_validator

from towpath.deploy.console import PlatformState, messages
from towpath.deploy.console.messages import MAX_RECORDS, RecordQuery
from towpath.deploy.console.topology import topology_of
from towpath.deploy.doctor import examine
from towpath.deploy.trace import trace_aggregate, trace_row
from towpath.deploy.trace.journey import Journey, document_of
from towpath.relay.commands.dead_letters import listed, read_parked_events
from towpath.schemas.clock import SystemClock
from towpath.services.plumbing.http import (
    Input,
    InvalidInputError,
    json_response,
    read_query,
)
from towpath.services.plumbing.openapi import (
    AnyDocument,
    Document,
    Operation,
    Operations,
)
from towpath.settings import Settings

EXTENSION: Final = "towpath.console"

blueprint = Blueprint("api", __name__, url_prefix="/api")
operations = Operations("api")


class PartDocument(Document):
    """A part of the platform; ``state`` is good, warning or bad."""

    id: str
    kind: str
    title: str
    text: str
    state: str
    page: str


class FlowDocument(Document):
    """The flow between two parts, with rate and lag as text."""

    begin: str
    end: str
    rate: str
    lag: str
    is_bad: bool


class TopologyDocument(Document):
    """The parts in order, and the flows between them."""

    parts: list[PartDocument]
    flows: list[FlowDocument]


class SamplesDocument(Document):
    """Times in seconds since 1970, and for each name a value or null at each time."""

    at: list[float]
    values: dict[str, list[float | None]]


class FindingDocument(Document):
    """A finding of ``towpath doctor`` with its remedy."""

    id: str
    level: str
    part: str
    what: str
    why: str
    cure: str
    page: str
    fix: str | None


class FindingsDocument(Document):
    """All findings, the worst first."""

    findings: list[FindingDocument]


class TopicsDocument(Document):
    """The names of the topics."""

    topics: list[str]


class RecordDocument(Document):
    """A record; hidden columns and opaque bytes are not shown."""

    partition: int
    offset: int
    at: str
    kind: str
    position: str
    key: str | None
    headers: dict[str, str]
    value: str | None


class MessagesDocument(Document):
    """Records of a topic, newest first; ``read`` counts the searched records."""

    records: list[RecordDocument]
    read: int
    hidden: list[str]


class SamplesQuery(Input):
    """The names of the numbers, separated by commas."""

    names: str = Field(max_length=2000)


class MessagesQuery(Input):
    """
    The records of a topic to read.

    An empty key, partition, offset or time counts as missing.
    """

    topic: str = Field(min_length=1, max_length=249)
    key: str | None = None
    partition: int | None = Field(default=None, ge=0, strict=False)
    offset: int | None = Field(default=None, ge=0, strict=False)
    since: AwareDatetime | None = Field(default=None, strict=False)
    limit: int = Field(default=50, ge=1, le=MAX_RECORDS)

    @field_validator("key", "partition", "offset", "since", mode="before")
    @classmethod
    def _empty(cls, value: object) -> object:
        return None if value == "" else value

    def record_query(self) -> RecordQuery:
        """
        Return the query as a selection of a topic's records.

        Raises:
            InvalidInputError: The query has an offset, but no partition.
        """
        if self.offset is not None and self.partition is None:
            message = "An offset needs a partition."
            raise InvalidInputError(message)
        return RecordQuery(
            *(self.topic, self.key, self.partition, self.offset, self.since, self.limit)
        )


class TraceQuery(Input):
    """Either ``type`` and ``id`` of an aggregate, or ``table`` and ``key`` of a row."""

    type: str = ""
    id: str = ""
    table: str = ""
    key: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether no field is set."""
        return not (self.type or self.id or self.table or self.key)


class DeadLettersQuery(Input):
    """The sink and the key of the dead letters; an empty field matches all."""

    sink: str = ""
    key: str = ""


@blueprint.get("/status")
@operations.add(Operation(response=AnyDocument))
def status() -> Response:
    """Return the newest document of towpath status, and its age in seconds."""
    state = current_state()
    document = dict(state.reading.document)
    return json_response(HTTPStatus.OK, document | {"age_s": round(state.age_s, 1)})


@blueprint.get("/topology")
@operations.add(Operation(response=TopologyDocument))
def topology() -> Response:
    """Return parts and flows, with rates, lags and states."""
    found = topology_of(current_state().reading.document, current_state().samples)
    return json_response(HTTPStatus.OK, found.document())


@blueprint.get("/samples")
@operations.add(Operation(query=SamplesQuery, response=SamplesDocument))
def samples() -> Response:
    """Return columns of numbers of the last half hour."""
    names = read_query(request, SamplesQuery).names.split(",")
    return json_response(HTTPStatus.OK, current_state().samples.series(names))


class BarDocument(Document):
    """One bucket: its bound, its count, and its percentage of the largest count."""

    text: str
    values: int
    share: int


class HistogramDocument(Document):
    """A histogram of one sink; 95 % of its values are within ``most_s``."""

    sink: str
    title: str
    values: int
    most_s: float | None
    bars: list[BarDocument]


class HistogramsDocument(Document):
    """The histograms of all sinks whose drivers answer."""

    histograms: list[HistogramDocument]


@blueprint.get("/histograms")
@operations.add(Operation(response=HistogramsDocument))
def histograms() -> Response:
    """Return the histograms of sinks, counted since the start of their drivers."""
    found = [
        one._asdict() | {"bars": [bar._asdict() for bar in one.bars]}
        for one in current_state().reading.histograms
    ]
    return json_response(HTTPStatus.OK, {"histograms": found})


@blueprint.get("/snapshots")
@operations.add(Operation(response=AnyDocument))
def snapshots() -> Response:
    """Return all snapshots except the relay's own, table by table, newest first."""
    reading = current_state().reading
    document = {"tables": list(reading.snapshots), "error": reading.error}
    return json_response(HTTPStatus.OK, document)


@blueprint.get("/findings")
@operations.add(Operation(response=FindingsDocument))
def findings() -> Response:
    """Examine the platform as towpath doctor does."""
    found = [one.document() for one in examine(current_state().settings, SystemClock())]
    return json_response(HTTPStatus.OK, {"findings": found})


@blueprint.get("/topics")
@operations.add(Operation(response=TopicsDocument))
def topics() -> Response:
    """Return the names of the platform's topics."""
    found = messages.topic_names(current_state().settings)
    return json_response(HTTPStatus.OK, {"topics": found})


@blueprint.get("/messages")
@operations.add(Operation(query=MessagesQuery, response=MessagesDocument))
def records() -> Response:
    """Read records of a topic by key, offset or time."""
    query = read_query(request, MessagesQuery).record_query()
    found = messages.find_records(current_state().settings, query)
    return json_response(HTTPStatus.OK, found._asdict())


@blueprint.get("/trace")
@operations.add(Operation(query=TraceQuery, response=AnyDocument))
def trace() -> Response:
    """Trace one aggregate or row from the source to every sink."""
    journey = journey_of(current_state().settings, read_query(request, TraceQuery))
    return json_response(HTTPStatus.OK, document_of(journey))


@blueprint.get("/dead-letters")
@operations.add(Operation(query=DeadLettersQuery, response=AnyDocument))
def dead_letters() -> Response:
    """Return open dead letters with their records."""
    wanted = read_query(request, DeadLettersQuery)
    found = messages.dead_letters_of(
        current_state().settings, wanted.sink or None, wanted.key or None
    )
    return json_response(HTTPStatus.OK, {"dead_letters": found})


class ParkedAggregate(Document):
    """A parked aggregate; ``publishable`` counts its dead letters with a record."""

    aggregate_type: str | None
    aggregate_id: str
    letters: int
    first_position: str
    reason: str
    publishable: int


class ParkedAggregatesDocument(Document):
    """The parked aggregates, the longest parked first."""

    aggregates: list[ParkedAggregate]


@blueprint.get("/relay/dead-letters")
@operations.add(Operation(response=ParkedAggregatesDocument))
def parked_aggregates() -> Response:
    """Return the aggregates whose events the relay could not publish."""
    found = listed(read_parked_events(current_state().settings))
    return json_response(HTTPStatus.OK, {"aggregates": found})


def journey_of(
    settings: Settings, wanted: TraceQuery, since: datetime | None = None
) -> Journey:
    """
    Trace the aggregate or row that a query names.

    Raises:
        InvalidInputError: The query does not name exactly one aggregate or one row.
        TowpathError: A server does not answer, or there is no such topic.
    """
    if wanted.type and wanted.id and not (wanted.table or wanted.key):
        return trace_aggregate(settings, wanted.type, wanted.id, since)
    if wanted.table and wanted.key and not (wanted.type or wanted.id):
        return trace_row(settings, wanted.table, wanted.key, since)
    message = "Name one aggregate by type and id, or one row by table and key."
    raise InvalidInputError(message)


def current_state() -> PlatformState:
    """Return the platform's state in the current application."""
    state: Any = current_app.extensions[EXTENSION]
    found: PlatformState = state
    return found
