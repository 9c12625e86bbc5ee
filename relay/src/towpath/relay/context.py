"""
The parts that outlive one session.

The declared sinks are read again when a signal names one, so that a sink can be
declared while the relay is running.
"""

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import structlog

from towpath.relay.encode.captured_tables import CapturedTables
from towpath.relay.encode.codecs.codec import RegisterSchema
from towpath.relay.kafka.lineage import RelayLineage
from towpath.relay.kafka.topics import KafkaTopics
from towpath.relay.ports import SignalStore
from towpath.relay.postgres.replication import Wakeup
from towpath.relay.snapshot.signals import SignalRefusal
from towpath.relay.stats import Stats
from towpath.schemas.clock import Clock
from towpath.schemas.failure import ConfigurationError
from towpath.schemas.tracing import NO_TRACER, Tracer
from towpath.settings import Settings, load

_LOG = structlog.get_logger("towpath.relay")


class DeclaredSinks:
    """Returns the names of the declared sinks, read from the file at each call."""

    def __init__(
        self, config: Path, environ: Mapping[str, str], settings: Settings
    ) -> None:
        self._config = config
        self._environ = environ
        self._names = _names(settings)

    def __call__(self) -> frozenset[str]:
        """Return the sinks' names; the last known names if the file is invalid."""
        try:
            self._names = _names(load(self._config, self._environ))
        except ConfigurationError as error:
            _LOG.warning(
                "configuration cannot be read: the sinks stay unchanged",
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
        settings: The settings of the configuration file.
        sinks: Returns the declared sinks.
        topics: Caches and creates topics.
        schema_ids: Caches and registers schemas.
        stats: Counters and gauges.
        clock: Gives the time.
        wakeup: Interrupts the loop's waits.
        captured: The captured tables.
        signal_store: Stores external signals.
        refusals: Refused signals from every channel.
        lineage: Reports runs to catalogs.
        tracer: Records spans.
    """

    settings: Settings
    sinks: DeclaredSinks
    topics: KafkaTopics
    schema_ids: RegisterSchema
    stats: Stats
    clock: Clock
    wakeup: Wakeup
    captured: CapturedTables
    signal_store: SignalStore
    refusals: deque[SignalRefusal]
    lineage: RelayLineage
    tracer: Tracer = NO_TRACER
