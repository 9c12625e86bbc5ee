"""
The one configuration file, ``towpath.toml``: its shape and its mistakes.

Every process reads the whole file, so that an unknown key is noticed wherever it
stands. Every mistake is reported in one go, with the nearest known name.
"""

from towpath.settings.load import load
from towpath.settings.model import (
    Kafka,
    Outbox,
    Registry,
    Relay,
    Route,
    RouteKind,
    Settings,
    Sink,
    SinkKind,
    Source,
    Topics,
)

__all__ = [
    "Kafka",
    "Outbox",
    "Registry",
    "Relay",
    "Route",
    "RouteKind",
    "Settings",
    "Sink",
    "SinkKind",
    "Source",
    "Topics",
    "load",
]
