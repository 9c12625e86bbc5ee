"""
A run: rounds of chaos, each checked, until the time is up or there is a finding.

A round ends in three steps. First, alterations and kills stop. Then, while sessions
still write, altered tables are read once more, because the topic has their old rows in
old shapes. Then writes stop, and the reader's rows must equal those of the tables.
Tables that are never altered are read at the end of the first round only: later, the
reader depends on the stream and the random snapshots alone.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import psycopg
from confluent_kafka import KafkaException

from towpath.loadtests.chaos import tables
from towpath.loadtests.chaos.actor import Actor
from towpath.loadtests.chaos.alterations import SWAP, TableAlterer
from towpath.loadtests.chaos.context import (
    ChaosEnvironment,
    ChaosOptions,
    ChaosResult,
    ChaosScreen,
    total,
)
from towpath.loadtests.chaos.fold import Fold, differences
from towpath.loadtests.chaos.observers import SourceObserver, TopicReader
from towpath.loadtests.chaos.relay import (
    SINK,
    TARGETED,
    ChaosRelay,
    Killer,
)
from towpath.loadtests.chaos.requests import (
    SignalAnswer,
    SnapshotRequester,
    answers,
    send,
)
from towpath.loadtests.chaos.tables import TABLES
from towpath.loadtests.chaos.writers import Writer
from towpath.loadtests.errors import ChaosError
from towpath.schemas.clock import Deadline

_POLL_S: Final = 0.2
_END_WITHIN_S: Final = 240.0
_READ_WITHIN_S: Final = 300.0
_SHOWN: Final = 5
_MINUTE_S: Final = 60.0


def run_chaos(
    environment: ChaosEnvironment, options: ChaosOptions, screen: ChaosScreen
) -> ChaosResult:
    """
    Run chaos in a database and check the results.

    Raises:
        ChaosError: The relay could not be started, or a server failed.
    """
    with _translated(), ExitStack() as stack:
        source = stack.enter_context(SourceObserver(environment))
        tables.make(source.session, options.rows)
        relay = ChaosRelay(environment, options.seed)
        relay.prepare()
        topics = stack.enter_context(TopicReader(environment.kafka, environment.clock))
        if options.late:
            stack.enter_context(source.late_commits())
        stack.callback(relay.stop)
        relay.start()
        return _ChaosRun(environment, options, screen, source, relay, topics).run()


@contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of psycopg and the Kafka client as ``ChaosError``."""
    try:
        yield
    except (psycopg.Error, KafkaException) as error:
        message = f"a server used by the run failed: {error}".strip()
        raise ChaosError(message) from error


class _ChaosRun:
    """One run; call ``run`` once."""

    def __init__(
        self,
        environment: ChaosEnvironment,
        options: ChaosOptions,
        screen: ChaosScreen,
        source: SourceObserver,
        relay: ChaosRelay,
        topics: TopicReader,
    ) -> None:
        self._environment = environment
        self._options = options
        self._screen = screen
        self._source = source
        self._relay = relay
        self._topics = topics
        self._result = ChaosResult(options, relay.settings)
        self._began_s = environment.clock.monotonic_s()
        self._folds = {table: Fold(table.collection) for table in TABLES}
        self._own = Fold(f"{TARGETED.collection} of {SINK}", is_ordered=False)
        self._actors: list[Actor] = []
        for table, fold in self._folds.items():
            own = (self._own,) if table is TARGETED else ()
            topics.follow(relay.topic(table.collection), fold, *own)
        topics.follow(f"{relay.topic(TARGETED.collection)}.backfill.{SINK}", self._own)

    def run(self) -> ChaosResult:
        """Run rounds until the time is up or there is a finding."""
        result = self._result
        while True:
            self._play_round(result.rounds)
            result.rounds += 1
            self._screen.log(result.line())
            is_over = self._elapsed_s() >= self._options.minutes * _MINUTE_S
            if is_over or result.findings:
                break
        result.warnings = self._relay.warnings()
        return result

    def _play_round(self, number: int) -> None:
        environment, options = self._environment, self._options
        seed = f"{options.seed}.{number}"
        writers = [
            Writer(environment, options, remainder, seed)
            for remainder in range(options.writers)
        ]
        requester = SnapshotRequester(environment, options, seed, f"r{number}")
        others: list[Actor] = [requester]
        alterers = (
            [TableAlterer(environment, options, seed, number)] if options.ddl else []
        )
        killers = (
            [Killer(environment, options, self._relay, seed)] if options.kill else []
        )
        others += [*alterers, *killers]
        with ExitStack() as stack:
            for actor in (*writers, *others):
                stack.enter_context(actor)
            self._actors = [*writers, *others]
            left_s = options.minutes * _MINUTE_S - self._elapsed_s()
            deadline = Deadline(
                environment.clock, min(options.round_s, max(left_s, 5.0))
            )
            self._watch(f"round {number + 1}", deadline.passed)
            for actor in others:
                actor.stop()
            self._request_last_snapshot(number)
            for writer in writers:
                writer.stop()
        self._await_delivery()
        self._count(writers, alterers, killers)
        self._compare()

    # The end of a round ----------------------------------------------------------

    def _request_last_snapshot(self, number: int) -> None:
        """Request the round's last snapshot, and wait until all have ended."""
        is_needed = self._options.ddl
        chosen = [t for t in TABLES if number == 0 or (t.may_be_altered and is_needed)]
        last = f"r{number}-last"
        if chosen:
            names = [table.collection for table in chosen]
            send(self._source.session, last, "execute-snapshot", data_collections=names)
        self._watch("last snapshots", lambda: not self._open(), _END_WITHIN_S)
        status = {a.signal_id: a.status for a in self._answers()}.get(last)
        if chosen and status != "completed":
            self._add_finding(
                f"the last snapshot, {last}, is {status or 'not answered'}"
            )

    def _await_delivery(self) -> None:
        """Wait until all writes and all requested snapshots are delivered."""
        lsn = self._source.mark()
        self._watch("delivery", lambda: self._source.is_confirmed(lsn), _END_WITHIN_S)
        if not self._source.is_confirmed(lsn):
            self._add_finding(
                f"stuck: the relay does not confirm the log\n{self._relay.log_tail()}"
            )
        self._watch(
            "open snapshots",
            lambda: not self._source.unfinished() and not self._open(),
            _END_WITHIN_S,
        )
        for line in self._source.unfinished():
            self._add_finding(f"stuck: {line}")
        for answer in self._open():
            self._add_finding(f"stuck: signal {answer.signal_id} is {answer.status!r}")
        self._topics.read_to_end(_READ_WITHIN_S)

    def _compare(self) -> None:
        """Compare the reader's rows with the tables, and collect earlier findings."""
        self._compare_signals()
        for table, fold in self._folds.items():
            rows = tables.read(self._source.session, table)
            for each in (fold, self._own) if table is TARGETED else (fold,):
                found = differences(each.rows(), rows)
                shown = "; ".join(found[:_SHOWN])
                if found:
                    self._add_finding(
                        f"{each.name}: {len(found)} of {len(rows)} rows differ: {shown}"
                    )
                if each.incomplete():
                    shown = ", ".join(map(repr, each.incomplete()[:_SHOWN]))
                    self._add_finding(f"{each.name}: never completed: {shown}")
                if each.wrong:
                    self._add_finding(f"{each.name}: {dict(each.wrong)}")
                    self._result.findings += each.findings[:_SHOWN]

    def _compare_signals(self) -> None:
        found = self._answers()
        allowed = {"completed"}
        if any(answer.type == "stop-snapshot" for answer in found):
            allowed.add("stopped")
        if self._result.altered[SWAP] or self._result.altered[f"{SWAP}, late"]:
            allowed.add("failed")
        self._result.signals.clear()
        for answer in found:
            self._result.signals[answer.status] += 1
            if answer.status == "completed":
                continue
            self._result.not_completed[answer.signal_id] = f"{answer.detail}"
            if not _may_end_uncompleted(answer, allowed):
                self._add_finding(
                    f"{answer.signal_id} {answer.status}: {answer.detail}"
                )
        self._result.findings += [f"ended unexpectedly: {e}" for e in self._relay.exits]
        self._relay.exits.clear()

    # During a round ---------------------------------------------------

    def _watch(
        self, step: str, is_over: Callable[[], bool], within_s: float | None = None
    ) -> None:
        """Poll topics, relay and actors until a condition holds or the time is up."""
        deadline = Deadline(self._environment.clock, within_s or float("inf"))
        while not is_over() and not deadline.passed():
            self._topics.poll(_POLL_S)
            self._relay.check()
            for actor in self._actors:
                actor.check()
            self._show(step)

    def _show(self, step: str) -> None:
        reads = sum(fold.reads for fold in self._folds.values()) + self._own.reads
        elapsed_s = self._elapsed_s()
        wrong = sum(fold.wrong.total() for fold in self._folds.values())
        self._screen.show(
            f"{step} · {elapsed_s:,.0f} s · {reads:,} READ rows,"
            f" {reads / max(elapsed_s, 1):,.0f}/s ·"
            f" {self._steps(Writer):,} transactions ·"
            f" {self._steps(TableAlterer)} alterations ·"
            f" {self._steps(Killer)} kills · {wrong} wrong"
        )

    def _steps(self, kind: type[Actor]) -> int:
        """Count the steps in this run of all actors of one kind."""
        before = {
            Writer: self._result.written,
            TableAlterer: self._result.altered,
            Killer: self._result.killed,
        }
        now = [actor.counts for actor in self._actors if isinstance(actor, kind)]
        return sum(map(total, (before[kind], *now)))

    def _count(
        self,
        writers: Iterable[Actor],
        alterers: Iterable[Actor],
        killers: Iterable[Actor],
    ) -> None:
        result = self._result
        for counts, actors in (
            (result.written, writers),
            (result.altered, alterers),
            (result.killed, killers),
        ):
            for actor in actors:
                counts.update(actor.counts)
        self._actors = []
        operations = [fold.counts for fold in self._folds.values()]
        result.reads = sum(c["r"] for c in operations)
        result.streamed = sum(c.total() for c in operations) - result.reads
        result.elapsed_s = self._elapsed_s()

    def _answers(self) -> list[SignalAnswer]:
        return answers(self._source.session)

    def _open(self) -> list[SignalAnswer]:
        return [answer for answer in self._answers() if not answer.has_ended]

    def _elapsed_s(self) -> float:
        return self._environment.clock.monotonic_s() - self._began_s

    def _add_finding(self, what: str) -> None:
        self._result.findings.append(what)
        self._screen.log(what)


def _may_end_uncompleted(answer: SignalAnswer, allowed: set[str]) -> bool:
    """Return whether a signal may end without completing, given its tables' states."""
    if answer.status == "rejected":
        return answer.type != "execute-snapshot"
    by_table = answer.detail.get("tables") or {}
    found = {table.get("state") for table in by_table.values()}
    return bool(found) and found <= allowed
