"""
A sink without a target, for measurements: it decodes and folds, and writes nothing.

The kind ``null`` is found by its entry point, like those of other packages. It keeps no
guard and no floors, so it equals nothing: only the number of changes is counted.
"""

from towpath.settings import RouteKind
from towpath.settings import Sink as SinkSettings
from towpath.sinks.kinds import ExecutorParts, Kind, SinkParts
from towpath.sinks.ports import Batch, Checkpoint
from towpath.sinks.tally import Tally


class NullSink:
    """Counts changes and events."""

    def __init__(self) -> None:
        self._tally = Tally()

    def open(self) -> None:
        """Do nothing: there is no target."""

    def apply(self, batch: Batch) -> None:
        self._tally.applied += len(batch.changes) + len(batch.events)

    def flush(self) -> Checkpoint:
        return self._tally.take()

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _make(_sink: SinkSettings, _parts: SinkParts | ExecutorParts) -> NullSink:
    return NullSink()


KIND = Kind(make=_make, spread=_make, routes=frozenset(RouteKind))
