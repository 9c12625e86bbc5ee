"""
The root of ``towpath verify``: wires source, reader, repairs and report.

Exit codes: 0 equal, 1 differences, 3 a part unavailable or changes still on their way.
A difference is told even if another route could not be compared, and passes without end
outlast whatever does not answer for a while.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import UnavailableError
from towpath.settings import Route, Settings, Sink, load
from towpath.sinks.errors import UnknownSinkError
from towpath.sinks.kafka.client import KafkaRelations, Topics
from towpath.sinks.kafka.repairs import KafkaRepairs
from towpath.sinks.kinds import reader_of
from towpath.sinks.ports import SinkReader
from towpath.sinks.verify import report
from towpath.sinks.verify.errors import UnroutedTableError
from towpath.sinks.verify.forms import form_of
from towpath.sinks.verify.progress import CatchUpWaiter, SourceLog
from towpath.sinks.verify.repair import OrderedEraser
from towpath.sinks.verify.report import (
    ProgressBars,
    RouteReport,
    Verdict,
    Verification,
    sample_size,
)
from towpath.sinks.verify.route import verify_route
from towpath.sinks.verify.routes import Tables, chosen_routes
from towpath.sinks.verify.settle import RouteComparison
from towpath.sinks.verify.source import Source

_EXIT_CODES: Final = {
    Verdict.EQUAL: 0,
    Verdict.DIFFERENT: 1,
    Verdict.UNVERIFIED: 3,
}


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """
    How to verify.

    Attributes:
        as_json: Print one JSON document; of several passes, one on each line.
        names: The routes, or their tables; none: all.
        sample: How many rows of each, or a percentage; empty: all.
        repairs: Whether to ask for what differs, and to look again.
        every_s: Begin anew so often, until interrupted; none: verify once.
        erases: Whether a repair erases keys that no row read anew replaces.
    """

    as_json: bool = False
    names: tuple[str, ...] = ()
    sample: str = ""
    repairs: bool = False
    every_s: float | None = None
    erases: bool = False


def verify(config: Path, sink: str, options: VerifyOptions) -> int:
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
        UnavailableError: Source or broker do not answer. Of passes without end, and of
            what is told in JSON, neither is raised: it proves nothing, and says why.
    """
    settings = load(config, os.environ)  # noqa: TID251 - a root
    declared = settings.sink_named(sink)
    if declared is None:
        message = f"no sink is named {sink}"
        raise UnknownSinkError(message)
    judge = SinkVerifier(settings, declared, options)
    if options.every_s is not None:
        worst = verify_repeatedly(
            judge.once, judge.report_failure, options.every_s, SystemClock()
        )
        return _EXIT_CODES[worst]
    try:
        return _EXIT_CODES[judge.once()]
    except UnavailableError as failure:
        # Who reads documents gets one, whatever is the matter.
        if not options.as_json:
            raise
        return _EXIT_CODES[judge.report_failure(failure)]


def verify_repeatedly(
    once: Callable[[], Verdict],
    report_failure: Callable[[UnavailableError], Verdict],
    every_s: float,
    clock: Clock,
) -> Verdict:
    """
    Verify until interrupted; return the worst of all passes that came to an end.

    Args:
        once: Makes one pass.
        gave_up: Hears why a pass could not be made, and says what it comes to.
        every_s: From one beginning to the next.
        clock: Waits.
    """
    worst: Verdict | None = None
    with suppress(KeyboardInterrupt):
        while True:
            began_s = clock.monotonic_s()
            try:
                found = once()
            except UnavailableError as failure:
                found = report_failure(failure)
            worst = report.worse(worst or found, found)
            clock.wait(max(0.0, began_s + every_s - clock.monotonic_s()))
    return worst or Verdict.UNVERIFIED


class SinkVerifier:
    """Verifies one sink."""

    def __init__(self, settings: Settings, sink: Sink, options: VerifyOptions) -> None:
        self._settings = settings
        self._sink = sink
        self._options = options
        self._clock = SystemClock()
        self._routes = chosen_routes(settings, sink, options.names)
        self._sample = sample_size(options.sample)
        # All of them is no sample.
        self._sample_text = "" if self._sample is None else options.sample

    def once(self) -> Verdict:
        """Verify, print, and return what it comes to."""
        return self._report(
            Verification(self._sink.name, self._compare(), self._sample_text)
        )

    def report_failure(self, failure: UnavailableError) -> Verdict:
        """Print why a pass was not made."""
        found = Verification(
            self._sink.name, sample=self._sample_text, error=str(failure)
        )
        return self._report(found)

    def _report(self, found: Verification) -> Verdict:
        if self._options.as_json:
            is_line = self._options.every_s is not None
            sys.stdout.write(report.as_json(found, is_line=is_line) + "\n")
            sys.stdout.flush()
        else:
            report.show(Console(), found)
        return found.verdict

    def _compare(self) -> list[RouteReport]:
        with self._catch_up() as catch_up, self._tables() as tables:
            catch_up.wait()
            reader = reader_of(self._sink, self._settings)
            try:
                with ProgressBars(Console(stderr=True)) as bars:
                    return [
                        self._route_report(route, tables, reader, catch_up, bars)
                        for route in self._routes
                    ]
            finally:
                reader.close()

    def _comparison(
        self, route: Route, tables: Tables, reader: SinkReader, catch_up: CatchUpWaiter
    ) -> RouteComparison:
        table = tables.of(route)
        return RouteComparison(
            route=route.name,
            table=table,
            form=form_of(route, table, self._sink),
            source=tables.source,
            reader=reader,
            catch_up=catch_up,
            clock=self._clock,
        )

    def _route_report(
        self,
        route: Route,
        tables: Tables,
        reader: SinkReader,
        catch_up: CatchUpWaiter,
        bars: ProgressBars,
    ) -> RouteReport:
        """Compare a route; of one that cannot be, the report says why."""
        try:
            comparison = self._comparison(route, tables, reader, catch_up)
        except (UnavailableError, UnroutedTableError) as failure:
            return RouteReport(route.name, route.topic, error=str(failure))
        repairs, eraser = None, None
        if self._options.repairs:
            repairs = KafkaRepairs(self._settings, self._sink)
        if self._options.erases:
            eraser = OrderedEraser(self._settings, self._sink, self._clock)

        def tell(what: str, rows: int, estimate: int) -> None:
            bars.advance(f"{comparison.route}: {what}", rows, estimate)

        return verify_route(comparison, self._sample, repairs, tell, eraser)

    @contextmanager
    def _tables(self) -> Iterator[Tables]:
        settings = self._settings
        kafka, prefix = settings.kafka, settings.database.prefix
        with (
            Source(settings.database.dsn, settings.database.publication) as source,
            closing(KafkaRelations(kafka, prefix)) as relations,
        ):
            yield Tables(self._sink, settings, source, relations)

    @contextmanager
    def _catch_up(self) -> Iterator[CatchUpWaiter]:
        settings = self._settings
        log = SourceLog(settings.database.dsn, settings.database.slot)
        try:
            cluster = Topics(settings.kafka)
            yield CatchUpWaiter(settings, self._sink, log, cluster, self._clock)
        finally:
            log.close()


if __name__ == "__main__":
    named, *flags = sys.argv[2:]
    sys.exit(verify(Path(sys.argv[1]), named, VerifyOptions(as_json="--json" in flags)))
