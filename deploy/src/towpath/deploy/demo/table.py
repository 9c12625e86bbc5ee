"""
The final table, and the same data as JSON: pure functions of the result.

A latency is measured from the response to a checkout, which follows the commit, to the
first read through the target's own API that returned the order.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

_GIB: Final = 1024**3
_SECOND_MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """
    The traffic from the first checkout to the last.

    ``not_started`` counts the customers that were not started because too many were
    active. ``row_changes`` and ``events`` count the records that the relay published in
    that time, ``dead_letters`` counts all dead letters that relay and sinks have
    written so far.
    """

    checkouts: int
    payments: int
    cancellations: int
    conflicts: int
    not_started: int
    failed_requests: int
    row_changes: int
    events: int
    dead_letters: int
    load_s: float

    @property
    def requests(self) -> int:
        """The number of requests sent."""
        successful = self.checkouts + self.payments + self.cancellations
        return successful + self.conflicts + self.failed_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkResult:
    """
    One sink: its latencies in milliseconds, and whether it equals the database.

    Attributes:
        samples: Orders with a latency.
        lost: Orders that did not arrive in time.
        compared: Keys compared.
        differences: Keys that differ; ``None`` if the sink could not be verified.
        named: The first keys that differ, with their differences.
        failure: Why the sink could not be verified; None if it could.
    """

    name: str
    samples: int = 0
    lost: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    compared: int = 0
    differences: int | None = None
    named: tuple[str, ...] = ()
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotResult:
    """The new sink's snapshot, and rows in its key range that changed while it ran."""

    sink: str
    rows: int
    rows_per_s: float
    changed_meanwhile: int
    wanted_changes: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SagaResult:
    """The numbers of the load's orders by status, and of canceled orders by reason."""

    ended: dict[str, int]
    reasons: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreResult:
    """
    Whether money, stock, parcels and orders agree in the database, or in a sink.

    Attributes:
        orders: Orders read.
        findings: A sentence for each invariant that does not hold.
        failure: Why the store could not be read; None if it could.
    """

    name: str
    orders: int = 0
    findings: tuple[str, ...] = ()
    failure: str | None = None

    @property
    def adds_up(self) -> bool:
        """Whether the store was read, and every invariant holds."""
        return self.failure is None and not self.findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """
    The result of the demo.

    ``restarts`` and ``peak_memory_bytes`` are unknown for a joined platform.
    """

    orders_before: int
    traffic: Traffic
    sinks: tuple[SinkResult, ...]
    sagas: SagaResult
    stores: tuple[StoreResult, ...]
    snapshot: SnapshotResult
    restarts: int | None
    peak_memory_bytes: int | None
    elapsed_s: float
    machine: str

    @property
    def differences(self) -> int:
        """Keys that differ, across all sinks."""
        return sum(sink.differences or 0 for sink in self.sinks)

    @property
    def equal(self) -> bool:
        """Whether every sink was verified, and no key differs."""
        return all(sink.differences == 0 for sink in self.sinks)

    @property
    def adds_up(self) -> bool:
        """Whether every business invariant holds in every store."""
        return all(store.adds_up for store in self.stores)

    def as_json(self) -> dict[str, Any]:
        """Return the result in JSON types."""
        sums = {
            "differences": self.differences,
            "equal": self.equal,
            "adds_up": self.adds_up,
        }
        return {**dataclasses.asdict(self), **sums}


def draw(result: Result) -> RenderableType:
    """Draw the table, with the named differences below."""
    blocks: list[RenderableType] = [_facts(result), Text(), _sinks(result), Text()]
    blocks += [_verdict(result), _business(result)]
    for sink in result.sinks:
        lines = [*sink.named, *filter(None, [sink.failure])]
        blocks += [Text(f"  {sink.name}: {line}", style="red") for line in lines]
    for store in result.stores:
        lines = [*store.findings, *filter(None, [store.failure])]
        blocks += [Text(f"  {store.name}: {line}", style="red") for line in lines]
    return Panel(Group(*blocks), title="towpath demo", expand=False)


def _facts(result: Result) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for title, number, remark in _lines(result):
        table.add_row(title, number, remark)
    return table


def _lines(result: Result) -> list[tuple[str, str, str]]:
    traffic, snapshot = result.traffic, result.snapshot
    orders = f"{traffic.payments:,} paid, {traffic.cancellations:,} cancelled"
    if traffic.conflicts:
        orders += f", {traffic.conflicts:,} too late"
    if traffic.not_started:
        orders += f", {traffic.not_started:,} not started"
    failed = f"of {traffic.requests:,}"
    few = snapshot.changed_meanwhile < snapshot.wanted_changes
    short = f"fewer than the {snapshot.wanted_changes:,} wanted" if few else ""
    return [
        ("checkouts", f"{traffic.checkouts:,}", orders),
        ("failed requests", f"{traffic.failed_requests:,}", failed),
        *_saga_lines(result.sagas),
        ("row changes", f"{traffic.row_changes:,}", f"in {traffic.load_s:.0f} s"),
        ("events", f"{traffic.events:,}", "through the outbox"),
        ("dead letters", f"{traffic.dead_letters:,}", "each with its reason"),
        (
            "rows backfilled",
            f"{snapshot.rows:,}",
            f"into {snapshot.sink}, at {snapshot.rows_per_s:,.0f} rows/s",
        ),
        ("rows changed meanwhile", f"{snapshot.changed_meanwhile:,}", short),
        ("rows the window dropped", f"{snapshot.dropped:,}", "a change overtook them"),
        (
            "orders before the slot",
            f"{result.orders_before:,}",
            "only in the snapshots",
        ),
        *_own_lines(result),
        ("time", f"{result.elapsed_s:.0f} s", result.machine),
    ]


def _saga_lines(sagas: SagaResult) -> Iterator[tuple[str, str, str]]:
    done = sagas.ended.get("completed", 0)
    returned = sagas.ended.get("returned", 0)
    yield "orders shipped and paid", f"{done:,}", f"and {returned:,} returned, refunded"
    reasons = ", ".join(
        f"{count:,} {reason}" for reason, count in sagas.reasons.items()
    )
    cancelled = sagas.ended.get("cancelled", 0)
    yield "orders cancelled, compensated", f"{cancelled:,}", reasons


def _own_lines(result: Result) -> Iterator[tuple[str, str, str]]:
    if result.restarts is not None:
        yield "parts restarted", f"{result.restarts:,}", ""
    if result.peak_memory_bytes is not None:
        held_gib = result.peak_memory_bytes / _GIB
        yield "peak memory", f"{held_gib:.1f} GiB", "of all parts"


def _sinks(result: Result) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("commit to read", no_wrap=True)
    for title in ("samples", "p50", "p95", "p99", "keys", "differences"):
        table.add_column(title, justify="right", no_wrap=True)
    for sink in result.sinks:
        table.add_row(
            sink.name,
            _samples(sink),
            _duration(sink.p50_ms),
            _duration(sink.p95_ms),
            _duration(sink.p99_ms),
            f"{sink.compared:,}",
            _differences(sink),
        )
    return table


def _samples(sink: SinkResult) -> str:
    if not sink.samples and not sink.lost:
        return "-"
    return f"{sink.samples:,}" + (f" ({sink.lost} lost)" if sink.lost else "")


def _duration(time_ms: float | None) -> str:
    if time_ms is None:
        return "-"
    return f"{time_ms:.0f} ms" if time_ms < _SECOND_MS else f"{time_ms / 1000:,.1f} s"


def _differences(sink: SinkResult) -> Text:
    if sink.differences is None:
        return Text("not verified", style="red")
    return Text(f"{sink.differences:,}", style="red" if sink.differences else "green")


def _business(result: Result) -> Text:
    names = ", ".join(store.name for store in result.stores)
    if result.adds_up:
        text = f"Money, stock, parcels and orders agree in {names}."
        return Text(text, style="bold green")
    wrong = [store.name for store in result.stores if not store.adds_up]
    text = f"Money, stock, parcels or orders do not agree in {', '.join(wrong)}."
    return Text(text, style="bold red")


def _verdict(result: Result) -> Text:
    if result.equal:
        text = "All sinks equal the database: not one difference."
        return Text(text, style="bold green")
    missing = [sink.name for sink in result.sinks if sink.differences is None]
    if missing:
        return Text(f"Not verified: {', '.join(missing)}.", style="bold red")
    count = result.differences
    keys = "1 key differs" if count == 1 else f"{count:,} keys differ"
    return Text(f"{keys}.", style="bold red")
