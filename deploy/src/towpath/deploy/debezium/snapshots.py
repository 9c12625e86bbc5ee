"""Rules about snapshots and signals."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from towpath.deploy.debezium.connector import Connector, split
from towpath.deploy.debezium.outcome import (
    KeyPath,
    Outcome,
    not_needed,
    not_supported,
    same,
    taken,
)
from towpath.deploy.debezium.rules import Given
from towpath.deploy.debezium.tables import signal_table, table_entries
from towpath.schemas.topics import signal_topic

_SNAPSHOT: Final = ("relay", "snapshot")
_OVERRIDES: Final = "snapshot.select.statement.overrides"
_CHANNELS: Final = "signal.enabled.channels"
_KAFKA: Final = "kafka"
_MODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "initial": "initial",
        "exported": "initial",
        "parallel": "initial",
        "initial_only": "initial_only",
        "when_needed": "when_needed",
        "always": "always",
        "never": "never",
        "no_data": "never",
        "schema_only": "never",
    }
)
_RECOVERY: Final = ("recovery", "schema_only_recovery")
_READS: Final = (
    "the first start reads all rows; with never it does not, if the connector's topics "
    "have them"
)
_INSTEAD: Final = "ask with towpath snapshot start, or over HTTP on the admin port"


def mode(given: Given, connector: Connector) -> Outcome:
    """Take which rows are read unasked."""
    value = given.value.strip().lower()
    if value in _RECOVERY:
        return not_needed("Postgres needs no schema history that could be recovered")
    if value not in _MODES:
        return not_supported(
            f"{given.value!r}: choose one of relay.snapshot.mode: "
            "never, initial, initial_only, when_needed, always"
        )
    ours = _MODES[value]
    if ours != "never" and not table_entries(connector):
        return not_needed("no table is captured, and events are only streamed")
    return taken({(*_SNAPSHOT, "mode"): ours}, "" if ours == "never" else _READS)


def overrides(given: Given, connector: Connector) -> Outcome:
    """Take the statements that are read in place of tables."""
    listed = {_table(name): name for name in split(connector.get(_OVERRIDES))}
    if given.name != _OVERRIDES and _table(given.parts[-1]) not in listed:
        return not_supported(f"name the table in {_OVERRIDES}")
    found, missing = [], []
    for table, name in listed.items():
        statement = connector.get(f"{_OVERRIDES}.{name}", f"{_OVERRIDES}.{table}")
        if statement:
            found.append({"table": table, "select": statement})
        else:
            missing.append(name)
    keys: dict[KeyPath, object] = {(*_SNAPSHOT, "select"): found} if found else {}
    if missing and given.name == _OVERRIDES:
        names = ", ".join(missing)
        return not_supported(f"{names} has no {_OVERRIDES}.<table>: write it", keys)
    return taken(keys)


def channels(given: Given, connector: Connector) -> Outcome:
    """Take the ways that signals come."""
    wanted = [one.lower() for one in split(given.value)]
    keys = _topic(connector) if _KAFKA in wanted else {}
    others = [one for one in wanted if one not in {"source", _KAFKA}]
    if others:
        return not_supported(f"{', '.join(others)}: {_INSTEAD}", keys)
    if not keys:
        return same("signals are rows, of towpath.signal or of signal.data.collection")
    return taken(keys)


def topic(_given: Given, connector: Connector) -> Outcome:
    """Take the topic of signals, if that channel is used."""
    if _KAFKA not in connector.get(_CHANNELS).lower():
        return not_needed(f"{_CHANNELS} does not name kafka")
    return taken(_topic(connector))


def collection(given: Given, connector: Connector) -> Outcome:
    """Take the connector's signal table as one more place of signals."""
    name = signal_table(connector)
    if given.value.endswith("towpath.signal"):
        return same()
    return taken(
        {(*_SNAPSHOT, "signal_table"): name},
        "answers are in <prefix>.notifications; towpath.signal is answered in place",
    )


def _topic(connector: Connector) -> dict[KeyPath, object]:
    name = connector.get("signal.kafka.topic") or signal_topic(connector.prefix)
    return {(*_SNAPSHOT, "signal_topic"): name}


def _table(name: str) -> str:
    """Leave out the database, where one stands before schema and table."""
    return ".".join(name.split(".")[-2:])
