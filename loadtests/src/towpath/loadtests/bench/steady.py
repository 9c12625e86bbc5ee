"""
A steady load: so many one-row transactions a second, and how soon each is in Kafka.

``pgbench`` commits at the rate, at random moments as many clients would, and waits for
nobody. What counts is the way from the commit record's own time to the broker's append,
of every event after the warm-up.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from towpath.loadtests.bench import publishers
from towpath.loadtests.bench.clients import Client, told
from towpath.loadtests.bench.drain import LOOK_EVERY_S, Goal, until_there
from towpath.loadtests.bench.errors import BenchError
from towpath.loadtests.bench.figures import Figures, latencies_ms, latency_figures
from towpath.loadtests.bench.plan import Bench, Run
from towpath.loadtests.bench.verdict import Fact, Verdict, judge
from towpath.loadtests.bench.watch import Watch, per_event_us
from towpath.schemas.clock import Deadline

# Each waits for its own flush; a group of them shares one.
_CLIENTS: Final = 16
_SERVING_WITHIN_S: Final = 90.0
# Looks are rarer here: they would be part of the load for as long as it lasts.
_LOOK_EVERY_S: Final = 1.0
_GRACE_S: Final = 30.0
_MICROSECONDS: Final = 1_000_000
_SCRIPT: Final = """\
\\set key random(0, 999)
\\set n random(0, 1000000000)
insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload)
values (gen_random_uuid(), 'bench', :key::int::text, 'Benched', bench.payload(:n));
"""


def follow(bench: Bench, run: Run, rate: int, truth: str) -> tuple[Figures, Verdict]:
    """
    Measure a publisher under a load that it has to keep up with.

    Args:
        bench: What all runs share.
        run: The run; its slot begins now.
        rate: Transactions a second.
        truth: A slot that begins now too, for what was committed.

    Raises:
        BenchError: The system ended, or did not keep up to the end.
    """
    options = bench.options
    watch = Watch()
    watch.add("broker", bench.place.broker_pid, is_new=False)
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
    until_there(bench, run, pid, Watch(), goal)
    bench.place.launcher.stop(run.name)
    facts = run.source.facts(truth)
    arrivals = bench.broker.read(run.topic)
    verdict = judge(facts, arrivals)
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


def _until_serving(bench: Bench, run: Run, pid: int) -> None:
    """Commit one event and wait until it is in Kafka: what comes now is followed."""
    run.source.fill(1, 1, bench.screen.begin(f"{run.name}: starting", 0))
    deadline = Deadline(bench.clock, _SERVING_WITHIN_S)
    while not sum(bench.broker.ends(run.topic).values()):
        publishers.check(bench, run, pid)
        if deadline.passed():
            log = bench.place.launcher.log(run.name)
            raise BenchError(told(run.name, "it does not read its slot", log))
        bench.clock.wait(LOOK_EVERY_S)


def _watch_load(bench: Bench, run: Run, client: Client, watch: Watch) -> int:
    """Sit the load out; return the microsecond since which it is measured."""
    options = bench.options
    whole_s = options.warm_up_s + options.duration_s
    tell = bench.screen.begin(f"{run.name}: seconds", int(whole_s))
    began_s = bench.clock.monotonic_s()
    bench.clock.wait(options.warm_up_s)
    since_us = int(bench.clock.now().timestamp() * _MICROSECONDS)
    watch.restart()
    while not client.is_done():
        watch.look()
        elapsed_s = bench.clock.monotonic_s() - began_s
        tell(int(elapsed_s))
        if elapsed_s > whole_s + _GRACE_S:
            log = bench.place.launcher.log("pgbench")
            raise BenchError(told("pgbench", "not done in time", log))
        left_s = max(LOOK_EVERY_S, whole_s - elapsed_s)
        bench.clock.wait(min(_LOOK_EVERY_S, left_s))
    watch.look()
    return since_us


def pgbench(bench: Bench, dsn: str, script: str, rate: int, for_s: float) -> Client:
    """Return a client that commits a script's transaction so often a second."""
    path = Path(bench.place.folder / "steady.sql")
    path.write_text(script, encoding="utf-8")
    words = (
        str(bench.place.programs / "bin" / "pgbench"),
        *("--no-vacuum", "--protocol", "prepared", "--file", str(path)),
        *("--client", str(_CLIENTS), "--rate", str(rate)),
        *("--time", str(round(for_s)), dsn),
    )
    return Client(bench.place, "pgbench", words)


def _rate(facts: Mapping[bytes, Fact], since_us: int) -> float:
    """Return what was really committed a second: the load's side of the bargain."""
    times_us = [f.committed_us for f in facts.values() if f.committed_us >= since_us]
    elapsed_s = (max(times_us) - since_us) / _MICROSECONDS
    return len(times_us) / elapsed_s
