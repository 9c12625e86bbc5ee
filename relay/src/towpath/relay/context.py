"""
The parts that outlive one session.

Among them the sinks that the configuration declares: they are read when a signal names
one, so that a sink may be declared while the relay runs.
"""

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import structlog

from towpath.relay.encode.captured_tables import CapturedTables
from towpath.relay.kafka.topics import KafkaTopics
from towpath.relay.ports import Inbox
from towpath.relay.postgres.replication import Wakeup
from towpath.relay.registry.client import SchemaIds
from towpath.relay.snapshot.signals import SignalRefusal
from towpath.relay.stats import Stats
from towpath.schemas.clock import Clock
from towpath.schemas.failure import ConfigurationError
from towpath.settings import Settings, load

_LOG = structlog.get_logger("towpath.relay")


class DeclaredSinks:
    """Names the declared sinks as of each call."""

    def __init__(
        self, config: Path, environ: Mapping[str, str], settings: Settings
    ) -> None:
        self._config = config
        self._environ = environ
        self._names = _names(settings)

    def __call__(self) -> frozenset[str]:
        """Return the sinks' names; those of before if the file has a mistake now."""
        try:
            self._names = _names(load(self._config, self._environ))
        except ConfigurationError as error:
            _LOG.warning(
                "sinks unchanged: configuration cannot be read",
                reason=str(error),
                remedy=error.remedy,
            )
        return self._names


def _names(settings: Settings) -> frozenset[str]:
    return frozenset(sink.name for sink in settings.sink)


class ProcessContext(NamedTuple):
    """
    The parts that outlive one session.

    Attributes:
        settings: The configuration file's.
        sinks: The declared sinks, as of each call.
        topics: Knows and makes topics.
        schema_ids: Knows and registers schemas.
        stats: Counters and last sights.
        clock: The time.
        wakeup: Ends the loop's waits.
        captured: The captured tables, as of each look.
        inbox: Takes signals that are left in a bare table.
        refusals: Refused signals of every channel.
    """

    settings: Settings
    sinks: DeclaredSinks
    topics: KafkaTopics
    schema_ids: SchemaIds
    stats: Stats
    clock: Clock
    wakeup: Wakeup
    captured: CapturedTables
    inbox: Inbox
    refusals: deque[SignalRefusal]
