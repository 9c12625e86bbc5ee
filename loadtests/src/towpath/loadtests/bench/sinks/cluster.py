"""
The case ``cluster``: the driver alone, and executors, apply the same backlog.

Each sink is measured with the driver alone, with one worker and with two workers (one
core each); the sink ``null`` writes nothing and shows the cost of the path without a
target. Every run has its own sink with the same settings, so that each begins with an
empty target. Rates and CPU times are those of the second half of the backlog: during
the first half, the JVM compiles the engine's code, which takes as long as applying half
a million rows.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from towpath.loadtests.bench import publishers
from towpath.loadtests.bench.context import Bench, RunRecords, translated
from towpath.loadtests.bench.figures import Figures
from towpath.loadtests.bench.sinks import backlog as backlogs
from towpath.loadtests.bench.sinks.backlog import Backlog
from towpath.loadtests.bench.sinks.catch_up import SinkCatchUp, compare_sink
from towpath.loadtests.bench.sinks.result import (
    CACHE,
    NULL,
    SEARCH,
    WAREHOUSE,
    Cluster,
    Targets,
)
from towpath.loadtests.bench.snapshot.source import TABLE

# Enough batches to show a steady rate, each large enough for both workers.
_BATCHES: Final = 16

_SPARK: Final = """
[spark]
master = "{master}"
[spark.settings]
"spark.executor.memory" = "1g"
"spark.executor.cores" = "1"
"""
_SINK: Final = """
[[sink]]
name = "{name}"
kind = "{kind}"
url = "{url}"
max_batch_records = {batch_records}
spread_from_records = 2000
{more}
[[sink.route]]
topic = "{topic}"
name = "{route}"
"""
# A warehouse's routes are tables; each run has its own.
_LAKE_NAMESPACE: Final = "bench"


class RunningCluster(NamedTuple):
    """A cluster of the engine: its address, and the processes of its workers."""

    master: str
    workers: Sequence[int]


# Starts a cluster with a given number of workers; it stops after the block.
StartCluster = Callable[[int], AbstractContextManager[RunningCluster]]


@dataclass(frozen=True, slots=True)
class _System:
    """The processes that write: the driver alone, or the executors of the workers."""

    name: str
    workers: int


SYSTEMS: Final = (
    _System("driver", 0),
    _System("one_worker", 1),
    _System("two_workers", 2),
)


def measure_cluster(
    bench: Bench, targets: Targets, sinks: Sequence[str], start: StartCluster
) -> tuple[Cluster, tuple[str, ...]]:
    """
    Measure each sink with each system; return the figures and the findings.

    Raises:
        BenchError: A process ended, or did not finish in time.
    """
    records = RunRecords(bench)
    figures: dict[str, Figures] = {}
    with translated(), backlogs.backlog_in_kafka(bench, targets) as backlog:
        for system in SYSTEMS:
            for sink in (*sinks, NULL):
                name = f"{sink}_{system.name}"
                figures[name] = _measure(backlog, targets, sink, system, start)
                findings = _findings(backlog, sink, name)
                records.add_findings(f"cluster {name}", bench.options.rows, findings)
    return Cluster(rows=bench.options.rows, systems=figures), records.findings


def _measure(
    backlog: Backlog,
    targets: Targets,
    sink: str,
    system: _System,
    start: StartCluster,
) -> Figures:
    name = f"{sink}_{system.name}"
    pid = targets.pids.get(sink)
    pids = {} if pid is None else {name: pid}
    if not system.workers:
        own = replace(backlog, config=_config(backlog, targets, sink, name, ""))
        return SinkCatchUp(own, name, pids, ()).measure()
    with start(system.workers) as cluster:
        spark = _SPARK.format(master=cluster.master)
        own = replace(backlog, config=_config(backlog, targets, sink, name, spark))
        return SinkCatchUp(own, name, pids, cluster.workers).measure()


def _config(
    backlog: Backlog, targets: Targets, sink: str, name: str, spark: str
) -> Path:
    """Write the configuration of a run; return its path."""
    bench = backlog.bench
    folder = bench.environment.folder
    is_lake = sink == WAREHOUSE
    urls = {
        CACHE: targets.redis_url,
        SEARCH: targets.opensearch_url,
        WAREHOUSE: targets.catalog_dsn,
    }
    block = _SINK.format(
        name=name,
        kind=sink,
        url=urls.get(sink, "null://"),
        topic=backlog.run.topic,
        batch_records=max(2_000, backlog.rows // _BATCHES),
        more=f'folder = "{folder / "lake"}"' if is_lake else "",
        route=f"{_LAKE_NAMESPACE}.{name}" if is_lake else name,
    )
    text = publishers.configuration(bench, backlog.run, (TABLE,))
    path = folder / f"{name}.toml"
    path.write_text(text + spark + block, encoding="utf-8")
    return path


def _findings(backlog: Backlog, sink: str, name: str) -> tuple[str, ...]:
    """Compare a sink with the source; for ``null``, compare the number of rows."""
    if sink != NULL:
        config = backlog.bench.environment.folder / f"{name}.toml"
        with backlog.relay():
            return compare_sink(replace(backlog, config=config), name)
    path = backlog.state / "sinks" / name / "progress.json"
    progress: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    counted = progress["rows"]
    if counted == backlog.rows:
        return ()
    return (f"{counted:,} changes counted instead of {backlog.rows:,}",)
