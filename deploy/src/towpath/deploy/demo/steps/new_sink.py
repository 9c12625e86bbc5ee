"""
A sink that did not exist before: declared, started and filled while checkouts go on.

Its block is added to the configuration, and its driver starts it by itself. It follows
the orders' events, of which most are not kept anywhere: the snapshot reads what they
would say. The row in the signal table is written as a person would write it, and shown.
"""

import json
from typing import Final

from rich.markup import escape

from towpath.deploy import signals
from towpath.deploy.demo.parts import SERVING
from towpath.deploy.demo.stage import Stage
from towpath.deploy.demo.steps.fill import wait_for_snapshot
from towpath.deploy.local.configuration import SEARCH_BATCH, order_documents
from towpath.sinks import declare
from towpath.sinks.kafka import Topics

SINK: Final = "search_orders"
INDEX: Final = "orders_v2"
SIGNAL: Final = "demo-new-sink"

COLLECTION: Final = "outbox.order"

_RUNNING_WITHIN_S: Final = 90.0
# A full batch right after the driver was killed, on two cores that do all the rest.
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
    block = head + SEARCH_BATCH + order_documents(INDEX)
    with stage.doing(f"declare a new sink: {SINK}, the index {INDEX}"):
        cluster = Topics(settings.kafka)
        stage.patiently(
            lambda: declare.declare_sink(stage.config, block, {}, cluster, stage.clock)
        )
        declare.wait_running(stage.settings(), SINK, stage.clock, _RUNNING_WITHIN_S)


def fill_sink(stage: Stage) -> None:
    """Ask for a snapshot with the sink as its target, and wait until it is applied."""
    stage.tell(f"[bold]{escape(_statement(stage))}[/bold]")
    with stage.doing(f"fill {SINK} while checkouts go on"):
        stage.patiently(
            lambda: signals.ask(
                stage.source(),
                [COLLECTION],
                target=SINK,
                max_rows_per_second=stage.plan.max_rows_per_second,
                signal_id=SIGNAL,
            )
        )
        wait_for_snapshot(stage, SIGNAL)
    with stage.doing(f"wait until {SINK} has applied it: then it is ready"):
        settings = stage.settings()
        cluster = Topics(settings.kafka)
        ends = stage.patiently(lambda: declare.sink_ends(settings, SINK, cluster))
        declare.wait_applied(settings, SINK, ends, stage.clock, _STUCK_AFTER_S)
        declare.mark_ready(settings, SINK)


def _statement(stage: Stage) -> str:
    data = json.dumps(
        {
            "data-collections": [COLLECTION],
            "type": "incremental",
            "target": SINK,
            "max-rows-per-second": stage.plan.max_rows_per_second,
        }
    )
    head = "insert into towpath.signal (id, type, data)"
    return f"{head} values ('{SIGNAL}', 'execute-snapshot', '{data}');"
