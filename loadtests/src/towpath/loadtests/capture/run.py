"""
The comparison: each method on a fresh table and a fresh topic, one after the other.

The run of a method has three parts: the arranged scenarios, the load, and the check.
Costs and lags are those of the load. Writers, server, broker and method share the
processors, so only figures from the same comparison are comparable.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import psycopg

from towpath.loadtests.bench.context import Bench, translated
from towpath.loadtests.bench.machine import machine
from towpath.loadtests.bench.source import database
from towpath.loadtests.capture import TopicRecord, decoded, scenarios
from towpath.loadtests.capture.check import CaptureHistory
from towpath.loadtests.capture.dual_write import DualWrite
from towpath.loadtests.capture.load import LoadPlan, plan_load
from towpath.loadtests.capture.methods import (
    CaptureMethod,
    CaptureRun,
    NoCapture,
    PollingMethod,
)
from towpath.loadtests.capture.query import OverlappingReader, UpdatedAtReader
from towpath.loadtests.capture.relay import RelayMethod
from towpath.loadtests.capture.result import CaptureResult, MethodCost, MethodResult
from towpath.loadtests.capture.server import CommitLog, ServerUsage, server_usage
from towpath.loadtests.capture.trigger import (
    FencedReader,
    SequenceReader,
    TransactionReader,
)
from towpath.loadtests.capture.writers import (
    Session,
    apply,
    create_table,
    read_table,
    ready_writers,
    write_all,
)
from towpath.loadtests.load.samples import Latency

NONE: Final = "none"
TRIGGER: Final = "trigger"
QUERY: Final = "query"
DUAL_WRITE: Final = "dual_write"
RELAY: Final = "relay"
# Variants of two methods: two common mistakes, and polling with an overlap.
TRIGGER_BY_NUMBER: Final = "trigger_by_number"
TRIGGER_BY_TRANSACTION: Final = "trigger_by_transaction"
QUERY_OVERLAP: Final = "query_overlap"

_METHODS: Final[Mapping[str, Callable[[CaptureRun], CaptureMethod]]] = MappingProxyType(
    {
        NONE: lambda _run: NoCapture(),
        TRIGGER: lambda run: PollingMethod(run, FencedReader()),
        QUERY: lambda run: PollingMethod(run, UpdatedAtReader()),
        DUAL_WRITE: DualWrite,
        RELAY: RelayMethod,
        TRIGGER_BY_NUMBER: lambda run: PollingMethod(run, SequenceReader()),
        TRIGGER_BY_TRANSACTION: lambda run: PollingMethod(run, TransactionReader()),
        QUERY_OVERLAP: lambda run: PollingMethod(run, OverlappingReader()),
    }
)
METHODS: Final = (NONE, TRIGGER, QUERY, DUAL_WRITE, RELAY)
VARIANTS: Final = (TRIGGER_BY_NUMBER, TRIGGER_BY_TRANSACTION, QUERY_OVERLAP)

_WRITERS: Final = 4
_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """
    The options of a comparison.

    Attributes:
        transactions: The transactions of the load of each method.
        rate_per_s: Transactions per second of all writers together.
        interval_s: The pause of a polling worker between two polls.
        seed: The seed of the load.
        with_variants: Whether the variants of the methods run too.
    """

    transactions: int
    rate_per_s: float
    interval_s: float
    seed: int
    with_variants: bool


def compare_captures(bench: Bench, options: CaptureOptions) -> CaptureResult:
    """
    Run every method on the same load.

    Raises:
        BenchError: A process ended, or a server did not answer in time.
    """
    plan = plan_load(options.transactions, _WRITERS, options.rate_per_s, options.seed)
    names = (*METHODS, *VARIANTS) if options.with_variants else METHODS
    results = {}
    with translated():
        bench.broker.use_log_append_time()
        for name in names:
            report = bench.screen.begin(name, 0)
            run = CaptureRun(
                name=f"capture_{name}", bench=bench, interval_s=options.interval_s
            )
            with database(bench.environment, run.name):
                results[name] = _MethodRun(run, _METHODS[name], plan).measure()
            report(options.transactions)
            bench.screen.log(f"{name}: {results[name].line()}")
    return CaptureResult(
        seed=options.seed,
        transactions=options.transactions,
        rate_per_s=options.rate_per_s,
        interval_s=options.interval_s,
        machine=machine(),
        methods=results,
        judged=RELAY,
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    """The writers' transaction times, and the server's log and CPU time."""

    times_ms: list[float]
    usage: ServerUsage
    began_us: int


class _MethodRun:
    """The run of one method."""

    def __init__(
        self,
        run: CaptureRun,
        make: Callable[[CaptureRun], CaptureMethod],
        plan: LoadPlan,
    ) -> None:
        self._run, self._plan = run, plan
        self._method = make(run)

    def measure(self) -> MethodResult:
        """Play the scenarios, run the load, and check the topic."""
        with closing(psycopg.connect(self._run.dsn, autocommit=True)) as session:
            create_table(session)
            commits = CommitLog(session, f"{self._run.name}_commits")
            self._method.prepare(session)
            with self._method:
                scenarios.Scenarios(self._run, self._method).play()
                measured = self._load(session)
            committed = commits.read()
            cost = MethodCost(
                transaction=Latency.of(measured.times_ms),
                log_bytes=measured.usage.log_bytes / self._plan.committed,
                cpu_us=measured.usage.cpu_s * _MICROSECONDS / self._plan.committed,
            )
            if isinstance(self._method, NoCapture):
                return MethodResult(cost=cost)
            history = CaptureHistory(committed, read_table(session), self._topic())
        return MethodResult(
            cost=cost,
            changes=len(committed),
            check=history.check(self._plan.late_changes | scenarios.LATE_NUMBERS),
            scenarios={n: history.wrong(keys) for n, keys in scenarios.KEYS.items()},
            lag=Latency.of(history.lags_ms(measured.began_us)),
        )

    def _load(self, session: Session) -> _Measured:
        """Run the load, and wait until the method has captured it."""
        opening = self._plan.opening.changes
        with ready_writers(
            self._run.dsn, self._method.publisher, self._plan
        ) as writers:
            with session.transaction():
                apply(session, opening)
            self._method.publisher.open().publish(opening)
            self._method.settle()
            before = server_usage(session)
            began_us = round(self._run.bench.clock.now().timestamp() * _MICROSECONDS)
            times_ms = write_all(writers, self._plan)
            self._method.finish()
            return _Measured(times_ms, server_usage(session).since(before), began_us)

    def _topic(self) -> list[TopicRecord]:
        """Return the records of the topic, by partition and offset."""
        messages = self._run.bench.broker.records(self._run.topic)
        found = (decoded(message) for message in messages)
        return sorted(one for one in found if one is not None)
