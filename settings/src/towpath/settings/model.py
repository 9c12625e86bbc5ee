"""The shape of ``towpath.toml``: sections, keys, units and defaults."""

import enum
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from towpath.settings.relay import Relay
from towpath.settings.section import IDENTIFIER, NAME, PREFIX, Section, TableName
from towpath.settings.syntax import ClientOption


class Source(Section):
    """``[[source]]``: the database whose log is followed. One is allowed today."""

    dsn: str
    prefix: str = Field(default="towpath", pattern=PREFIX)
    slot: str = Field(default="towpath", pattern=IDENTIFIER)
    publication: str = Field(default="towpath", pattern=IDENTIFIER)
    outbox_publication: str = Field(default="towpath_outbox", pattern=IDENTIFIER)
    tables: tuple[TableName, ...] = ()


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
    """What a route's topic carries."""

    TABLE = "table"
    EVENT_LOG = "event_log"


class Route(Section):
    """
    ``[[sink.route]]``: from a topic to a place in the sink.

    ``topic`` is a topic's name; an event log's may end in ``*``. ``name`` is the
    cache's table, the search index or the warehouse's ``schema.table``.
    """

    topic: str
    name: str
    kind: RouteKind = RouteKind.TABLE


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

    def sink_named(self, name: str) -> Sink | None:
        """Find a sink by its name."""
        return next((s for s in self.sink if s.name == name), None)
