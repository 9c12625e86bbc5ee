"""The case ``catch_up``: each sink alone, then compared, then what stands beside it."""

from collections.abc import Sequence

from towpath.loadtests.bench.book import Book, translated
from towpath.loadtests.bench.figures import Figures
from towpath.loadtests.bench.plan import Bench
from towpath.loadtests.bench.sinks import backlog as backlogs
from towpath.loadtests.bench.sinks import bulk, comparing, merging, plain
from towpath.loadtests.bench.sinks.backlog import Backlog
from towpath.loadtests.bench.sinks.catching import Catching
from towpath.loadtests.bench.sinks.plan import CACHE, SEARCH, SINKS, Targets
from towpath.loadtests.bench.sinks.result import BESIDE, CatchUp


def measure(
    bench: Bench, targets: Targets, sinks: Sequence[str] = SINKS
) -> tuple[CatchUp, tuple[str, ...]]:
    """
    Have each sink read the backlog alone; return the figures and what differs.

    Raises:
        BenchError: A part was not there any more, or not done in time.
    """
    book = Book(bench)
    figures: dict[str, Figures] = {}
    with translated(), backlogs.made(bench, targets) as backlog:
        for sink in sinks:
            figures[sink] = Catching(backlog, sink, targets.pids).measure()
            with backlog.relay():
                findings = comparing.findings(backlog, sink)
            book.judge(f"catch_up {sink}", bench.options.rows, findings)
            if not findings:
                figures[BESIDE[sink]] = _beside(backlog, targets, sink)
    return CatchUp(rows=bench.options.rows, systems=figures), book.findings


def _beside(backlog: Backlog, targets: Targets, sink: str) -> Figures:
    bench, source = backlog.bench, backlog.source
    if sink == CACHE:
        return plain.measure(bench, source, targets.redis_url)
    if sink == SEARCH:
        return bulk.measure(bench, source, targets.opensearch_url)
    return merging.measure(bench, backlog, targets)
