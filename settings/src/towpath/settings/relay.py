"""``[relay]``: bounds, addresses and forms of the relay process."""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from towpath.settings.outbox import DEBEZIUM_OUTBOX, Outbox
from towpath.settings.rows import DEBEZIUM_ROWS, Rows
from towpath.settings.section import Section
from towpath.settings.snapshot import Snapshot
from towpath.settings.syntax import Pattern

_MEBIBYTE = 1024 * 1024
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
