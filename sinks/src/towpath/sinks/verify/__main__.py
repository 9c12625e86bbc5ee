"""
The root of ``towpath verify``: wires source, reader, repairs and report.

Exit codes: 0 equal, 1 differences, 3 a part unavailable or changes still on their way.
A difference is told even if another route could not be compared.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from towpath.schemas.clock import Clock, SystemClock
from towpath.settings import Route, Settings, Sink, load
from towpath.sinks.errors import UnknownSinkError
from towpath.sinks.kafka import Topics
from towpath.sinks.kinds import reader_of
from towpath.sinks.ports import SinkReader
from towpath.sinks.repairs import KafkaRepairs
from towpath.sinks.verify import report
from towpath.sinks.verify.bars import Bars
from towpath.sinks.verify.forms import form_of
from towpath.sinks.verify.passing import Passing
from towpath.sinks.verify.report import RouteReport, Verdict
from towpath.sinks.verify.route import verify_route
from towpath.sinks.verify.routes import chosen_routes, source_table
from towpath.sinks.verify.sample import sample_size
from towpath.sinks.verify.settle import Bench
from towpath.sinks.verify.source import Source
from towpath.sinks.verify.source_log import SourceLog

_EXIT_CODES: Final = {
    Verdict.EQUAL: 0,
    Verdict.DIFFERENT: 1,
    Verdict.UNVERIFIED: 3,
}


@dataclass(frozen=True, slots=True)
class Wishes:
    """
    How to verify.

    Attributes:
        as_json: Print one JSON document; of several passes, one on each line.
        names: The routes, or their tables; none: all.
        sample: How many rows of each, or a percentage; empty: all.
        repairs: Whether to ask for what differs, and to look again.
        every_s: Begin anew so often, until interrupted; none: verify once.
    """

    as_json: bool = False
    names: tuple[str, ...] = ()
    sample: str = ""
    repairs: bool = False
    every_s: float | None = None


def verify(config: Path, sink: str, wishes: Wishes) -> int:
    """
    Compare a sink with the source, while both may change, and print the result.

    Args:
        config: The configuration file.
        sink: The sink's name.
        wishes: How to verify.

    Raises:
        ConfigurationError: The configuration has mistakes.
        UnknownSinkError: No sink of that name is declared.
        UsageError: The wishes name a route that is not there, or no sample.
        NotAtRestError: What was committed before does not reach the sink.
        UnavailableError: Source or broker do not answer.
    """
    settings = load(config, os.environ)  # noqa: TID251 - a root
    declared = settings.sink_named(sink)
    if declared is None:
        message = f"no sink is named {sink}"
        raise UnknownSinkError(message)
    judge = Judge(settings, declared, wishes)
    if wishes.every_s is None:
        return _EXIT_CODES[judge.once()]
    return _EXIT_CODES[on_and_on(judge.once, wishes.every_s, SystemClock())]


def on_and_on(once: Callable[[], Verdict], every_s: float, clock: Clock) -> Verdict:
    """Verify until interrupted; return the worst of all passes."""
    worst = Verdict.EQUAL
    with suppress(KeyboardInterrupt):
        while True:
            began_s = clock.monotonic_s()
            worst = report.worse(worst, once())
            clock.wait(max(0.0, began_s + every_s - clock.monotonic_s()))
    return worst


class Judge:
    """Verifies one sink."""

    def __init__(self, settings: Settings, sink: Sink, wishes: Wishes) -> None:
        self._settings = settings
        self._sink = sink
        self._wishes = wishes
        self._clock = SystemClock()
        self._routes = chosen_routes(settings, sink, wishes.names)
        self._sample = sample_size(wishes.sample)

    def once(self) -> Verdict:
        """Verify, print, and return what it comes to."""
        routes = self._compare()
        name = self._sink.name
        if self._wishes.as_json:
            is_line = self._wishes.every_s is not None
            sys.stdout.write(report.as_json(name, routes, is_line=is_line) + "\n")
            sys.stdout.flush()
        else:
            report.show(Console(), name, routes)
        return report.verdict_of(routes)

    def _compare(self) -> list[RouteReport]:
        with self._passing() as passing, Source(self._settings.database.dsn) as source:
            passing.wait()
            reader = reader_of(self._sink, self._settings)
            try:
                benches = [
                    self._bench(route, source, reader, passing)
                    for route in self._routes
                ]
                with Bars(Console(stderr=True)) as bars:
                    return [self._judged(bench, bars) for bench in benches]
            finally:
                reader.close()

    def _bench(
        self, route: Route, source: Source, reader: SinkReader, passing: Passing
    ) -> Bench:
        table = source_table(route, self._sink, self._settings, source)
        return Bench(
            route=route.name,
            table=table,
            form=form_of(route, table),
            source=source,
            reader=reader,
            waits=passing,
            clock=self._clock,
        )

    def _judged(self, bench: Bench, bars: Bars) -> RouteReport:
        repairs = None
        if self._wishes.repairs:
            repairs = KafkaRepairs(self._settings, self._sink)

        def tell(what: str, rows: int, estimate: int) -> None:
            bars.advance(f"{bench.route}: {what}", rows, estimate)

        return verify_route(bench, self._sample, repairs, tell)

    @contextmanager
    def _passing(self) -> Iterator[Passing]:
        settings = self._settings
        log = SourceLog(settings.database.dsn)
        try:
            cluster = Topics(settings.kafka.bootstrap_servers)
            yield Passing(settings, self._sink, log, cluster, self._clock)
        finally:
            log.close()


if __name__ == "__main__":
    named, *flags = sys.argv[2:]
    sys.exit(verify(Path(sys.argv[1]), named, Wishes(as_json="--json" in flags)))
