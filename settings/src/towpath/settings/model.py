"""The shape of ``towpath.toml``: sections, keys, units and defaults."""

import enum
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from towpath.settings.relay import Relay
from towpath.settings.section import IDENTIFIER, NAME, PREFIX, Section
from towpath.settings.syntax import ClientOption, FieldPath
from towpath.settings.tables import Capture, TableEntry


class Source(Section):
    """
    ``[[source]]``: the database whose log is followed. One is allowed today.

    ``tables`` are captured, by name or by expressions on ``schema.table``; what
    ``exclude_tables`` matches is not taken by expressions.
    """

    dsn: str
    prefix: str = Field(default="towpath", pattern=PREFIX)
    slot: str = Field(default="towpath", pattern=IDENTIFIER)
    publication: str = Field(default="towpath", pattern=IDENTIFIER)
    outbox_publication: str = Field(default="towpath_outbox", pattern=IDENTIFIER)
    tables: tuple[TableEntry, ...] = ()
    exclude_tables: tuple[TableEntry, ...] = ()


class Kafka(Section):
    """
    ``[kafka]``: the brokers.

    ``client`` holds further settings of the relay's clients under librdkafka's names:
    TLS, login, timeouts. What the relay sets itself, it refuses there.
    """

    bootstrap_servers: str
    client: dict[ClientOption, str] = Field(default_factory=dict)


class Registry(Section):
    """``[registry]``: the schema registry, by its Confluent-compatible address."""

    url: str


class Topics(Section):
    """``[topics]``: how the relay creates topics."""

    partitions: int = Field(default=6, ge=1)
    replication_factor: int = Field(default=1, ge=1)
    retention_hours: int = Field(default=168, ge=1)

    @property
    def replay_window_s(self) -> int:
        """The longest retention and a day: tombstones in sinks outlive it."""
        return (self.retention_hours + 24) * 3600


class SinkKind(enum.StrEnum):
    """Which module writes the sink."""

    CACHE = "cache"
    SEARCH = "search"
    WAREHOUSE = "warehouse"


class RouteKind(enum.StrEnum):
    """
    What a route's topic carries.

    ``table``: row changes. ``event_log``: events, of which each is kept.
    ``aggregate``: events that carry their aggregate's state, of which the newest is
    the aggregate's document.
    """

    TABLE = "table"
    EVENT_LOG = "event_log"
    AGGREGATE = "aggregate"


class Route(Section):
    """
    ``[[sink.route]]``: from a topic to a place in the sink.

    ``topic`` is a topic's name; an event log's may end in ``*``. ``name`` is the
    cache's table, the search index or the warehouse's ``schema.table``.

    The rest is of aggregates. Events of ``state_types`` carry the state (none named:
    all do), those of ``delete_types`` delete the document, others are left out.
    ``fields`` says how parts of the document are searched, by the names of Postgres's
    types: ``total = "numeric"``, ``"lines[].product_id" = "uuid"``.
    """

    topic: str
    name: str
    kind: RouteKind = RouteKind.TABLE
    state_types: tuple[str, ...] = ()
    delete_types: tuple[str, ...] = ()
    fields: dict[FieldPath, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind is not RouteKind.AGGREGATE:
            if self.state_types or self.delete_types or self.fields:
                message = (
                    "state_types, delete_types and fields are of a route of the kind "
                    "aggregate"
                )
                raise ValueError(message)
            return self
        if self.topic.endswith("*"):
            message = "topic: aggregates of two types may share an id: name one topic"
            raise ValueError(message)
        both = sorted(set(self.state_types) & set(self.delete_types))
        if both:
            message = f"delete_types: {both[0]} is one of state_types"
            raise ValueError(message)
        if not self.state_types and not self.fields:
            message = (
                "state_types: name the events that carry the state, whose schemas give "
                "the document its fields; or list fields"
            )
            raise ValueError(message)
        return self


class Sink(Section):
    """
    ``[[sink]]``: one target and its routes.

    ``driver`` names the Spark driver that runs it beside its fellows. ``url`` is the
    target's address: Redis, OpenSearch, or the DSN of the warehouse's catalog.
    ``folder`` is where a warehouse keeps its files.
    """

    name: str = Field(pattern=NAME)
    kind: SinkKind
    driver: str = Field(default="sinks", pattern=NAME)
    url: str
    folder: Path | None = None
    trigger_ms: int = Field(default=500, ge=0)
    max_batch_records: int = Field(default=50_000, ge=1)
    route: tuple[Route, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kind is SinkKind.WAREHOUSE) != (self.folder is not None):
            message = "folder: a warehouse needs one, other kinds take none"
            raise ValueError(message)
        logs = [r for r in self.route if r.kind is RouteKind.EVENT_LOG]
        if logs and self.kind is not SinkKind.WAREHOUSE:
            message = "route: only a warehouse keeps an event log"
            raise ValueError(message)
        aggregates = [r for r in self.route if r.kind is RouteKind.AGGREGATE]
        if aggregates and self.kind is not SinkKind.SEARCH:
            message = "route: only a search index keeps aggregates, as documents"
            raise ValueError(message)
        names = [r.name for r in self.route]
        if len(set(names)) != len(names):
            message = "route: two routes write the same name"
            raise ValueError(message)
        return self


class Settings(Section):
    """The whole file."""

    version: Literal[1]
    state_folder: Path = Path(".towpath")
    source: tuple[Source, ...] = Field(min_length=1, max_length=1)
    kafka: Kafka
    registry: Registry
    topics: Topics = Topics()
    relay: Relay = Relay()
    sink: tuple[Sink, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [s.name for s in self.sink]
        if len(set(names)) != len(names):
            message = "sink: two sinks have the same name"
            raise ValueError(message)
        return self

    @property
    def database(self) -> Source:
        """The one source."""
        return self.source[0]

    @property
    def capture(self) -> Capture:
        """Which tables are captured, as far as the file alone tells."""
        source, relay = self.database, self.relay
        apart = frozenset({relay.outbox.table, relay.snapshot.signal_table})
        return Capture(source.tables, source.exclude_tables, apart)

    @property
    def collections(self) -> tuple[str, ...]:
        """All that a snapshot may read: the tables, then the aggregate views."""
        views = (view.collection for view in self.relay.outbox.view)
        return (*self.database.tables, *views)

    def sink_named(self, name: str) -> Sink | None:
        """Find a sink by its name."""
        return next((s for s in self.sink if s.name == name), None)
