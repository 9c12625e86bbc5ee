"""
``[relay]``: limits, addresses and record forms of the relay.

``[relay.snapshot]``: how existing rows are read, and which snapshots start
automatically.
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
    The snapshots that the relay takes without a signal when it starts.

    ``never``: none. ``initial``: all tables, if the relay has never run before.
    ``initial_only``: as ``initial``; the relay then exits. ``when_needed``: as
    ``initial``, and also to close a gap in the source's history. ``always``: all
    tables, at each start.
    """

    NEVER = "never"
    INITIAL = "initial"
    INITIAL_ONLY = "initial_only"
    WHEN_NEEDED = "when_needed"
    ALWAYS = "always"


class Watermarks(enum.StrEnum):
    """
    The form of a chunk's watermarks in the log.

    ``messages``: logical messages. ``rows``: rows inserted into the signal table.
    ``rows_deleted``: rows inserted and deleted again.
    """

    MESSAGES = "messages"
    ROWS = "rows"
    ROWS_DELETED = "rows_deleted"


class Select(Section):
    """``[[relay.snapshot.select]]``: the query of initial snapshots for one table."""

    table: TableText
    select: str = Field(min_length=1)


class Snapshot(Section):
    """
    ``[relay.snapshot]``.

    ``readers`` chunks are read at the same time, from one table or several. The first
    chunk has ``chunk_rows``; later ones grow or shrink towards ``chunk_time_ms`` and
    ``chunk_bytes``. Reading pauses while the stream lags by more than ``max_lag_s``, or
    while more than ``max_active_sessions`` sessions of other clients are active in the
    source (0 means no limit). With ``fill_new_tables``, a table that begins to match
    the source's ``tables`` while the relay runs gets a snapshot. ``signal_topic`` and
    ``signal_table`` are further channels for signals: a Kafka topic, through which
    sinks request rows, and a plain table like Debezium's signal table.
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
    """Delivery to Kafka: idempotent, or in Kafka transactions as well."""

    IDEMPOTENT = "idempotent"
    TRANSACTIONAL = "transactional"


class OnGap(enum.StrEnum):
    """
    The reaction to a gap in the source's history, once the gap has been announced.

    ``halt`` stops; ``plan`` continues in a new lineage and records which snapshots
    close the gap; ``snapshot`` also starts them.
    """

    HALT = "halt"
    PLAN = "plan"
    SNAPSHOT = "snapshot"


class Transactions(Section):
    """
    ``[relay.transactions]``: the topic of transaction boundaries.

    With ``metadata`` each transaction has a BEGIN and an END record in
    ``<prefix>.transaction``, and each row change has its index in the transaction.
    """

    metadata: bool = False


class Messages(Section):
    """
    ``[relay.messages]``: publishing logical messages to ``<prefix>.message``.

    ``include`` and ``exclude`` are regular expressions matched against the message's
    prefix. The relay's own messages never appear.
    """

    publish: bool = False
    include: tuple[Pattern, ...] = ()
    exclude: tuple[Pattern, ...] = ()


class Relay(Section):
    """
    ``[relay]``.

    ``preset = "debezium"`` sets the defaults of ``outbox`` and ``rows`` to Debezium's
    forms; keys in the file take precedence. ``heartbeat_query`` runs on the source
    with every heartbeat.
    """

    preset: Literal["towpath", "debezium"] = "towpath"
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(default=0, ge=0, le=65535)
    delivery: DeliveryMode = DeliveryMode.IDEMPOTENT
    on_gap: OnGap = OnGap.PLAN
    max_in_flight_bytes: int = Field(default=16 * _MEBIBYTE, ge=_MEBIBYTE)
    max_parked_keys: int = Field(default=100_000, ge=1)
    heartbeat_interval_s: float = Field(default=10.0, gt=0)
    heartbeat_query: str = ""
    stop_timeout_s: float = Field(default=10.0, gt=0)
    takeover_timeout_s: float = Field(default=60.0, ge=0)
    standby: bool = False
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
            filled[section] = _merged(defaults, filled.get(section, {}))
        return filled


def _merged(defaults: Mapping[str, Any], written: object) -> object:
    """Merge the written keys over the preset, section by section."""
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
