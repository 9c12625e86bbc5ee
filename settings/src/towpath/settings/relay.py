"""
``[relay]``: bounds, addresses and forms of the relay process.

``[relay.snapshot]``: how existing rows are read, and when without being asked.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from towpath.settings.outbox import DEBEZIUM_OUTBOX, Outbox
from towpath.settings.rows import DEBEZIUM_ROWS, Rows
from towpath.settings.section import (
    SIGNAL_TOPIC,
    OptionalTableText,
    Section,
    TableText,
)
from towpath.settings.syntax import Pattern

_MEBIBYTE = 1024 * 1024


class FirstStart(enum.StrEnum):
    """
    Which rows are read unasked when the relay starts.

    ``never``: none. ``initial``: all tables, when the relay has never run before.
    ``initial_only``: the same, and then the relay ends. ``when_needed``: as
    ``initial``, and when a gap in the source's history calls for it. ``always``: all
    tables, at each start.
    """

    NEVER = "never"
    INITIAL = "initial"
    INITIAL_ONLY = "initial_only"
    WHEN_NEEDED = "when_needed"
    ALWAYS = "always"


class Watermarks(enum.StrEnum):
    """
    How a chunk's watermarks get into the log.

    ``messages``: as logical messages. ``rows``: as rows of the signal table, inserted
    and left; ``rows_deleted``: inserted and deleted again.
    """

    MESSAGES = "messages"
    ROWS = "rows"
    ROWS_DELETED = "rows_deleted"


class Select(Section):
    """``[[relay.snapshot.select]]``: what an initial snapshot reads for a table."""

    table: TableText
    select: str = Field(min_length=1)


class Snapshot(Section):
    """
    ``[relay.snapshot]``.

    ``readers`` is how many chunks are read at the same time, of one table or of
    several. A chunk begins with ``chunk_rows`` and grows or shrinks towards
    ``chunk_time_ms`` and ``chunk_bytes``. Reading yields while the stream is behind by
    ``max_lag_s``, or while more than ``max_active_sessions`` of others are at work in
    the source (0: however many). ``fill_new_tables``: a table that begins to match the
    source's ``tables`` while the relay runs is snapshotted by itself. ``signal_topic``
    and ``signal_table`` are further places where signals may be left: a Kafka topic,
    through which sinks ask for rows, and a bare table as Debezium has it.
    """

    mode: FirstStart = FirstStart.NEVER
    delay_s: float = Field(default=0.0, ge=0)
    select: tuple[Select, ...] = ()
    readers: int = Field(default=2, ge=1, le=32)
    chunk_rows: int = Field(default=10_000, ge=1)
    chunk_time_ms: int = Field(default=200, ge=1)
    chunk_bytes: int = Field(default=8 * _MEBIBYTE, ge=1024)
    max_lag_s: float = Field(default=10.0, gt=0)
    max_active_sessions: int = Field(default=0, ge=0)
    watermarks: Watermarks = Watermarks.MESSAGES
    fill_new_tables: bool = True
    signal_topic: str = Field(default="{prefix}-signal", pattern=SIGNAL_TOPIC)
    signal_table: OptionalTableText = ""


_GIBIBYTE = 1024 * _MEBIBYTE


class DeliveryMode(enum.StrEnum):
    """How records reach Kafka: idempotently, or in Kafka's transactions too."""

    IDEMPOTENT = "idempotent"
    TRANSACTIONAL = "transactional"


class OnGap(enum.StrEnum):
    """
    What a gap in the source's history does, once it is announced.

    ``halt`` stops; ``plan`` goes on in a new lineage and writes which snapshots close
    the gap; ``snapshot`` also starts them.
    """

    HALT = "halt"
    PLAN = "plan"
    SNAPSHOT = "snapshot"


class Transactions(Section):
    """
    ``[relay.transactions]``: the topic of transaction boundaries, and the events'.

    With ``metadata`` each transaction has a BEGIN and an END record in
    ``<prefix>.transaction``, and each row change tells its place in it.
    """

    metadata: bool = False


class Messages(Section):
    """
    ``[relay.messages]``: logical messages to ``<prefix>.message``.

    ``include`` and ``exclude`` are regular expressions on the message's prefix. The
    relay's own messages never appear.
    """

    publish: bool = False
    include: tuple[Pattern, ...] = ()
    exclude: tuple[Pattern, ...] = ()


class Relay(Section):
    """
    ``[relay]``.

    ``preset = "debezium"`` sets the defaults of ``outbox``, ``rows`` and ``messages``
    to Debezium's forms; keys that are written win. ``heartbeat_query`` is run on the
    source with every heartbeat.
    """

    preset: Literal["towpath", "debezium"] = "towpath"
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(default=0, ge=0, le=65535)
    delivery: DeliveryMode = DeliveryMode.IDEMPOTENT
    on_gap: OnGap = OnGap.PLAN
    max_in_flight_bytes: int = Field(default=64 * _MEBIBYTE, ge=_MEBIBYTE)
    max_parked_keys: int = Field(default=100_000, ge=1)
    heartbeat_interval_s: float = Field(default=10.0, gt=0)
    heartbeat_query: str = ""
    stop_timeout_s: float = Field(default=10.0, gt=0)
    takeover_timeout_s: float = Field(default=60.0, ge=0)
    retained_warning_bytes: int = Field(default=10 * _GIBIBYTE, ge=1)
    retained_critical_bytes: int = Field(default=20 * _GIBIBYTE, ge=1)
    inactive_critical_s: float = Field(default=1800.0, gt=0)
    outbox: Outbox = Outbox()
    rows: Rows = Rows()
    snapshot: Snapshot = Snapshot()
    transactions: Transactions = Transactions()
    messages: Messages = Messages()

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, data: object) -> object:
        if not isinstance(data, dict) or data.get("preset") != "debezium":
            return data
        filled = dict(data)
        for section, defaults in _DEBEZIUM.items():
            filled[section] = _over(defaults, filled.get(section, {}))
        return filled


def _over(defaults: Mapping[str, Any], written: object) -> object:
    """Lay what is written over the preset, section by section."""
    if not isinstance(written, dict):
        return written
    merged = {**defaults, **written}
    for name, value in defaults.items():
        if isinstance(value, Mapping) and isinstance(written.get(name), dict):
            merged[name] = {**value, **written[name]}
    return merged


_DEBEZIUM: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {"outbox": DEBEZIUM_OUTBOX, "rows": DEBEZIUM_ROWS}
)
