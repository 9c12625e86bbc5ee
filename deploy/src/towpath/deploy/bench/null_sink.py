"""
A sink without a target, for measurements: it decodes and folds, and writes nothing.

It keeps no guard and no floors, so it equals nothing: only the number of changes is
counted. Its kind is no choice for users: it exists for processes that have the folder
of ``install`` on their path.
"""

from pathlib import Path
from typing import Final

from towpath.settings import RouteKind
from towpath.settings import Sink as SinkSettings
from towpath.settings.sink import KINDS_GROUP
from towpath.sinks.kinds import ExecutorParts, Kind, SinkParts
from towpath.sinks.ports import Batch, Checkpoint
from towpath.sinks.tally import Tally

KIND_NAME: Final = "null"

_ENTRY_POINTS: Final = f"""\
[{KINDS_GROUP}]
{KIND_NAME} = {__name__}:KIND
"""


def install(folder: Path) -> None:
    """Write what an installer makes of the kind's entry point into a folder."""
    metadata = folder / "towpath_null-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: towpath-null\nVersion: 0\n", encoding="utf-8"
    )
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS, encoding="utf-8")


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
