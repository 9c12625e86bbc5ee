"""
The real driver of sinks, which kills itself in a batch: ``POINT SINK [OPTION...]``.

Each point stands between two steps of what is done with a batch, or with an order. When
the sink comes there the process sends itself SIGKILL: nothing is flushed, closed or
told, and the engine has not noted the batch as done.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from towpath.sinks import __main__ as sinks
from towpath.sinks.apply import slice as slices
from towpath.sinks.engine.report import Report
from towpath.sinks.engine.supervisor import Supervisor
from towpath.sinks.engine.writer import SinkWriter
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic
from towpath.sinks.targets.cache.sink import CacheSink
from towpath.sinks.targets.search.sink import SearchSink
from towpath.sinks.targets.warehouse.sink import WarehouseSink

_TARGETS: Final = (CacheSink, SearchSink, WarehouseSink)


class Fault:
    """Kills when one sink comes to a point."""

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._here = threading.local()
        for name in ("_deliver", "_do_idle_work"):
            self._wrap(Supervisor, name, self._entered)

    def before(self, owner: Any, name: str) -> None:
        """Strike before a function."""
        self._wrap(owner, name, lambda *_: self._strike())

    def after(self, owner: Any, name: str) -> None:
        """Strike after a function."""
        original = getattr(owner, name)

        def struck(*args: Any, **kwargs: Any) -> Any:
            returned = original(*args, **kwargs)
            self._strike()
            return returned

        setattr(owner, name, struck)

    def after_targets(self, name: str) -> None:
        """Strike after a verb of a sink."""
        for target in _TARGETS:
            self.after(target, name)

    def _entered(self, supervisor: Supervisor, *_: Any) -> None:
        """Take note of the sink that this thread works for."""
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


POINTS: Final[dict[str, Callable[[Fault], None]]] = {
    "read": lambda f: f.before(slices, "decode"),
    "applied": lambda f: f.after_targets("apply"),
    "flushed": lambda f: f.after_targets("flush"),
    "set aside": lambda f: f.after(DeadLetterTopic, "put"),
    "written": lambda f: f.after(SinkWriter, "write"),
    "told": lambda f: f.after(Report, "done"),
    "carried out": lambda f: f.before(DeadLetterTopic, "resolve"),
}


def main() -> int:
    """Run the driver with the fault that the command line names."""
    point, sink, *options = sys.argv[1:]
    sys.argv[1:] = options
    POINTS[point](Fault(sink))
    return sinks.main()


if __name__ == "__main__":
    sys.exit(main())
