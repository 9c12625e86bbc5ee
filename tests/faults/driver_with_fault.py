"""
The real sink driver, which kills itself during a batch: ``POINT SINK [OPTION...]``.

Each point lies between two steps of handling a batch or a dead letter request. When the
sink reaches it, the process sends itself SIGKILL: nothing is flushed, closed or
reported, and Spark has not committed the batch to its checkpoint.

At the points ``filling`` and ``merging``, it instead kills its executors on this
machine once, while they write to a warehouse, and continues. A plus sign joins points.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import psutil
from pyiceberg.catalog.sql import SqlCatalog
from pyspark import SparkContext

from towpath.sinks import __main__ as sinks
from towpath.sinks.apply import slice as slices
from towpath.sinks.engine.executors import _FrameRows
from towpath.sinks.engine.report import Report
from towpath.sinks.engine.session import SparkSql
from towpath.sinks.engine.supervisor import Supervisor
from towpath.sinks.engine.writer import SinkWriter
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic
from towpath.sinks.targets.cache.sink import CacheSink
from towpath.sinks.targets.search.sink import SearchSink
from towpath.sinks.targets.warehouse.sink import WarehouseSink

# Makes the context in which a step runs.
AroundStep: TypeAlias = Callable[[], contextlib.AbstractContextManager[None]]

_TARGETS: Final = (CacheSink, SearchSink, WarehouseSink)


class Fault:
    """Kills the process when one sink reaches a point."""

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._here = threading.local()
        for name in ("_deliver", "_do_idle_work"):
            self._wrap(Supervisor, name, self._entered)
        self._note_encoded()

    def before(self, owner: Any, name: str) -> None:
        """Kill the process before a function is called."""
        self._wrap(owner, name, lambda *_: self._strike())

    def after(self, owner: Any, name: str) -> None:
        """Kill the process after a function has returned."""
        original = getattr(owner, name)

        def struck(*args: Any, **kwargs: Any) -> Any:
            returned = original(*args, **kwargs)
            self._strike()
            return returned

        setattr(owner, name, struck)

    def after_targets(self, name: str) -> None:
        """Kill the process after a method of any kind of sink has returned."""
        for target in _TARGETS:
            self.after(target, name)

    def around(self, owner: Any, name: str, around: AroundStep, part: str = "") -> None:
        """
        Run a step inside a context if it writes a batch that tasks have encoded.

        Args:
            owner: The class with the function.
            name: The name of the function.
            around: Makes the context.
            part: A string that the function's first argument must contain, if any.
        """
        step = getattr(owner, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            is_match = not part or part in args[1]
            if not (is_match and getattr(self._here, "is_encoded", False)):
                return step(*args, **kwargs)
            with around():
                return step(*args, **kwargs)

        setattr(owner, name, run)

    @contextlib.contextmanager
    def struck_before(self) -> Iterator[None]:
        """Kill the process before the block."""
        self._strike()
        yield

    @contextlib.contextmanager
    def struck_after(self) -> Iterator[None]:
        """Kill the process after the block."""
        yield
        self._strike()

    def _note_encoded(self) -> None:
        """Mark each thread while it writes a batch that tasks have encoded."""
        write = WarehouseSink.write_encoded

        def write_encoded(*args: Any) -> None:
            self._here.is_encoded = True
            try:
                write(*args)
            finally:
                self._here.is_encoded = False

        setattr(WarehouseSink, write.__name__, write_encoded)

    def _entered(self, supervisor: Supervisor, *_: Any) -> None:
        """Record the sink that this thread is working for."""
        self._here.sink = supervisor._name

    def _strike(self) -> None:
        if getattr(self._here, "sink", None) == self._sink:
            os.kill(os.getpid(), signal.SIGKILL)

    @staticmethod
    def _wrap(owner: Any, name: str, first: Callable[..., None]) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            first(*args)
            return original(*args, **kwargs)

        setattr(owner, name, wrapped)


_POLL_S: Final = 0.002


class ExecutorKiller:
    """Kills the executors of this process once, while they run a task."""

    def __init__(self, step: str) -> None:
        """Set the name of the step, which appears in the output."""
        self._step = step
        self._has_killed = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Kill the executors during the block, as soon as a task is running."""
        is_over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(is_over,))
        watch.start()
        try:
            yield
        finally:
            is_over.set()
            watch.join()

    def _watch(self, is_over: threading.Event) -> None:
        context = SparkContext.getOrCreate()
        tracker = context.statusTracker()
        while not (self._has_killed or is_over.wait(_POLL_S)):
            stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
            if any(stage is not None and stage.numActiveTasks for stage in stages):
                self._kill(context.applicationId)

    def _kill(self, application: str) -> None:
        for process in psutil.process_iter(["cmdline"]):
            args = process.info["cmdline"] or ()
            if application in args and any(_EXECUTOR in arg for arg in args):
                process.kill()
                self._has_killed = True
        if self._has_killed:
            # The test reads this line.
            print(f"executors killed while {self._step}", flush=True)  # noqa: T201


_EXECUTOR: Final = "CoarseGrainedExecutorBackend"

POINTS: Final[dict[str, Callable[[Fault], None]]] = {
    "read": lambda f: f.before(slices, "decode"),
    "applied": lambda f: f.after_targets("apply"),
    "flushed": lambda f: f.after_targets("flush"),
    "dead letter stored": lambda f: f.after(DeadLetterTopic, "put"),
    "written": lambda f: f.after(SinkWriter, "write"),
    "reported": lambda f: f.after(Report, "done"),
    "filling": lambda f: f.around(
        _FrameRows, "collect", ExecutorKiller("filling").watching
    ),
    "filled": lambda f: f.around(SqlCatalog, "commit_table", f.struck_before),
    "merging": lambda f: f.around(
        SparkSql, "sql", ExecutorKiller("merging").watching, "MERGE"
    ),
    "merged": lambda f: f.around(SparkSql, "fast_forward", f.struck_before),
    "committed": lambda f: f.around(SparkSql, "fast_forward", f.struck_after),
    "carried out": lambda f: f.before(DeadLetterTopic, "resolve"),
}


def main() -> int:
    """Run the driver with the fault that the command line names."""
    point, sink, *options = sys.argv[1:]
    sys.argv[1:] = options
    fault = Fault(sink)
    for name in point.split("+"):
        POINTS[name](fault)
    return sinks.main()


if __name__ == "__main__":
    sys.exit(main())
