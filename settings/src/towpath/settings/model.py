"""The shape of ``towpath.toml``: sections, keys, units and defaults."""

import enum
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from towpath.settings.brokers import Kafka
from towpath.settings.relay import Relay
from towpath.settings.section import IDENTIFIER, PREFIX, Section
from towpath.settings.sink import Sink, Sinks, Spark
from towpath.settings.tables import Capture, TableEntry


class OnDrop(enum.StrEnum):
    """
    The treatment of rows of a captured table that was dropped or renamed.

    ``keep`` leaves them in the topic and the sinks; ``truncate`` publishes the deletion
    of all rows of the table, as after a TRUNCATE.
    """

    KEEP = "keep"
    TRUNCATE = "truncate"


class Source(Section):
    """
    ``[[source]]``: the database whose WAL the relay reads. Today only one is allowed.

    ``tables`` are captured, by name or by regular expressions matched against
    ``schema.table``; the expressions do not capture tables that match
    ``exclude_tables``.
    """

    dsn: str
    prefix: str = Field(default="towpath", pattern=PREFIX)
    slot: str = Field(default="towpath", pattern=IDENTIFIER)
    publication: str = Field(default="towpath", pattern=IDENTIFIER)
    outbox_publication: str = Field(default="towpath_outbox", pattern=IDENTIFIER)
    tables: tuple[TableEntry, ...] = ()
    exclude_tables: tuple[TableEntry, ...] = ()
    on_drop: OnDrop = OnDrop.KEEP


class Registry(Section):
    """``[registry]``: a Confluent-compatible schema registry; only Avro needs one."""

    url: str = ""


class Topics(Section):
    """``[topics]``: how the relay creates topics."""

    partitions: int = Field(default=6, ge=1)
    replication_factor: int = Field(default=1, ge=1)
    retention_hours: int = Field(default=168, ge=1)

    @property
    def replay_window_s(self) -> int:
        """The topic retention plus a day; sinks keep tombstones at least that long."""
        return (self.retention_hours + 24) * 3600


class Settings(Section):
    """The whole file."""

    version: Literal[1]
    state_folder: Path = Path(".towpath")
    source: tuple[Source, ...] = Field(min_length=1, max_length=1)
    kafka: Kafka
    registry: Registry = Registry()
    topics: Topics = Topics()
    relay: Relay = Relay()
    spark: Spark = Spark()
    sinks: Sinks = Sinks()
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
        """The captured tables, as far as the file alone determines them."""
        source, relay = self.database, self.relay
        reserved = frozenset({relay.outbox.table, relay.snapshot.signal_table})
        return Capture(source.tables, source.exclude_tables, reserved)

    @property
    def collections(self) -> tuple[str, ...]:
        """Everything that a snapshot may read: the tables, then the aggregate views."""
        views = (view.collection for view in self.relay.outbox.view)
        return (*self.capture.entries, *views)

    @property
    def signal_topic(self) -> str:
        """The topic for signals; empty if there is none."""
        name = self.relay.snapshot.signal_topic
        return name.replace("{prefix}", self.database.prefix)

    def sink_named(self, name: str) -> Sink | None:
        """Find a sink by its name."""
        return next((s for s in self.sink if s.name == name), None)
