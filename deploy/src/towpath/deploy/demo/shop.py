"""
The load of the shop, and a sink that is added during checkouts.

The load runs in a separate process, which samples the sinks, too. After SIGTERM it
finishes the orders and the samples that it has begun. The new sink's block is added to
the configuration; its driver then starts the sink. The sink reads the orders' events,
most of which are no longer stored, so its snapshot reads the orders' documents from a
view. The signal's SQL statement is shown as a person would write it.
"""

import signal
from contextlib import closing
from typing import Any, Final

from rich.markup import escape

from towpath.deploy.demo import parts
from towpath.deploy.demo.monitor import read_report
from towpath.deploy.demo.parts import SERVING
from towpath.deploy.demo.platform import wait_for_snapshot
from towpath.deploy.demo.stage import Stage
from towpath.deploy.errors import StepError
from towpath.deploy.local import process
from towpath.deploy.local.configuration import SEARCH_OPTIONS, order_documents
from towpath.deploy.snapshots import signals
from towpath.sinks.kafka.client import Topics
from towpath.sinks.kafka.progress_topic import ProgressReader
from towpath.sinks.state import declare

_FIRST_CHECKOUT_WITHIN_S: Final = 60.0

# The sampler waits a minute for its last samples.
_LAST_SAMPLE_WITHIN_S: Final = 75.0

# The load's users finish within 15 s; the last samples follow.
_STOP_WITHIN_S: Final = 100.0


def open_shop(stage: Stage) -> None:
    """Start the load, and wait for the first checkout."""
    rate = stage.options.rate
    parts.progress_of(stage).unlink(missing_ok=True)
    with stage.timed_step(f"open the shop: {rate:g} checkouts per second"):
        process.start(parts.load(stage), stage.state)
        stage.until(
            lambda: _still_runs(stage) and _checkouts(stage) > 0,
            "the first checkout",
            _FIRST_CHECKOUT_WITHIN_S,
        )


def wait_for_samples(stage: Stage) -> None:
    """Wait until the sampler has finished, while the load continues."""
    with stage.timed_step("wait for the last latency samples"):
        stage.until(
            lambda: _still_runs(stage) and sampler_report(stage).get("finished", False),
            "the last latency samples",
            _LAST_SAMPLE_WITHIN_S,
        )


def close_shop(stage: Stage) -> None:
    """Stop the load; wait for its last responses, then for its last samples."""
    with stage.timed_step("close the shop: wait for the last customers and samples"):
        _still_runs(stage)
        path = stage.state.process_file(parts.LOAD)
        process.stop(path, signal.SIGTERM, within_s=_STOP_WITHIN_S)
        for report in (load_report(stage), sampler_report(stage)):
            if not report.get("finished"):
                message = f"the load has not finished; log: {_log(stage)}"
                raise StepError(message)


def load_report(stage: Stage) -> dict[str, Any]:
    """Read the report of the load."""
    return _part(stage, "load")


def sampler_report(stage: Stage) -> dict[str, Any]:
    """Read the report of the sampler, which reads the sinks."""
    return _part(stage, "lag")


def _part(stage: Stage, name: str) -> dict[str, Any]:
    document: dict[str, Any] = read_report(parts.progress_of(stage)).get(name, {})
    return document


def _checkouts(stage: Stage) -> int:
    return int(load_report(stage).get("checkouts", 0))


def _still_runs(stage: Stage) -> bool:
    if process.find(stage.state.process_file(parts.LOAD)) is None:
        message = f"the load has ended unexpectedly; log: {_log(stage)}"
        raise StepError(message)
    return True


def _log(stage: Stage) -> str:
    return str(stage.state.log(parts.LOAD))


SINK: Final = "search_orders"
INDEX: Final = "orders_v2"
SIGNAL: Final = "demo-new-sink"

COLLECTION: Final = "outbox.order"

_RUNNING_WITHIN_S: Final = 90.0
# Enough for a full batch right after the driver was killed, on two busy cores.
_STUCK_AFTER_S: Final = 120.0

_BLOCK: Final = """
[[sink]]
name = "{name}"
kind = "search"
driver = "{driver}"
url = "{url}"
"""


def declare_sink(stage: Stage) -> None:
    """Add the sink to the configuration, and wait until its query runs."""
    settings = stage.settings()
    url = declare.sink_named(settings, "search").url
    head = _BLOCK.format(name=SINK, driver=SERVING, url=url)
    block = head + SEARCH_OPTIONS + order_documents(INDEX)
    with stage.timed_step(f"declare a new sink: {SINK}, the index {INDEX}"):
        cluster = Topics(settings.kafka)
        sink = (stage.config, block, stage.overrides)
        stage.retried(lambda: declare.declare_sink(*sink, cluster, stage.clock))
        settings = stage.settings()
        with closing(ProgressReader(settings, stage.clock)) as published:
            context = (settings, SINK, published, stage.clock)
            declare.wait_running(*context, _RUNNING_WITHIN_S)


def fill_sink(stage: Stage) -> None:
    """Request a snapshot with the sink as its target, and wait until it is applied."""
    speed = stage.plan.max_rows_per_second
    shown = signals.statement(stage.source(), [COLLECTION], SINK, SIGNAL, speed)
    stage.report(f"[bold]{escape(shown)}[/bold]")
    with stage.timed_step(f"fill {SINK} while checkouts continue"):
        stage.retried(
            lambda: signals.request_snapshot(
                stage.source(),
                [COLLECTION],
                target=SINK,
                max_rows_per_second=speed,
                signal_id=SIGNAL,
            )
        )
        wait_for_snapshot(stage, SIGNAL)
    with stage.timed_step(f"wait until {SINK} has applied the snapshot"):
        settings = stage.settings()
        cluster = Topics(settings.kafka)
        ends = stage.retried(lambda: declare.sink_ends(settings, SINK, cluster))
        with closing(ProgressReader(settings, stage.clock)) as published:
            declare.wait_applied(SINK, ends, published, stage.clock, _STUCK_AFTER_S)
        declare.mark_ready(settings, SINK)
