"""
A drain: a committed backlog, and how fast a system has it in Kafka.

The server's own decoding and ``pg_recvlogical`` stand beside: they only decode.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from towpath.loadtests.bench import publishers
from towpath.loadtests.bench.clients import Client, told
from towpath.loadtests.bench.errors import BenchError
from towpath.loadtests.bench.figures import Figures, drain_figures
from towpath.loadtests.bench.plan import LIMIT, Bench, Run, Tell
from towpath.loadtests.bench.source import PUBLICATION
from towpath.loadtests.bench.verdict import Fact, Verdict, judge
from towpath.loadtests.bench.watch import Watch, per_event_us
from towpath.schemas.clock import Deadline

# Often enough to draw a bar and to catch a backend; each look costs a millisecond.
LOOK_EVERY_S: Final = 0.25

# A tenth of the slowest rate that anybody has shown, and the start of a JVM.
_SLOWEST_PER_S: Final = 2_000
_START_WITHIN_S: Final = 90.0
_MS: Final = 1000.0
# Longer than any pause within a drain that was seen.
_STILL_FOR_S: Final = 3.0
_STILL_WITHIN_S: Final = 120.0


class Goal(NamedTuple):
    """How many records are waited for, and who is told how many are there."""

    events: int
    tell: Tell


def decode(bench: Bench, run: Run, rows: int) -> Figures:
    """Measure one of the two that only decode."""
    watch = Watch()
    began_s = bench.clock.monotonic_s()
    if run.system == LIMIT:
        watch.add("walsender", run.source.backend_pid(), is_new=False)
        tell = bench.screen.begin(f"{run.name}: messages", 0)
        messages = run.source.decode(run.name, tell)
        if messages < rows:
            message = f"{run.name}: {messages:,} messages of {rows:,} rows were decoded"
            raise BenchError(message)
        watch.look()
    else:
        _receive(bench, run, watch, rows)
    elapsed_s = bench.clock.monotonic_s() - began_s
    return {"events_per_s": rows / elapsed_s, **watch.figures()}


def drain(
    bench: Bench, run: Run, facts: Mapping[bytes, Fact]
) -> tuple[Figures, Verdict]:
    """
    Measure a publisher, from its start to its last append.

    Raises:
        BenchError: It ended, or was not done in time.
    """
    watch = Watch()
    watch.add("broker", bench.place.broker_pid, is_new=False)
    tell = bench.screen.begin(run.name, len(facts))
    started_ms = bench.clock.now().timestamp() * _MS
    pid = publishers.start(bench, run)
    watch.add("process", pid, is_new=True)
    until_there(bench, run, pid, watch, Goal(len(facts), tell))
    bench.place.launcher.stop(run.name)
    arrivals = bench.broker.read(run.topic)
    verdict = judge(facts, arrivals)
    found = watch.figures()
    found["cpu_us_per_event"] = per_event_us(found["process_cpu_s"], len(facts))
    times_ms = [arrival.appended_ms for arrival in arrivals]
    return {**drain_figures(times_ms, started_ms), **found}, verdict


def until_there(bench: Bench, run: Run, pid: int, watch: Watch, goal: Goal) -> None:
    """
    Wait until the topic has so many records; look at the processes meanwhile.

    Raises:
        BenchError: The system ended, or the time is over.
    """
    within_s = _START_WITHIN_S + goal.events / _SLOWEST_PER_S
    deadline = Deadline(bench.clock, within_s)
    while (there := sum(bench.broker.ends(run.topic).values())) < goal.events:
        publishers.check(bench, run, pid)
        watch.add("walsender", run.source.reader_pid(run.name), is_new=True)
        watch.look()
        goal.tell(there)
        if deadline.passed():
            what = f"{there:,} of {goal.events:,} events after {within_s:.0f} s"
            raise BenchError(told(run.name, what, bench.place.launcher.log(run.name)))
        bench.clock.wait(LOOK_EVERY_S)
    watch.look()
    goal.tell(there)


def until_still(bench: Bench, run: Run) -> None:
    """Wait until nothing more comes: a count with repeats in it tells little."""
    deadline = Deadline(bench.clock, _STILL_WITHIN_S)
    count, since_s = -1, bench.clock.monotonic_s()
    while bench.clock.monotonic_s() - since_s < _STILL_FOR_S and not deadline.passed():
        there = sum(bench.broker.ends(run.topic).values())
        if there != count:
            count, since_s = there, bench.clock.monotonic_s()
        bench.clock.wait(LOOK_EVERY_S)


def _receive(bench: Bench, run: Run, watch: Watch, rows: int) -> None:
    """Have ``pg_recvlogical`` read the slot to the log's end, into nowhere."""
    words = (
        str(bench.place.programs / "bin" / "pg_recvlogical"),
        *("--dbname", run.source.dsn, "--slot", run.name, "--start", "--no-loop"),
        *("--endpos", run.source.end_lsn(), "--file", "/dev/null"),
        *("--option", "proto_version=1"),
        *("--option", f"publication_names={PUBLICATION}"),
    )
    deadline = Deadline(bench.clock, _START_WITHIN_S + rows / _SLOWEST_PER_S)
    with Client(bench.place, run.name, words) as client:
        watch.add("process", client.pid, is_new=True)
        while not client.is_done():
            watch.add("walsender", run.source.reader_pid(run.name), is_new=True)
            watch.look()
            if deadline.passed():
                log = bench.place.launcher.log(run.name)
                raise BenchError(told(run.name, "not done in time", log))
            bench.clock.wait(LOOK_EVERY_S / 10)
