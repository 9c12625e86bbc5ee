"""
The wiring of ``towpath verify``: source, reader, repairs and report.

Exit codes: 0 equal, 1 differences, 3 a system is unavailable or changes are still in
flight. A difference is reported even if another route could not be compared, and
repeated verification continues after a failure.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from rich.console import Console

from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import TowpathError, UsageError
from towpath.settings import Route, Settings, Sink, load
from towpath.sinks.errors import UnknownSinkError
from towpath.sinks.kafka.client import KafkaRelations, Topics
from towpath.sinks.kafka.progress_topic import ProgressReader, ProgressTopic
from towpath.sinks.kafka.repairs import KafkaRepairs
from towpath.sinks.kinds import kind_of, reader_of
from towpath.sinks.ports import SinkReader
from towpath.sinks.state.published import PublishedVerification
from towpath.sinks.verify import report
from towpath.sinks.verify.forms import form_of
from towpath.sinks.verify.progress import CatchUpWaiter, SourceLog
from towpath.sinks.verify.repair import RequestedEraser
from towpath.sinks.verify.report import (
    ProgressBars,
    RouteReport,
    Verdict,
    Verification,
    sample_size,
)
from towpath.sinks.verify.route import ProgressCallback, verify_route
from towpath.sinks.verify.routes import Tables, chosen_routes
from towpath.sinks.verify.settle import RouteComparison
from towpath.sinks.verify.source import Source

_LONGEST_PERIOD_S: Final = 7 * 24 * 60 * 60

_EXIT_CODES: Final = {
    Verdict.EQUAL: 0,
    Verdict.DIFFERENT: 1,
    Verdict.UNVERIFIED: 3,
}

_log = structlog.get_logger("towpath.sinks.verify")


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """
    The options of a verification.

    Attributes:
        as_json: Whether to print the result as JSON; if repeated, one line per result.
        names: The routes, or their tables; empty for all.
        sample: The number of rows per route, or a percentage; empty for all rows.
        repairs: Whether to refetch differing rows and compare them again.
        every_s: The period of repeated verification; ``None`` verifies once.
        erases: Whether a repair erases keys that a refetch cannot correct.
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
        options: The options.

    Raises:
        ConfigurationError: The configuration has mistakes.
        UnknownSinkError: No sink of that name is declared.
        UsageError: The options name an unknown route or an invalid sample.
        NotAtRestError: Earlier commits do not reach the sink.
        TowpathError: No route can be compared, for example because the source does not
            answer. With JSON output or repeated verification the result is
            "unverified" instead.
    """
    verifier = verifier_of(load(config, os.environ), sink, options)  # noqa: TID251 - a root
    if options.every_s is not None:
        worst = verify_repeatedly(
            verifier.once, verifier.report_failure, options.every_s, SystemClock()
        )
        return _EXIT_CODES[worst]
    try:
        return _EXIT_CODES[verifier.once()]
    except TowpathError as failure:
        # A reader of JSON always gets a document, unless the command is wrong.
        if not options.as_json or isinstance(failure, UsageError):
            raise
        return _EXIT_CODES[verifier.report_failure(failure)]


def chosen_sinks(
    settings: Settings, sinks: Sequence[str], options: VerifyOptions
) -> tuple[str, ...]:
    """
    Return the names of the sinks to verify: the named ones, else all readable ones.

    Raises:
        UnknownSinkError: A named sink is not declared.
        UsageError: The options are incompatible, the period is invalid, a named sink
            cannot be read back, or no sink can.
    """
    if options.erases and not options.repairs:
        message = "--erase needs --repair"
        raise UsageError(message)
    # Written so that ``nan``, for which every comparison is false, is refused, too.
    if options.every_s is not None and not 0 < options.every_s <= _LONGEST_PERIOD_S:
        message = (
            f"--every must be above 0 and at most {_LONGEST_PERIOD_S} seconds (a "
            f"week), not {options.every_s:g}"
        )
        raise UsageError(message)
    readable = (one.name for one in settings.sink if kind_of(one).read is not None)
    # Checked before the first comparison, which may take hours.
    for name in sinks:
        if kind_of(_declared(settings, name)).read is None:
            message = f"the sink {name} cannot be read back: nothing to compare"
            raise UsageError(message)
    names = tuple(dict.fromkeys(sinks or readable))
    if not names:
        message = "the configuration has no sink that can be read back"
        raise UsageError(message)
    if len(names) != 1 and (options.names or options.every_s is not None):
        message = "--route and --continuous are for one sink: name it"
        raise UsageError(message)
    return names


def verifier_of(
    settings: Settings, sink: str, options: VerifyOptions
) -> "SinkVerifier":
    """
    Return the verifier of a sink.

    Raises:
        UnknownSinkError: No sink of that name is declared.
        UsageError: The options name an unknown route or an invalid sample.
    """
    return SinkVerifier(settings, _declared(settings, sink), options)


def _declared(settings: Settings, name: str) -> Sink:
    sink = settings.sink_named(name)
    if sink is None:
        message = f"no sink is named {name}"
        raise UnknownSinkError(message)
    return sink


def verify_repeatedly(
    once: Callable[[], Verdict],
    report_failure: Callable[[TowpathError], Verdict],
    every_s: float,
    clock: Clock,
) -> Verdict:
    """
    Verify until interrupted; return the worst verdict.

    Args:
        once: Verifies once.
        report_failure: Reports why a verification failed, and returns its verdict.
        every_s: The time from one start to the next.
        clock: The clock.

    Raises:
        UsageError: The configuration has mistakes.
    """
    worst: Verdict | None = None
    with suppress(KeyboardInterrupt):
        while True:
            began_s = clock.monotonic_s()
            try:
                found = once()
            except UsageError:
                raise
            except TowpathError as failure:
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
        self._repairs = KafkaRepairs(settings, sink) if options.repairs else None
        self._eraser = (
            RequestedEraser(settings, sink, self._clock) if options.erases else None
        )
        self._routes = chosen_routes(settings, sink, options.names)
        self._sample = sample_size(options.sample)
        # A sample of all rows is a full comparison.
        self._sample_text = "" if self._sample is None else options.sample

    def once(self) -> Verdict:
        """Verify, print, and return the verdict."""
        with ProgressBars(Console(stderr=True)) as bars:
            found = self.compare(bars.advance)
        return self._report(found)

    def compare(self, show_progress: ProgressCallback) -> Verification:
        """
        Compare the sink with the source, and publish the result for the metrics.

        Raises:
            NotAtRestError: Earlier commits do not reach the sink.
            TowpathError: No route can be compared.
        """
        with self._catch_up() as catch_up, self._tables() as tables:
            catch_up.wait()
            reader = reader_of(self._sink, self._settings)
            try:
                routes = [
                    self._route_report(route, tables, reader, catch_up, show_progress)
                    for route in self._routes
                ]
            finally:
                reader.close()
        found = Verification(self._sink.name, routes, self._sample_text)
        is_partial = bool(self._options.names or self._sample_text)
        if found.counts(is_partial=is_partial):
            self._publish(found)
        return found

    def report_failure(self, failure: TowpathError) -> Verdict:
        """Print why a verification failed, and return the verdict."""
        found = Verification(
            self._sink.name,
            sample=self._sample_text,
            error=str(failure),
            remedy=failure.remedy,
        )
        return self._report(found)

    def _publish(self, found: Verification) -> None:
        """Publish a result; log a failure instead of raising it."""
        result = PublishedVerification(
            sink=found.sink,
            at=self._clock.now().isoformat(),
            differences=found.differences,
            rows=found.rows,
        )
        topic = ProgressTopic(self._settings, self._clock)
        try:
            topic.publish_verification(result)
        except TowpathError as error:
            _log.warning(
                "sink verification not published: metrics keep the previous result",
                sink=found.sink,
                error=str(error),
                remedy=error.remedy,
            )
        finally:
            topic.close()

    def _report(self, found: Verification) -> Verdict:
        if self._options.as_json:
            is_line = self._options.every_s is not None
            sys.stdout.write(report.as_json(found, is_line=is_line) + "\n")
            sys.stdout.flush()
        else:
            report.show(Console(), found)
        return found.verdict

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
        show_progress: ProgressCallback,
    ) -> RouteReport:
        """Compare a route; report a failure instead of raising it."""
        try:
            comparison = self._comparison(route, tables, reader, catch_up)
        except TowpathError as failure:
            return RouteReport(
                *(route.name, route.topic),
                error=str(failure),
                remedy=failure.remedy,
            )

        def show_step(step: str, rows: int, estimate: int) -> None:
            show_progress(f"{comparison.route}: {step}", rows, estimate)

        return verify_route(
            comparison, self._sample, self._repairs, show_step, self._eraser
        )

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
        progress = ProgressReader(settings, self._clock)
        try:
            cluster = Topics(settings.kafka)
            yield CatchUpWaiter(
                *(settings, self._sink, progress),
                log=log,
                cluster=cluster,
                clock=self._clock,
            )
        finally:
            progress.close()
            log.close()


if __name__ == "__main__":
    named, *flags = sys.argv[2:]
    sys.exit(verify(Path(sys.argv[1]), named, VerifyOptions(as_json="--json" in flags)))
