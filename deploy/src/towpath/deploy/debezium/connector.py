"""
A connector's configuration as one flat mapping of strings.

The JSON is read bare (``{...}``) or in the form of the REST interface (``{"name": ...,
"config": {...}}``); numbers and booleans become text as in Kafka Connect.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from towpath.deploy.errors import ConnectorError

ROUTER_TYPE: Final = "io.debezium.transforms.outbox.EventRouter"
_POSTGRES: Final = "postgres"
_CLASS: Final = "connector.class"
# Prefixes that identify a connector's JSON without a class.
_TYPICAL: Final = ("database.", "topic.prefix", "table.", "slot.", "transforms")


@dataclass(frozen=True, slots=True)
class Connector:
    """
    The connector to convert, and the options of the conversion.

    Attributes:
        properties: The properties' values, as written, by name.
        catalog: The source's tables with their columns; None if it was not read.
        includes_secrets: Whether passwords may be written to the file.
        brokers: Kafka's addresses, if they are given on the command line.
        registry: The schema registry's address, if it is given there.
    """

    properties: Mapping[str, str]
    catalog: Mapping[str, tuple[str, ...]] | None = None
    includes_secrets: bool = False
    brokers: str = ""
    registry: str = ""
    routers: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        routers = [
            name
            for name in self.transforms
            if self.get(f"transforms.{name}.type") == ROUTER_TYPE
        ]
        object.__setattr__(self, "routers", tuple(routers))

    @property
    def transforms(self) -> tuple[str, ...]:
        """The transforms in order."""
        return split(self.get("transforms"))

    @property
    def router(self) -> str | None:
        """The name of the transform that is the event router."""
        return self.routers[0] if self.routers else None

    def get(self, *names: str, default: str = "") -> str:
        """Return the value of the first of these properties that is set."""
        found = (self.properties[name] for name in names if name in self.properties)
        return next(found, default)

    @property
    def prefix(self) -> str:
        """The prefix of all topics."""
        return self.get("topic.prefix", "database.server.name", default="towpath")

    def routed(self, name: str, default: str = "") -> str:
        """Return one of the event router's properties."""
        return self.get(f"transforms.{self.router}.{name}", default=default)


def split(text: str) -> tuple[str, ...]:
    r"""Split a list at its commas; ``\,`` is a literal comma."""
    parts = text.replace("\\,", "\0").split(",")
    stripped = (part.replace("\0", ",").strip() for part in parts)
    return tuple(part for part in stripped if part)


def read_properties(text: str) -> dict[str, str]:
    """
    Read a connector's JSON.

    Raises:
        ConnectorError: The text is not the configuration of a Postgres connector.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"not JSON: {error}"
        raise ConnectorError(message) from error
    if isinstance(found, dict) and isinstance(found.get("config"), dict):
        found = {"name": found.get("name", ""), **found["config"]}
    if not isinstance(found, dict):
        message = "the JSON is not an object with the connector's properties"
        raise ConnectorError(message)
    properties = {name: _text(name, value) for name, value in found.items()}
    _check(properties)
    return properties


def _text(name: str, value: object) -> str:
    if isinstance(value, dict | list):
        message = f"{name}: a property is text, a number or a boolean"
        raise ConnectorError(message)
    if isinstance(value, bool):
        return str(value).lower()
    text = "" if value is None else str(value)
    try:
        (name + text).encode()
    except UnicodeEncodeError as error:
        message = f"{name!a}: not text: {error.reason}"
        raise ConnectorError(message) from error
    return text


def _check(properties: Mapping[str, str]) -> None:
    named = properties.get(_CLASS, "")
    if named and _POSTGRES not in named.lower():
        message = f"{_CLASS} is {named!r}, not Debezium's Postgres connector"
        raise ConnectorError(message)
    if not named and not any(name.startswith(_TYPICAL) for name in properties):
        message = f"no {_CLASS} and no property of a Debezium connector"
        raise ConnectorError(message)
