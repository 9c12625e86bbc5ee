"""The context of a benchmark: cases, systems, options, screen, records of runs."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import psycopg
from confluent_kafka import KafkaException
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from towpath.loadtests.bench.broker import Broker
from towpath.loadtests.bench.environment import BenchEnvironment
from towpath.loadtests.bench.figures import Figures
from towpath.loadtests.bench.machine import machine
from towpath.loadtests.bench.source import BenchSource
from towpath.loadtests.errors import BenchError
from towpath.schemas.clock import Clock

RELAY: Final = "relay"
LIMIT: Final = "limit"
RECVLOGICAL: Final = "pg_recvlogical"
DEBEZIUM_STOCK: Final = "debezium_stock"
DEBEZIUM_TUNED: Final = "debezium_tuned"

# The drain in which Debezium sends five headers like the relay's.
SAME_HEADERS: Final = "drain_1_headers"
# Rows per transaction, and transactions per second.
DRAINS: Final = MappingProxyType({"drain_1": 1, SAME_HEADERS: 1, "drain_100": 100})
STEADIES: Final = MappingProxyType(
    {"steady_500": 500, "steady_2000": 2000, "steady_5000": 5000}
)
CASES: Final = (*DRAINS, *STEADIES)


def chosen_cases(named: Sequence[str], *, with_debezium: bool) -> tuple[str, ...]:
    """Return the named cases in the order of CASES, or all that apply."""
    if named:
        return tuple(name for name in CASES if name in named)
    return tuple(name for name in CASES if with_debezium or name != SAME_HEADERS)


# Settings of Debezium's connector, and of its producer.
ConnectorSettings = Mapping[str, str]

LINGER: Final = "producer.override.linger.ms"
BATCH: Final = "producer.override.batch.size"
COMPRESSION: Final = "producer.override.compression.type"
IN_FLIGHT: Final = "producer.override.max.in.flight.requests.per.connection"
POLL: Final = "poll.interval.ms"

# Four times the default batches and queues, and a producer that fills its batches.
THROUGHPUT: Final[ConnectorSettings] = MappingProxyType(
    {
        "max.batch.size": "8192",
        "max.queue.size": "32768",
        POLL: "10",
        LINGER: "5",
        BATCH: "524288",
        COMPRESSION: "lz4",
        "producer.override.buffer.memory": "134217728",
    }
)
# The connector polls every 1 ms (by default, every 500 ms) and lingers for 1 ms. With
# shorter times, each event would be a separate request, and the connector would fall
# behind at 2,000 events per second.
LATENCY: Final[ConnectorSettings] = MappingProxyType(
    {
        POLL: "1",
        LINGER: "1",
        IN_FLIGHT: "5",
        COMPRESSION: "lz4",
    }
)


class Tuning(NamedTuple):
    """The settings of tuned Debezium: in a drain, and under a steady load."""

    throughput: ConnectorSettings = THROUGHPUT
    latency: ConnectorSettings = LATENCY


ReportCount = Callable[[int], None]


class BenchScreen(Protocol):
    """Shows the progress of a benchmark."""

    def log(self, line: str) -> None:
        """Print a permanent line."""

    def show(self, case: RenderableType) -> None:
        """Print the table of a case that has ended."""

    def begin(self, what: str, total: int) -> ReportCount:
        """Begin a step; return a function that reports its progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """
    The options of a benchmark.

    Attributes:
        rows: The backlog of a drain.
        rounds: Runs of each case with each system.
        duration_s: Measured time of a steady load.
        warm_up_s: Time of the broker's warm-up, and of a steady load before the
            measured time.
        cases: The cases to run.
        with_debezium: Whether Debezium is measured too.
        searches_settings: Whether to search for Debezium's best settings first.
    """

    rows: int = 300_000
    rounds: int = 3
    duration_s: float = 20.0
    warm_up_s: float = 10.0
    cases: tuple[str, ...] = CASES
    with_debezium: bool = False
    searches_settings: bool = False

    @property
    def publishers(self) -> tuple[str, ...]:
        """The systems that write to Kafka."""
        others = (DEBEZIUM_STOCK, DEBEZIUM_TUNED) if self.with_debezium else ()
        return (RELAY, *others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The environment, options, broker and screen of all runs."""

    environment: BenchEnvironment
    options: BenchOptions
    broker: Broker
    screen: BenchScreen
    clock: Clock
    tuning: Tuning = field(default_factory=Tuning)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """One system in one round of one case; ``name`` names its slot, topics and log."""

    system: str
    name: str
    source: BenchSource
    is_steady: bool = False
    has_same_headers: bool = False

    @property
    def topic(self) -> str:
        """The topic of the events."""
        return f"{self.name}.event.bench"


def in_turn(systems: tuple[str, ...], round_number: int) -> tuple[str, ...]:
    """Alternate the order of the systems, because each run affects the next one."""
    return systems if round_number % 2 == 0 else systems[::-1]


# Drawing takes CPU time from the systems that are being measured.
_REFRESHES_PER_S: Final = 2


class _RateColumn(ProgressColumn):
    """The recent rate per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", style="dim")


class LiveBenchScreen:
    """A progress bar for the current step, below permanent lines."""

    def __init__(self, progress: Progress, cases: Console) -> None:
        self._progress = progress
        self._cases = cases
        self._task = progress.add_task("", total=None)

    def log(self, line: str) -> None:
        """Print a permanent line."""
        self._progress.console.print(line, highlight=False, soft_wrap=True)

    def show(self, case: RenderableType) -> None:
        """Print the table of a case that has ended."""
        self._cases.print(case)

    def begin(self, what: str, total: int) -> ReportCount:
        """Begin a step, and show its progress bar."""
        self._progress.remove_task(self._task)
        task = self._task = self._progress.add_task(what, total=total or None)

        def report(done: int) -> None:
            self._progress.update(task, completed=done)

        return report


@contextmanager
def open_screen(console: Console, cases: Console) -> Iterator[LiveBenchScreen]:
    """
    Show lines, and on a terminal a progress bar.

    Args:
        console: The console for progress.
        cases: The console for the tables of cases.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns,
        console=console,
        refresh_per_second=_REFRESHES_PER_S,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        yield LiveBenchScreen(progress, cases)


class RunRecords:
    """The figures and findings of one benchmark."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._cases: dict[str, dict[str, list[Figures]]] = {}
        self._findings: list[str] = []

    @property
    def findings(self) -> tuple[str, ...]:
        """The findings of all runs."""
        return tuple(self._findings)

    def add(self, case: str, system: str, figures: Figures) -> None:
        """Add a run's figures."""
        systems = self._cases.setdefault(case, defaultdict(list))
        systems[system].append(figures)

    def add_findings(self, run: str, checked: int, findings: Sequence[str]) -> None:
        """Add and print a run's findings, or print the number of checked events."""
        if findings:
            self._findings.append(f"{run}: {', '.join(findings)}")
            self._bench.screen.log(f"[red]{escape(self._findings[-1])}[/red]")
        else:
            self._bench.screen.log(f"{run}: {checked:,} events verified")

    def rounds(self) -> Iterator[tuple[str, dict[str, tuple[Figures, ...]]]]:
        """Yield the figures of every round, by system, case by case."""
        for name in self._cases:
            yield name, self.case_figures(name)

    def case_figures(self, name: str) -> dict[str, tuple[Figures, ...]]:
        """Return the figures of every round of one case, by system."""
        return {n: tuple(found) for n, found in self._cases.get(name, {}).items()}

    def facts(self) -> dict[str, Any]:
        """Return the fields that every result has: rows, rounds and machine."""
        options = self._bench.options
        host = {**machine(), "relay": self._bench.environment.relay_code}
        return {"rows": options.rows, "rounds": options.rounds, "machine": host}


@contextmanager
def translated() -> Iterator[None]:
    """Raise errors of connections, psycopg and the Kafka client as ``BenchError``."""
    try:
        yield
    except (psycopg.Error, KafkaException, ConnectionError, TimeoutError) as error:
        # The timeout error of a future has no text.
        reason = str(error).strip() or "no answer in time"
        message = f"a server used by the benchmark failed: {reason}"
        raise BenchError(message) from error
