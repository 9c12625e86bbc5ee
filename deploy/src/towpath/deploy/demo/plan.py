"""
What the demo is going to do, decided before it begins.

The new sink's snapshot must be slow enough that rows inside its key range change while
it runs: its pace follows from how many changes are wanted and how fast old orders are
settled. Pure.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# What the viewer is promised: this many rows of the key range change meanwhile.
WANTED_CHANGES: Final = 500

# The snapshot is stretched for half as many again, because answers come late under load
# and some orders are met twice.
_MARGIN: Final = 1.5

# Old orders settled per checkout, and the least per second: 750 changes in 25 s.
_SETTLE_SHARE: Final = 0.6
_MIN_SETTLE_RATE: Final = 30.0

# A tenth of the orders can change at most before the open ones run out.
_CHANGEABLE_SHARE: Final = 0.1

# However few orders there were before, those of the load come on top.
_LEAST_ROWS_PER_S: Final = 100

# Long enough for a steady state, short enough for a viewer.
_LOAD_BEFORE_NEW_SINK_SHARE: Final = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the viewer asked for."""

    rate: float = 50.0
    orders: int = 50_000
    duration_s: float = 40.0
    keep: bool = False
    json_file: Path | None = None
    before_verify: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    What follows from it.

    Attributes:
        settle_rate: Old orders settled a second, inside the snapshot's key range.
        new_sink_after_s: Load time before the new sink is declared.
        max_rows_per_second: The pace that the signal asks for.
        wanted_changes: Rows of the key range that must change during the snapshot.
        load_s: Least time that checkouts go on.
        sample_after_s: Load time before the first order whose way is timed.
        sample_for_s: How long such orders are placed; 0: as long as the load goes on.
    """

    settle_rate: float
    new_sink_after_s: float
    max_rows_per_second: int
    wanted_changes: int
    load_s: float
    sample_after_s: float = 0.0
    sample_for_s: float = 0.0


def plan(options: Options) -> Plan:
    """Decide rates and times."""
    settle_rate = max(_MIN_SETTLE_RATE, options.rate * _SETTLE_SHARE)
    wanted = min(WANTED_CHANGES, int(options.orders * _CHANGEABLE_SHARE))
    snapshot_s = max(1.0, wanted * _MARGIN / settle_rate)
    return Plan(
        settle_rate=settle_rate,
        new_sink_after_s=options.duration_s * _LOAD_BEFORE_NEW_SINK_SHARE,
        max_rows_per_second=max(
            _LEAST_ROWS_PER_S, math.ceil(options.orders / snapshot_s)
        ),
        wanted_changes=wanted,
        load_s=options.duration_s,
    )
