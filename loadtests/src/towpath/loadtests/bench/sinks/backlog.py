"""
The backlog: a table that the relay has published to Kafka while no sink ran.

The relay is stopped while sinks are measured, and runs again when they are compared:
the verifier waits until the relay has confirmed the end of the source's log. The three
sinks have default settings.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from towpath.loadtests.bench import publishers
from towpath.loadtests.bench.context import RELAY, Bench
from towpath.loadtests.bench.measurements import POLL_INTERVAL_S, until_idle
from towpath.loadtests.bench.publishers import failure
from towpath.loadtests.bench.sinks.result import (
    CACHE,
    SEARCH,
    WAREHOUSE,
    Targets,
)
from towpath.loadtests.bench.snapshot import systems
from towpath.loadtests.bench.snapshot.source import (
    TABLE,
    FillRun,
    ItemSource,
    Load,
    original,
)
from towpath.schemas.clock import Deadline

ROUTE: Final = "item"
LAKE_TABLE: Final = "bench.item"

_SINK: Final = """
[[sink]]
name = "{name}"
kind = "{name}"
url = "{url}"
{more}
[[sink.route]]
topic = "{topic}"
name = "{route}"
"""


def sink_blocks(topic: str, targets: Targets, folder: Path) -> str:
    """Return the blocks of the three sinks, each with the topic as its only route."""
    lake = f'folder = "{folder / "lake"}"\n'
    sinks = (
        (CACHE, targets.redis_url, "", ROUTE),
        (SEARCH, targets.opensearch_url, "", ROUTE),
        (WAREHOUSE, targets.catalog_dsn, lake, LAKE_TABLE),
    )
    return "".join(
        _SINK.format(name=name, url=url, more=more, topic=topic, route=route)
        for name, url, more, route in sinks
    )


NAME: Final = "bench_catch_up"

# A twentieth of a snapshot's rate, so that a run does not fail on a busy machine.
_SLOWEST_PER_S: Final = 2_000
_SERVING_WITHIN_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """A topic with every row of the table, and the relay that published it."""

    bench: Bench
    run: FillRun
    source: ItemSource
    config: Path

    @property
    def rows(self) -> int:
        """The number of rows in the table."""
        return self.bench.options.rows

    @property
    def ends(self) -> dict[int, int]:
        """Each partition's end offset."""
        return self.bench.broker.ends(self.run.topic)

    @property
    def state(self) -> Path:
        """The state folder of the sinks."""
        return self.bench.environment.folder

    @contextmanager
    def relay(self) -> Iterator[int]:
        """Run the relay during the block; yield its pid."""
        try:
            yield publishers.start_relay(self.bench, self.run, (TABLE,))
        finally:
            self.bench.environment.launcher.stop(self.run.name)


@contextmanager
def backlog_in_kafka(bench: Bench, targets: Targets) -> Iterator[Backlog]:
    """
    Fill a table, publish it by a snapshot, and keep both until the block ends.

    Raises:
        BenchError: The relay ended, refused the snapshot, or did not finish in time.
    """
    rows = bench.options.rows
    with original(bench.environment, NAME, bench.clock) as source:
        source.fill_items(rows, bench.screen.begin("writing the table", rows))
        run = FillRun(system=RELAY, name=NAME, source=source, load=Load.QUIET)
        publishers.prepare_source(bench, run, (TABLE,))
        config = bench.environment.folder / "sinks.toml"
        text = publishers.configuration(bench, run, (TABLE,))
        blocks = sink_blocks(run.topic, targets, bench.environment.folder)
        config.write_text(text + blocks, encoding="utf-8")
        backlog = Backlog(bench, run, source, config)
        with backlog.relay() as pid:
            systems.request_snapshot(run, source)
            _until_read(backlog, pid)
            until_idle(bench, run)
        yield backlog


def _until_read(backlog: Backlog, pid: int) -> None:
    bench, run, rows = backlog.bench, backlog.run, backlog.rows
    report = bench.screen.begin("reading the table into Kafka", rows)
    within_s = _SERVING_WITHIN_S + rows / _SLOWEST_PER_S
    deadline = Deadline(bench.clock, within_s)
    while not systems.has_completed(bench, run, backlog.source):
        publishers.check(bench, run, pid)
        if deadline.passed():
            reason = f"not done after {within_s:.0f} s"
            raise failure(bench.environment, run.name, reason)
        report(sum(backlog.ends.values()))
        bench.clock.wait(POLL_INTERVAL_S)
    report(sum(backlog.ends.values()))
