"""
The benchmark of snapshots: all systems, both loads, round by round.

In each run a system streams the table's changes, is asked to read the table, and is
checked afterwards. Under updates, the load begins before the signal, so that the
latency without a snapshot is measured under the same load; the load ends with the
snapshot. A finding voids all figures; stale rows are a finding only for the relay.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from towpath.loadtests.bench import publishers
from towpath.loadtests.bench.context import (
    RELAY,
    Bench,
    RunRecords,
    in_turn,
    translated,
)
from towpath.loadtests.bench.figures import Figures
from towpath.loadtests.bench.machine import ProcessWatch, per_event_us
from towpath.loadtests.bench.measurements import POLL_INTERVAL_S, pgbench, until_idle
from towpath.loadtests.bench.publishers import failure
from towpath.loadtests.bench.result import BenchResult
from towpath.loadtests.bench.snapshot import result, systems
from towpath.loadtests.bench.snapshot.check import (
    Expected,
    Moments,
    TableCheck,
    check_table,
    live_figures,
    rate_figures,
)
from towpath.loadtests.bench.snapshot.result import FillCase
from towpath.loadtests.bench.snapshot.source import (
    COPY,
    UPDATE,
    UPDATES_PER_S,
    FillRun,
    ItemSource,
    Load,
    copied,
    original,
    snapshot_systems,
)
from towpath.schemas.clock import Deadline

# Far below any measured rate, so that a run does not fail on a busy machine.
_SLOWEST_PER_S: Final = 500
_SERVING_WITHIN_S: Final = 90.0
_LOAD_FOR_S: Final = 3_600.0
_COPIES: Final = 3
_MS: Final = 1000.0


class SnapshotMeasurement:
    """One run of a system that writes to Kafka; call ``measure`` once."""

    def __init__(self, bench: Bench, run: FillRun, source: ItemSource) -> None:
        self._bench = bench
        self._run = run
        self._source = source
        self._pid = 0
        self._watch = ProcessWatch()
        self._watch.add("broker", bench.environment.broker_pid, is_new=False)

    def measure(self) -> tuple[Figures, TableCheck]:
        """
        Run the measurement; return its figures and the check.

        Raises:
            BenchError: The system ended, refused the snapshot, or did not finish in
                time.
        """
        self._source.record_changes()
        moments = self._read_the_table()
        until_idle(self._bench, self._run)
        self._bench.environment.launcher.stop(self._run.name)
        return self._check(moments)

    def _read_the_table(self) -> Moments:
        with ExitStack() as stack:
            if self._run.is_initial:
                # The system streams nothing before it has read the table, so there is
                # no idle latency.
                stack.enter_context(run_load(self._bench, self._run))
                idle_ms = requested_ms = self._now_ms()
                self._start()
            else:
                self._start()
                self._until_serving()
                stack.enter_context(run_load(self._bench, self._run))
                idle_ms = self._run_idle()
                self._watch.restart()
                requested_ms = self._now_ms()
                systems.request_snapshot(self._run, self._source)
            self._until_completed()
            self._watch.sample()
            return Moments(idle_ms, requested_ms, self._now_ms())

    def _start(self) -> None:
        self._pid = systems.start(self._bench, self._run, self._source)
        self._watch.add("process", self._pid, is_new=True)

    def _until_serving(self) -> None:
        """Wait until the system streams: until an update committed here is in Kafka."""
        self._bench.screen.begin(f"{self._run.name}: starting", 0)
        self._source.update_one()
        deadline = Deadline(self._bench.clock, _SERVING_WITHIN_S)
        while not self._record_count():
            self._poll(deadline, "no event arrived: it may not be reading its slot")
        reader = self._source.reader_pid(self._run.name)
        self._watch.add("walsender", reader, is_new=True)

    def _run_idle(self) -> float:
        """Run the load without a snapshot; return the start of the measurement."""
        if self._run.load is Load.QUIET:
            return self._now_ms()
        options = self._bench.options
        self._bench.screen.begin(f"{self._run.name}: updates alone", 0)
        self._bench.clock.wait(options.warm_up_s)
        since_ms = self._now_ms()
        self._bench.clock.wait(options.duration_s)
        return since_ms

    def _until_completed(self) -> None:
        rows = self._bench.options.rows
        report = self._bench.screen.begin(self._run.name, rows)
        within_s = _SERVING_WITHIN_S + rows / _SLOWEST_PER_S
        deadline = Deadline(self._bench.clock, within_s)
        while not systems.has_completed(self._bench, self._run, self._source):
            self._poll(deadline, f"not done after {within_s:.0f} s")
            report(self._record_count())
        report(self._record_count())

    def _poll(self, deadline: Deadline, reason: str) -> None:
        """Check and sample the system, then wait for one interval."""
        bench, run = self._bench, self._run
        publishers.check(bench, run, self._pid)
        self._watch.sample()
        if deadline.passed():
            raise failure(bench.environment, run.name, reason)
        bench.clock.wait(POLL_INTERVAL_S)

    def _check(self, moments: Moments) -> tuple[Figures, TableCheck]:
        bench, run = self._bench, self._run
        bench.screen.begin(f"{run.name}: comparing topic and table", 0)
        updates = self._source.updates()
        digests = self._source.contents()
        expected = Expected(digests, updates, is_initial=run.is_initial)
        verdict, times = check_table(expected, systems.delivered(bench, run.topic))
        if not times.read_at_ms:
            return {}, verdict
        records = len(times.read_at_ms) + len(times.updated_at)
        found = rate_figures(verdict, times, moments) | live_figures(times, moments)
        found |= self._watch.figures()
        found["cpu_us_per_row"] = per_event_us(found["process_cpu_s"], verdict.rows)
        size = systems.size_bytes(bench.environment.log_folder, run.topic)
        found["topic_bytes_per_row"] = size / records
        return found, verdict

    def _record_count(self) -> int:
        return sum(self._bench.broker.ends(self._run.topic).values())

    def _now_ms(self) -> float:
        return self._bench.clock.now().timestamp() * _MS


@contextmanager
def run_load(bench: Bench, run: FillRun) -> Iterator[None]:
    """
    Keep the run's load running during the block.

    Raises:
        BenchError: The load ended before the block did.
    """
    if run.load is Load.QUIET:
        yield
        return
    script = UPDATE.format(rows=bench.options.rows)
    with pgbench(bench, run.source.dsn, script, UPDATES_PER_S, _LOAD_FOR_S) as client:
        yield
        if client.is_done():
            reason = f"ended before {run.name} did"
            raise failure(bench.environment, "pgbench", reason)


def measure_copy(bench: Bench, run: FillRun, source: ItemSource) -> Figures:
    """Measure the upper limit: COPY the table, and discard the output."""
    bench.screen.begin(run.name, 0)
    with run_load(bench, run):
        began_s = bench.clock.monotonic_s()
        size = sum(source.discard_copy() for _ in range(_COPIES))
        elapsed_s = bench.clock.monotonic_s() - began_s
    rows = bench.options.rows * _COPIES
    return {"rows_per_s": rows / elapsed_s, "copy_bytes_per_row": size / rows}


_ORIGINAL: Final = "bench_original"


def measure_snapshots(
    bench: Bench, loads: Sequence[str] = tuple(Load)
) -> BenchResult[FillCase]:
    """
    Measure every system's snapshot, under updates and on a quiet server.

    Raises:
        BenchError: A system or a server ended, or did not finish in time.
    """
    records = RunRecords(bench)
    options = bench.options
    wanted = snapshot_systems(with_debezium=options.with_debezium)
    with translated(), _original(bench):
        bench.broker.use_log_append_time()
        for load in map(Load, loads):
            for number in range(options.rounds):
                for system in in_turn(wanted, number):
                    _run(bench, records, (system, load, number))
            if not records.findings:
                case = FillCase(loads={load: records.case_figures(load)})
                bench.screen.show(result.draw_load(case, load))
    return _result(records)


def _run(bench: Bench, records: RunRecords, step: tuple[str, Load, int]) -> None:
    system, load, number = step
    name = f"bench_fill_{load}_{system}_{number}"
    with copied(bench.environment, name, _ORIGINAL, bench.clock) as source:
        run = FillRun(system=system, name=name, source=source, load=load)
        source.settle()
        if system == COPY:
            records.add(load, system, measure_copy(bench, run, source))
            return
        with _cleared(bench, run):
            figures, verdict = SnapshotMeasurement(bench, run, source).measure()
    records.add(load, system, figures)
    judged = verdict if system == RELAY else verdict.without_stale
    records.add_findings(name, verdict.rows, judged.findings())


@contextmanager
def _original(bench: Bench) -> Iterator[None]:
    """Create a database with the table, leave it unused, and drop it afterwards."""
    rows = bench.options.rows
    with original(bench.environment, _ORIGINAL, bench.clock) as source:
        source.fill_items(rows, bench.screen.begin("writing the table", rows))
        source.close()
        yield


@contextmanager
def _cleared(bench: Bench, run: FillRun) -> Iterator[None]:
    """
    Stop the run's process; remove its topics if the block succeeded.

    Its slots are dropped with its database.
    """
    try:
        yield
    finally:
        bench.environment.launcher.stop(run.name)
    bench.broker.delete_topics(run.name)


def _result(records: RunRecords) -> BenchResult[FillCase]:
    loads = {Load(name): found for name, found in records.rounds()}
    return BenchResult(
        findings=records.findings, cases=(FillCase(loads=loads),), **records.facts()
    )
