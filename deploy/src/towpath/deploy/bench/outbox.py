"""
The benchmark of the outbox library: commits per second with and without an event.

After each run the log is decoded through a slot: every committed item must have exactly
one event, and every event must have an item.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from rich.console import Group, RenderableType
from rich.text import Text

from towpath.deploy.bench import outbox_writers
from towpath.deploy.bench.outbox_writers import (
    NONE,
    START_LOCK,
    SYSTEMS,
    TABLES,
    WriterOptions,
    Written,
)
from towpath.loadtests.bench.context import Bench, RunRecords, in_turn, translated
from towpath.loadtests.bench.figures import Figures, Spread, ratio, spread
from towpath.loadtests.bench.result import (
    BenchResult,
    Column,
    bars,
    figures_table,
    rounded,
    rounded_spreads,
    unverified,
    verified,
)
from towpath.loadtests.bench.source import database
from towpath.loadtests.load.samples import at
from towpath.schemas.clock import Deadline

CASE: Final = "commits"
_RATE: Final = "commits_per_s"
_MS: Final = 1_000.0
_READY_WITHIN_S: Final = 60.0
_POLL_EVERY_S: Final = 0.05
_RATE_COLUMN: Final = Column(_RATE, "commits/s", "{:,.0f}")
_COLUMNS: Final = (
    _RATE_COLUMN,
    Column("p50_ms", "p50 ms", "{:.2f}"),
    Column("p99_ms", "p99 ms", "{:.2f}"),
    Column("log_bytes_per_commit", "log B/commit", "{:,.0f}"),
    Column("table_bytes_per_event", "table B/event", "{:,.0f}"),
)
# A row of the outbox, and a logical message, as test_decoding writes them.
_ROW: Final = re.compile(
    r"table towpath\.outbox: INSERT: .*?aggregate_id\[text\]:'([^']*)'"
)
_MESSAGE: Final = re.compile(r"message: transactional: 1 prefix: .*? content:(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxCase:
    """The figures of every round, by system."""

    rounds: Mapping[str, tuple[Figures, ...]]

    @property
    def name(self) -> str:
        """The case's name in the result."""
        return CASE

    @property
    def systems(self) -> dict[str, dict[str, Spread]]:
        """Minimum, median and maximum of every figure."""
        return {name: spread(found) for name, found in self.rounds.items()}

    def ratios(self) -> dict[str, float | None]:
        """Return each system's rate as a share of the rate without an event."""
        systems = self.systems
        without = systems.get(NONE)
        return {
            name: ratio(found, without, _RATE)
            for name, found in systems.items()
            if name != NONE
        }

    def as_json(self) -> dict[str, Any]:
        """Return the case as a JSON object."""
        return {
            "systems": {n: rounded_spreads(s) for n, s in self.systems.items()},
            "ratio_of": _RATE,
            "ratios_to_none": {n: rounded(one) for n, one in self.ratios().items()},
        }


def measure_outbox(bench: Bench, writers: int) -> BenchResult[OutboxCase]:
    """
    Measure every system, round by round.

    Args:
        bench: The stack and the options.
        writers: The number of writers that run in parallel.

    Raises:
        BenchError: A part exited, or did not respond.
    """
    records = RunRecords(bench)
    with translated():
        for number in range(bench.options.rounds):
            for system in in_turn(SYSTEMS, number):
                name = f"bench_outbox_{system}_{number}"
                with database(bench.environment, name):
                    dsn = bench.environment.dsn_of(name)
                    run = _OutboxRun(bench, name, dsn, system, writers)
                    figures, items, findings = run.measure()
                records.add(CASE, system, figures)
                records.add_findings(name, items, findings)
    case = OutboxCase(rounds=records.case_figures(CASE))
    return BenchResult(findings=records.findings, cases=(case,), **records.facts())


class _OutboxRun:
    """One system in one round."""

    def __init__(
        self, bench: Bench, name: str, dsn: str, system: str, writers: int
    ) -> None:
        self._bench, self._name, self._dsn = bench, name, dsn
        self._system, self._writers = system, writers

    def measure(self) -> tuple[Figures, int, tuple[str, ...]]:
        """Run the writers; return figures, the number of items, and findings."""
        options = self._bench.options
        self._bench.screen.begin(self._name, 0)
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for statement in TABLES:
                connection.execute(statement.encode())
            connection.execute(
                "select pg_create_logical_replication_slot(%s, 'test_decoding')",
                [self._name],
            )
            before = _log_end(connection)
            found = self._write(connection)
            items = [text for (text,) in connection.execute("select id from item")]
            figures = _figures(found)
            log_bytes = _log_end(connection) - before
            figures["log_bytes_per_commit"] = log_bytes / len(items)
            if self._system != NONE:
                size = "select pg_total_relation_size('towpath.outbox')"
                figures["table_bytes_per_event"] = _one(connection, size) / len(items)
            events = list(self._events(connection))
            expected = [] if self._system == NONE else items
        rate = f"{figures[_RATE]:,.0f} commits/s for {options.duration_s:.0f} s"
        self._bench.screen.log(f"{self._name}: {rate}")
        return figures, len(items), _findings(expected, events)

    def _write(self, connection: psycopg.Connection[Any]) -> list[Written]:
        """Start all writers at the same time; return their measurements."""
        options = self._bench.options
        connection.execute("select pg_advisory_lock(%s)", [START_LOCK])
        each = [
            WriterOptions(
                self._dsn, self._system, n, options.warm_up_s, options.duration_s
            )
            for n in range(self._writers)
        ]
        with outbox_writers.start(each) as writers:
            try:
                self._wait_ready(connection)
            finally:
                # Unlock even after a failure: writers that wait for the lock do not
                # exit.
                connection.execute("select pg_advisory_unlock(%s)", [START_LOCK])
            return writers.results()

    def _wait_ready(self, connection: psycopg.Connection[Any]) -> None:
        deadline = Deadline(self._bench.clock, _READY_WITHIN_S)
        waiting = "select count(*) from pg_locks where locktype = 'advisory'"
        while _one(connection, f"{waiting} and not granted") < self._writers:
            if deadline.passed():
                message = "the writers did not begin"
                raise TimeoutError(message)
            self._bench.clock.wait(_POLL_EVERY_S)

    def _events(self, connection: psycopg.Connection[Any]) -> Iterator[str]:
        """Yield the item of each event in the log."""
        statement = "select data from pg_logical_slot_peek_changes(%s, null, null)"
        for (text,) in connection.execute(statement, [self._name]):
            if row := _ROW.match(text):
                yield row[1]
            elif message := _MESSAGE.match(text):
                yield str(json.loads(message[1])["aggregate_id"])


def _log_end(connection: psycopg.Connection[Any]) -> int:
    return _one(connection, "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")


def _one(connection: psycopg.Connection[Any], statement: str) -> int:
    row = connection.execute(statement.encode()).fetchone()
    return int(row[0]) if row else 0


def _figures(found: list[Written]) -> Figures:
    latencies_ms = sorted(s * _MS for each in found for s in each.latencies_s)
    return {
        _RATE: sum(len(each.latencies_s) / each.elapsed_s for each in found),
        "p50_ms": at(latencies_ms, 0.50),
        "p99_ms": at(latencies_ms, 0.99),
    }


def _findings(items: list[str], events: list[str]) -> tuple[str, ...]:
    """Count items without an event, items with several, and events without an item."""
    wanted, counts = set(items), Counter(events)
    wrong = {
        "lost": len(wanted - counts.keys()),
        "duplicates": sum(count > 1 for count in counts.values()),
        "unknown": len(counts.keys() - wanted),
    }
    return tuple(f"{count:,} {name}" for name, count in wrong.items() if count)


def draw(result: BenchResult[OutboxCase]) -> RenderableType:
    """Draw the result."""
    if not result.verified:
        return unverified(result.findings)
    blocks: list[RenderableType] = []
    for case in result.cases:
        systems = case.systems
        blocks += [
            figures_table(CASE, systems, _COLUMNS),
            bars(systems, _RATE_COLUMN),
            *(
                Text(f"{name} / none, commits/s: {found:.2f}", style="bold")
                for name, found in case.ratios().items()
                if found is not None
            ),
        ]
    claim = "every item has its event in the log once, in every run"
    return Group(*blocks, Text(), *verified(claim, result.machine))
