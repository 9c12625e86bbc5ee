"""
Wait until nothing is on its way any more.

First the relay: the slot's confirmed position has passed the last commit, so every
record is in Kafka. Then the sinks: each has applied its topics up to their ends, which
do not move any more.
"""

from typing import Final

from towpath.deploy import offsets
from towpath.deploy.demo import measure
from towpath.deploy.demo.errors import StepError
from towpath.deploy.demo.stage import Stage
from towpath.schemas.clock import Patience
from towpath.settings import Sink
from towpath.sinks.kafka import Topics

_CONFIRMED_WITHIN_S: Final = 180.0

# A driver that was just killed needs half a minute before it goes on, and for its first
# batch, which may be a full one, as long again.
_STUCK_AFTER_S: Final = 120.0
_LOOK_EVERY_S: Final = 0.2


def settle(stage: Stage) -> None:
    """Wait for the relay, then for every sink."""
    with stage.doing("wait until relay and sinks have caught up"):
        last = stage.patiently(lambda: measure.end_of_log(stage.shop_dsn))
        slot = stage.settings().database.slot
        stage.until(
            lambda: measure.has_confirmed(stage.shop_dsn, slot, last),
            "the slot's confirmed position to pass the last commit",
            _CONFIRMED_WITHIN_S,
        )
        wait_for_sinks(stage)


def wait_for_sinks(stage: Stage) -> None:
    """
    Wait until every sink has applied what its topics hold now.

    Raises:
        StepError: They stand still.
    """
    settings = stage.settings()
    topics = Topics(settings.kafka)
    ends = stage.patiently(lambda: offsets.read_ends(topics))

    def lag_of(sink: Sink) -> int:
        applied = offsets.progress_of(settings, sink).applied
        return offsets.lag_records(sink, applied, ends)

    patience = Patience(stage.clock, _STUCK_AFTER_S)
    while behind := {sink.name: lag for sink in settings.sink if (lag := lag_of(sink))}:
        if patience.is_over(sum(behind.values())):
            lags = ", ".join(f"{name} {lag:,} behind" for name, lag in behind.items())
            message = (
                f"the sinks have applied nothing for {_STUCK_AFTER_S:.0f} s: {lags}; "
                f"logs: {stage.state.root}/logs"
            )
            raise StepError(message)
        stage.clock.wait(_LOOK_EVERY_S)
