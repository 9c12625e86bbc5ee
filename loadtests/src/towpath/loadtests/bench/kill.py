"""
A kill: what a ``kill -9`` in the middle of a drain costs.

The system is killed once the topic has its share of the backlog, and started again at
once. Lost and repeated events are counted in the topic; the way to the first *new*
event begins with the second start.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from towpath.loadtests.bench import publishers
from towpath.loadtests.bench.drain import Goal, until_still, until_there
from towpath.loadtests.bench.figures import Figures
from towpath.loadtests.bench.plan import Bench, Run
from towpath.loadtests.bench.verdict import Arrival, Fact, Verdict, judge
from towpath.loadtests.bench.watch import Watch
from towpath.schemas.clock import Deadline

ROWS: Final = 100_000
SHARE: Final = 0.4
_MS: Final = 1000.0
_LOOK_EVERY_S: Final = 0.005
# What the dead process left in its socket is appended within a few milliseconds.
_LAST_WORDS_S: Final = 0.1
_SHARE_WITHIN_S: Final = 90.0


def kill(
    bench: Bench, run: Run, facts: Mapping[bytes, Fact]
) -> tuple[Figures, Verdict]:
    """
    Kill a publisher in the middle of a backlog, and let it finish.

    Raises:
        BenchError: It was not done in time.
    """
    tell = bench.screen.begin(run.name, len(facts))
    pid = publishers.start(bench, run)
    _until_share(bench, run, pid, round(len(facts) * SHARE))
    bench.place.launcher.kill(run.name)
    bench.clock.wait(_LAST_WORDS_S)
    before = bench.broker.ends(run.topic)
    started_ms = bench.clock.now().timestamp() * _MS
    pid = publishers.start(bench, run)
    until_there(bench, run, pid, Watch(), Goal(len(facts), tell))
    until_still(bench, run)
    bench.place.launcher.stop(run.name)
    arrivals = bench.broker.read(run.topic)
    verdict = judge(facts, arrivals)
    figures: Figures = {
        "killed_at_events": float(sum(before.values())),
        "lost": float(verdict.lost),
        "duplicates": float(verdict.duplicates),
    }
    if verdict.events > verdict.lost:
        first_ms = first_new_ms(arrivals, before)
        figures["first_new_event_s"] = (first_ms - started_ms) / _MS
    return figures, verdict


def first_new_ms(arrivals: Sequence[Arrival], before: Mapping[int, int]) -> float:
    """Return the append time of the first event that no offset before the end had."""
    old = {a.event_id for a in arrivals if a.offset < before.get(a.partition, 0)}
    times_ms = [a.appended_ms for a in arrivals if a.event_id not in old]
    return float(min(times_ms, default=0))


def _until_share(bench: Bench, run: Run, pid: int, count: int) -> None:
    deadline = Deadline(bench.clock, _SHARE_WITHIN_S)
    while sum(bench.broker.ends(run.topic).values()) < count:
        publishers.check(bench, run, pid)
        if deadline.passed():
            break
        bench.clock.wait(_LOOK_EVERY_S)
