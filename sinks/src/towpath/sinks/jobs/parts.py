"""What a supervisor works with, made by the root; and who stands in for repairs."""

from collections.abc import Callable
from dataclasses import dataclass

from towpath.schemas.clock import Clock
from towpath.settings import Sink as SinkSettings
from towpath.sinks.batches import Batches
from towpath.sinks.dead_letters.box import LetterBox
from towpath.sinks.jobs.monitor import Monitor
from towpath.sinks.jobs.reshaping import Announced, NothingAnnounced
from towpath.sinks.jobs.safe import Heads
from towpath.sinks.ports import Cluster, Repairs, Sink


class NoRepairs:
    """Nobody can be asked for rows; what would need it is set aside."""

    def ask_keys(self, _route: str, _keys: object) -> bool:
        """Tell that they cannot be asked for."""
        return False

    def ask_columns(self, _route: str, _columns: object, _why: str) -> None:
        """Tell that they cannot be asked for."""

    def ask_all(self, _route: str, _why: str) -> bool:
        """Tell that they cannot be asked for."""
        return False


def _accept(_: SinkSettings) -> None:
    """Take every block for fit."""


def _no_repairs(_: SinkSettings) -> Repairs:
    return NoRepairs()


@dataclass(frozen=True, slots=True)
class Parts:
    """
    What a supervisor works with, made by the root.

    Attributes:
        make_batches: Makes what reads the batches of a sink, by its name.
        make_dead_letters: Makes the dead letters of a sink, by its name.
        make_repairs: Makes what has rows of a sink read anew.
        heads: What topics begin with; without it no tombstone is ever forgotten.
        monitor: Shows how the sinks are; without it only their files tell.
        check: Sees that a changed block fits its tables and its target.
        on_executor: Gives what makes a sink on an executor; it is sent there. Without
            it all is written from the driver.
        make_announced: Makes what knows the announced shapes of tables; without it
            altered columns are not noticed.
    """

    make_sink: Callable[[SinkSettings], Sink]
    make_batches: Callable[[str], Batches]
    make_dead_letters: Callable[[str], LetterBox]
    cluster: Cluster
    clock: Clock
    make_repairs: Callable[[SinkSettings], Repairs] = _no_repairs
    heads: Heads | None = None
    monitor: Monitor | None = None
    check: Callable[[SinkSettings], None] = _accept
    on_executor: Callable[[SinkSettings], Callable[[], Sink]] | None = None
    make_announced: Callable[[], Announced] = NothingAnnounced
