"""
The measurements of one publisher: a drain, a kill, a steady load.

- Drain: the rate at which a system publishes a committed backlog. Decoding in the
  server and ``pg_recvlogical`` serve as baselines: both only decode.
- Kill: the cost of a ``kill -9`` in the middle of a drain. The system is killed once
  the topic has a given share of the backlog, or after 90 seconds, and is restarted
  immediately. Lost and repeated events are counted in the topic; the time to the first
  *new* event is measured from the second start.
- Steady load: ``pgbench`` commits at a given rate, at random times, however far behind
  the system is. The latency of each event after the warm-up is the time from its commit
  record to the broker's append.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from towpath.loadtests.bench import publishers
from towpath.loadtests.bench.context import (
    LIMIT,
    Bench,
    BenchRun,
    ReportCount,
)
from towpath.loadtests.bench.figures import (
    ArrivedEvent,
    CommittedEvent,
    EventCheck,
    Figures,
    check_events,
    drain_figures,
    latencies_ms,
    latency_figures,
)
from towpath.loadtests.bench.machine import ProcessWatch, per_event_us
from towpath.loadtests.bench.publishers import ClientProgram, failure
from towpath.loadtests.bench.source import PUBLICATION
from towpath.loadtests.errors import BenchError
from towpath.schemas.clock import Deadline

# Short enough for a smooth progress bar, and for finding a backend in time; a sample
# costs a millisecond.
POLL_INTERVAL_S: Final = 0.25

# Deadlines assume a tenth of the slowest measured rate, plus the start of a JVM.
_ASSUMED_PER_S: Final = 2_000
_START_WITHIN_S: Final = 90.0
_MS: Final = 1000.0
# Longer than any pause that was ever measured within a drain.
_IDLE_FOR_S: Final = 3.0
_IDLE_WITHIN_S: Final = 120.0


class Goal(NamedTuple):
    """The number of awaited records, and a function that reports the current number."""

    events: int
    report: ReportCount


def decode(bench: Bench, run: BenchRun, rows: int) -> Figures:
    """Measure one of the two systems that only decode."""
    watch = ProcessWatch()
    began_s = bench.clock.monotonic_s()
    if run.system == LIMIT:
        watch.add("walsender", run.source.backend_pid(), is_new=False)
        report = bench.screen.begin(f"{run.name}: messages", 0)
        messages = run.source.decode(run.name, report)
        if messages < rows:
            counts = f"{messages:,} messages for {rows:,} rows"
            message = f"{run.name}: decoded only {counts}"
            raise BenchError(message)
        watch.sample()
    else:
        _receive(bench, run, watch, rows)
    elapsed_s = bench.clock.monotonic_s() - began_s
    return {"events_per_s": rows / elapsed_s, **watch.figures()}


def drain(
    bench: Bench, run: BenchRun, facts: Mapping[bytes, CommittedEvent]
) -> tuple[Figures, EventCheck]:
    """
    Measure a publisher, from its start to its last append.

    Raises:
        BenchError: The publisher ended early, or did not finish in time.
    """
    watch = ProcessWatch()
    watch.add("broker", bench.environment.broker_pid, is_new=False)
    report = bench.screen.begin(run.name, len(facts))
    started_ms = bench.clock.now().timestamp() * _MS
    pid = publishers.start(bench, run)
    watch.add("process", pid, is_new=True)
    until_complete(bench, run, pid, watch, Goal(len(facts), report))
    bench.environment.launcher.stop(run.name)
    arrivals = bench.broker.read(run.topic)
    verdict = check_events(facts, arrivals)
    found = watch.figures()
    found["cpu_us_per_event"] = per_event_us(found["process_cpu_s"], len(facts))
    found["headers"] = float(max(arrival.headers for arrival in arrivals))
    times_ms = [arrival.appended_ms for arrival in arrivals]
    return {**drain_figures(times_ms, started_ms), **found}, verdict


def until_complete(
    bench: Bench, run: BenchRun, pid: int, watch: ProcessWatch, goal: Goal
) -> None:
    """
    Sample the processes until the topic has all awaited records.

    Raises:
        BenchError: The system ended, or did not finish in time.
    """
    within_s = _START_WITHIN_S + goal.events / _ASSUMED_PER_S
    deadline = Deadline(bench.clock, within_s)
    while (arrived := sum(bench.broker.ends(run.topic).values())) < goal.events:
        publishers.check(bench, run, pid)
        watch.add("walsender", run.source.reader_pid(run.name), is_new=True)
        watch.sample()
        goal.report(arrived)
        if deadline.passed():
            reason = f"{arrived:,} of {goal.events:,} events after {within_s:.0f} s"
            raise failure(bench.environment, run.name, reason)
        bench.clock.wait(POLL_INTERVAL_S)
    watch.sample()
    goal.report(arrived)


def until_idle(bench: Bench, run: BenchRun) -> None:
    """
    Wait until no more records are appended: a complete count may include duplicates.

    The wait ends after two minutes even if records are still being appended.
    """
    deadline = Deadline(bench.clock, _IDLE_WITHIN_S)
    count, since_s = -1, bench.clock.monotonic_s()
    while bench.clock.monotonic_s() - since_s < _IDLE_FOR_S and not deadline.passed():
        arrived = sum(bench.broker.ends(run.topic).values())
        if arrived != count:
            count, since_s = arrived, bench.clock.monotonic_s()
        bench.clock.wait(POLL_INTERVAL_S)


def _receive(bench: Bench, run: BenchRun, watch: ProcessWatch, rows: int) -> None:
    """Run ``pg_recvlogical`` to the end of the log, and discard its output."""
    command = (
        str(bench.environment.programs / "bin" / "pg_recvlogical"),
        *("--dbname", run.source.dsn, "--slot", run.name, "--start", "--no-loop"),
        *("--endpos", run.source.end_lsn(), "--file", "/dev/null"),
        *("--option", "proto_version=1"),
        *("--option", f"publication_names={PUBLICATION}"),
    )
    deadline = Deadline(bench.clock, _START_WITHIN_S + rows / _ASSUMED_PER_S)
    with ClientProgram(bench.environment, run.name, command) as client:
        watch.add("process", client.pid, is_new=True)
        while not client.is_done():
            watch.add("walsender", run.source.reader_pid(run.name), is_new=True)
            watch.sample()
            if deadline.passed():
                raise failure(bench.environment, run.name, "not done in time")
            bench.clock.wait(POLL_INTERVAL_S / 10)


KILL_ROWS: Final = 100_000
KILL_SHARE: Final = 0.4
_KILL_POLL_INTERVAL_S: Final = 0.005
# Requests that the killed process had sent are appended within a few milliseconds.
_LAST_APPENDS_S: Final = 0.1
_SHARE_WITHIN_S: Final = 90.0


def kill(
    bench: Bench, run: BenchRun, facts: Mapping[bytes, CommittedEvent]
) -> tuple[Figures, EventCheck]:
    """
    Kill a publisher in the middle of a backlog, restart it, and let it finish.

    Raises:
        BenchError: The publisher ended early, or did not finish in time.
    """
    report = bench.screen.begin(run.name, len(facts))
    pid = publishers.start(bench, run)
    _until_share(bench, run, pid, round(len(facts) * KILL_SHARE))
    bench.environment.launcher.kill(run.name)
    bench.clock.wait(_LAST_APPENDS_S)
    before = bench.broker.ends(run.topic)
    started_ms = bench.clock.now().timestamp() * _MS
    pid = publishers.start(bench, run)
    until_complete(bench, run, pid, ProcessWatch(), Goal(len(facts), report))
    until_idle(bench, run)
    bench.environment.launcher.stop(run.name)
    arrivals = bench.broker.read(run.topic)
    verdict = check_events(facts, arrivals)
    figures: Figures = {
        "killed_at_events": float(sum(before.values())),
        "lost": float(verdict.lost),
        "duplicates": float(verdict.duplicates),
    }
    first_ms = first_new_ms(arrivals, before)
    if first_ms is not None:
        figures["first_new_event_s"] = (first_ms - started_ms) / _MS
    return figures, verdict


def first_new_ms(
    arrivals: Sequence[ArrivedEvent], before: Mapping[int, int]
) -> float | None:
    """
    Return the append time of the first event that the topic did not have before.

    It is None if the topic already had every event, because the backlog was short.
    """
    old = {a.event_id for a in arrivals if a.offset < before.get(a.partition, 0)}
    times_ms = [float(a.appended_ms) for a in arrivals if a.event_id not in old]
    return min(times_ms, default=None)


def _until_share(bench: Bench, run: BenchRun, pid: int, count: int) -> None:
    deadline = Deadline(bench.clock, _SHARE_WITHIN_S)
    while sum(bench.broker.ends(run.topic).values()) < count:
        publishers.check(bench, run, pid)
        if deadline.passed():
            break
        bench.clock.wait(_KILL_POLL_INTERVAL_S)


# Each client waits until its commit is flushed; a group of commits shares a flush.
_CLIENTS: Final = 16
_SERVING_WITHIN_S: Final = 90.0
# Samples are less frequent here, because they add to the load.
_LOAD_POLL_INTERVAL_S: Final = 1.0
_GRACE_S: Final = 30.0
_MICROSECONDS: Final = 1_000_000
_SCRIPT: Final = """\
\\set key random(0, 999)
\\set n random(0, 1000000000)
insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload)
values (gen_random_uuid(), 'bench', :key::int::text, 'Benched', bench.payload(:n));
"""


def follow_load(
    bench: Bench, run: BenchRun, rate: int, truth: str
) -> tuple[Figures, EventCheck]:
    """
    Measure a publisher under a load that it has to keep up with.

    Args:
        bench: The benchmark.
        run: The run; its slot was created just before this call.
        rate: Transactions per second.
        truth: The name of a second slot, also just created, from which the committed
            events are decoded.

    Raises:
        BenchError: The system ended, or did not finish in time.
    """
    options = bench.options
    watch = ProcessWatch()
    watch.add("broker", bench.environment.broker_pid, is_new=False)
    pid = publishers.start(bench, run)
    watch.add("process", pid, is_new=True)
    before = run.source.row_count()
    _until_serving(bench, run, pid)
    watch.add("walsender", run.source.reader_pid(run.name), is_new=True)
    for_s = options.warm_up_s + options.duration_s
    with pgbench(bench, run.source.dsn, _SCRIPT, rate, for_s) as client:
        since_us = _watch_load(bench, run, client, watch)
    count = run.source.row_count() - before
    goal = Goal(count, bench.screen.begin(f"{run.name}: the rest", count))
    until_complete(bench, run, pid, ProcessWatch(), goal)
    bench.environment.launcher.stop(run.name)
    facts = run.source.facts(truth)
    arrivals = bench.broker.read(run.topic)
    verdict = check_events(facts, arrivals)
    if not verdict.is_clean:
        return {}, verdict
    found = latency_figures(latencies_ms(facts, arrivals, since_us))
    found["events_per_s"] = _rate(facts, since_us)
    found |= watch.figures()
    found["cpu_us_per_event"] = per_event_us(
        found["process_cpu_s"], int(found["samples"])
    )
    found["cpu_share"] = found["process_cpu_s"] / options.duration_s
    return found, verdict


def _until_serving(bench: Bench, run: BenchRun, pid: int) -> None:
    """Commit one event and wait until it is in Kafka: the system is then streaming."""
    run.source.fill(1, 1, bench.screen.begin(f"{run.name}: starting", 0))
    deadline = Deadline(bench.clock, _SERVING_WITHIN_S)
    while not sum(bench.broker.ends(run.topic).values()):
        publishers.check(bench, run, pid)
        if deadline.passed():
            reason = "no event arrived in time: it may not be reading its slot"
            raise failure(bench.environment, run.name, reason)
        bench.clock.wait(POLL_INTERVAL_S)


def _watch_load(
    bench: Bench, run: BenchRun, client: ClientProgram, watch: ProcessWatch
) -> int:
    """Wait for the end of the load; return the start of the measurement in us."""
    options = bench.options
    whole_s = options.warm_up_s + options.duration_s
    report = bench.screen.begin(f"{run.name}: seconds", int(whole_s))
    began_s = bench.clock.monotonic_s()
    bench.clock.wait(options.warm_up_s)
    since_us = int(bench.clock.now().timestamp() * _MICROSECONDS)
    watch.restart()
    while not client.is_done():
        watch.sample()
        elapsed_s = bench.clock.monotonic_s() - began_s
        report(int(elapsed_s))
        if elapsed_s > whole_s + _GRACE_S:
            raise failure(bench.environment, "pgbench", "not done in time")
        left_s = max(POLL_INTERVAL_S, whole_s - elapsed_s)
        bench.clock.wait(min(_LOAD_POLL_INTERVAL_S, left_s))
    watch.sample()
    return since_us


def pgbench(
    bench: Bench, dsn: str, script: str, rate: int, for_s: float
) -> ClientProgram:
    """Return a client that commits a script's transaction at a given rate."""
    path = Path(bench.environment.folder / "steady.sql")
    path.write_text(script, encoding="utf-8")
    command = (
        str(bench.environment.programs / "bin" / "pgbench"),
        *("--no-vacuum", "--protocol", "prepared", "--file", str(path)),
        *("--client", str(_CLIENTS), "--rate", str(rate)),
        *("--time", str(round(for_s)), dsn),
    )
    return ClientProgram(bench.environment, "pgbench", command)


def _rate(facts: Mapping[bytes, CommittedEvent], since_us: int) -> float:
    """Return the actual rate of the load's commits."""
    times_us = [f.committed_us for f in facts.values() if f.committed_us >= since_us]
    elapsed_s = (max(times_us) - since_us) / _MICROSECONDS
    return len(times_us) / elapsed_s
