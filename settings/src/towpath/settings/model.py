"""The shape of ``towpath.toml``: sections, keys, units and defaults."""

import enum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

# A slot name as Postgres takes it; the same rule serves publications.
_IDENTIFIER = r"^[a-z_][a-z0-9_]{0,62}$"
_NAME = r"^[a-z0-9][a-z0-9_-]*$"
_TABLE = r"^[^.\s]+\.[^.\s]+$"

_PREFIX = r"^[A-Za-z0-9._-]+$"

# What each pattern asks for, in words, for the message about a mistake.
PATTERN_WORDS = {
    _IDENTIFIER: "must be a lower-case identifier: letters, digits and underscores",
    _NAME: "must be lower-case letters, digits, dashes and underscores",
    _TABLE: "must be schema.table",
    _PREFIX: "must be letters, digits, dots, dashes and underscores",
}

TableName = Annotated[str, Field(pattern=_TABLE)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Outbox(_Section):
    """``[source.outbox]``: the outbox table and where its events go."""

    table: TableName = "towpath.outbox"
    topic: str = "outbox.event.{aggregate_type}"


class Source(_Section):
    """``[[source]]``: the database whose log is followed. One is allowed today."""

    dsn: str
    prefix: str = Field(default="towpath", pattern=_PREFIX)
    slot: str = Field(default="towpath", pattern=_IDENTIFIER)
    publication: str = Field(default="towpath", pattern=_IDENTIFIER)
    outbox_publication: str = Field(default="towpath_outbox", pattern=_IDENTIFIER)
    tables: tuple[TableName, ...] = ()
    outbox: Outbox = Outbox()


class Kafka(_Section):
    """``[kafka]``: the brokers."""

    bootstrap_servers: str


class Registry(_Section):
    """``[registry]``: the schema registry, by its Confluent-compatible address."""

    url: str


class Topics(_Section):
    """``[topics]``: how the relay creates topics."""

    partitions: int = Field(default=6, ge=1)
    replication_factor: int = Field(default=1, ge=1)
    retention_hours: int = Field(default=168, ge=1)

    @property
    def replay_window_s(self) -> int:
        """The longest retention and a day: tombstones in sinks outlive it."""
        return (self.retention_hours + 24) * 3600


class Relay(_Section):
    """``[relay]``: bounds and addresses of the relay process."""

    admin_port: int = Field(default=0, ge=0, le=65535)
    max_in_flight_bytes: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024)
    heartbeat_interval_s: float = Field(default=10.0, gt=0)
    chunk_rows: int = Field(default=10_000, ge=1)


class SinkKind(enum.StrEnum):
    """Which module writes the sink."""

    CACHE = "cache"
    SEARCH = "search"
    WAREHOUSE = "warehouse"


class RouteKind(enum.StrEnum):
    """What a route's topic carries."""

    TABLE = "table"
    EVENT_LOG = "event_log"


class Route(_Section):
    """
    ``[[sink.route]]``: from a topic to a place in the sink.

    ``topic`` is a topic's name; an event log's may end in ``*``. ``name`` is the
    cache's table, the search index or the warehouse's ``schema.table``.
    """

    topic: str
    name: str
    kind: RouteKind = RouteKind.TABLE


class Sink(_Section):
    """
    ``[[sink]]``: one target and its routes.

    ``driver`` names the Spark driver that runs it beside its fellows. ``url`` is the
    target's address: Redis, OpenSearch, or the DSN of the warehouse's catalog.
    ``folder`` is where a warehouse keeps its files.
    """

    name: str = Field(pattern=_NAME)
    kind: SinkKind
    driver: str = Field(default="sinks", pattern=_NAME)
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


class Settings(_Section):
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
