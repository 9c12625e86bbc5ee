"""
The parts that outlive one session.

The sinks that the configuration declares, read when a signal names one.

A sink may be declared while the relay runs; that needs no restart.
"""

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import structlog

from towpath.relay.captured_tables import CapturedTables
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
                "the configuration cannot be read: sinks are those of before",
                reason=str(error),
                remedy=error.remedy,
            )
        return self._names


def _names(settings: Settings) -> frozenset[str]:
    return frozenset(sink.name for sink in settings.sink)


class ProcessContext(NamedTuple):
    """
    What outlives attempts.

    Attributes:
        settings: Of the file.
        sinks: The declared sinks, as of each call.
        topics: Knows and makes topics.
        schema_ids: Knows and registers schemas.
        stats: What is counted.
        clock: The time.
        wakeup: Ends the loop's waits.
        captured: The captured tables, as of each look.
        inbox: Takes signals that are left in a bare table.
        refusals: What every channel of signals has refused.
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
