"""
Wait until nothing is on its way any more.

First the relay: the slot's confirmed position has passed the last commit, so every
record is in Kafka. Then the sinks: each has applied its topics up to their ends, which
do not move any more.
"""

from typing import Final

from towpath.deploy import offsets
from towpath.deploy.demo import measure
from towpath.deploy.demo.stage import Stage
from towpath.sinks.kafka import Topics

# A driver that was just killed needs half a minute before it goes on.
_SETTLED_WITHIN_S: Final = 180.0


def settle(stage: Stage) -> None:
    """Wait for the relay, then for every sink."""
    with stage.doing("wait until relay and sinks have caught up"):
        last = stage.patiently(lambda: measure.end_of_log(stage.shop_dsn))
        slot = stage.settings().database.slot
        stage.until(
            lambda: measure.has_confirmed(stage.shop_dsn, slot, last),
            "the slot's confirmed position to pass the last commit",
            _SETTLED_WITHIN_S,
        )
        wait_for_sinks(stage, _SETTLED_WITHIN_S)


def wait_for_sinks(stage: Stage, within_s: float) -> None:
    """
    Wait until every sink has applied what its topics hold now.

    Raises:
        StepError: One has not in time.
    """
    settings = stage.settings()
    topics = Topics(settings.kafka.bootstrap_servers)
    ends = stage.patiently(lambda: offsets.read_ends(topics))

    def have_caught_up() -> bool:
        return not any(
            offsets.lag_records(sink, offsets.progress_of(settings, sink).applied, ends)
            for sink in settings.sink
        )

    stage.until(have_caught_up, "the sinks to catch up", within_s)
