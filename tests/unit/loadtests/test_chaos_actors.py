"""The chaos actors: a seed repeats each actor's steps."""

import contextlib
import dataclasses
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from towpath.loadtests.chaos import actor as actors
from towpath.loadtests.chaos.alterations import TableAlterer
from towpath.loadtests.chaos.context import (
    ChaosEnvironment,
    ChaosOptions,
    ChaosResult,
    QuietScreen,
    total,
)
from towpath.loadtests.chaos.relay import ChaosRelay
from towpath.loadtests.chaos.requests import SnapshotRequester
from towpath.loadtests.chaos.run import run_chaos
from towpath.loadtests.chaos.writers import Writer
from towpath.loadtests.errors import ChaosError
from towpath.schemas.clock import SystemClock

STEPS = 300


class Session:
    """Records statements; each table has two added columns, and no signal is open."""

    closed = False

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.numbers: set[int] = set()

    def execute(self, statement: Any, arguments: Any = None) -> Any:
        """Record a statement; answer the actors' queries."""
        text = statement if isinstance(statement, str) else statement.as_string(None)
        self.statements.append(f"{text} {arguments}")
        written = arguments if isinstance(arguments, dict) else {}
        self.numbers |= {written[name] for name in ("nr", "to") if name in written}
        if "attname" in text:
            return [("x0_1",), ("x0_2",)]
        return SimpleNamespace(fetchone=lambda: (0,), __iter__=lambda: iter(()))

    @contextlib.contextmanager
    def transaction(self, *, force_rollback: bool = False) -> Iterator[Any]:
        """Run the block."""
        yield SimpleNamespace(force_rollback=force_rollback)


def unreachable_environment(folder: Path) -> ChaosEnvironment:
    """Make an environment in which nothing can be reached."""
    nobody: Any = None
    return ChaosEnvironment(
        dsn="postgresql://nobody@127.0.0.1:1/nothing",
        kafka="",
        prefix="p",
        towpath=(),
        folder=folder,
        launcher=nobody,
        clock=SystemClock(),
    )


def after_steps(actor: Any) -> Session:
    """Return an actor's session after its first steps."""
    session = Session()
    actor.rest = lambda _longest_s: actor.random.random()
    for _ in range(STEPS):
        actor.step(session)
    return session


def statements_of(actor: Any) -> list[str]:
    """Return the statements of an actor's first steps."""
    return after_steps(actor).statements


@pytest.mark.parametrize("kind", ["writer", "shaper"])
def test_a_seed_repeats_the_same_steps(tmp_path: Path, kind: str):
    """
    Actors with the same seed take the same steps; one with a different seed does not.
    """
    environment = unreachable_environment(tmp_path)
    options = ChaosOptions(minutes=1, seed=0, late=False)

    def steps(seed: str) -> list[str]:
        if kind == "writer":
            return statements_of(Writer(environment, options, 2, seed))
        return statements_of(TableAlterer(environment, options, seed, 0))

    assert steps("1.0") == steps("1.0")
    assert steps("1.0") != steps("2.0")


def test_each_writer_has_numbers_of_its_own(tmp_path: Path):
    """
    Each key has only one writer, so its counter always rises.
    """
    environment = unreachable_environment(tmp_path)
    options = ChaosOptions(minutes=1, seed=0)
    used = [
        {number % options.writers for number in after_steps(writer).numbers}
        for writer in (
            Writer(environment, options, n, "1") for n in range(options.writers)
        )
    ]

    assert [{remainder} for remainder in range(options.writers)] == used


def test_a_failing_server_gives_one_error(tmp_path: Path):
    """
    The driver's error gives the reason, and the run's error gives a remedy.
    """
    options = ChaosOptions(minutes=1, seed=0)

    with pytest.raises(ChaosError, match="a server used by the run failed: connection"):
        run_chaos(unreachable_environment(tmp_path), options, QuietScreen())


def test_a_refused_step_of_the_killer_does_not_count_as_a_kill():
    """
    A refusal is counted twice: once in total and once by its SQLSTATE.
    """
    counts = Counter({"relay": 1, "refused": 1, "refused 57014": 1})
    result = ChaosResult(ChaosOptions(minutes=1, seed=0), {}, killed=counts)

    assert " 1 kills, " in result.line()


class GrowingKind(str):
    """A kind of step; while it is being counted, a second thread counts a new kind."""

    __slots__ = ("counts",)

    counts: Counter[str]

    def startswith(self, *words: Any) -> bool:
        """Count a new kind."""
        self.counts[f"{len(self.counts)}"] = 1
        return super().startswith(*words)


def test_steps_are_counted_while_an_actor_takes_its_first_step_of_a_kind():
    """
    The screen reads the counts of running threads.
    """
    kind = GrowingKind("one")
    kind.counts = Counter({kind: 2, "two": 1})

    assert total(kind.counts) == 3


class Refused(actors.Actor):
    """An actor that draws two numbers in each step, but only one in a refused step."""

    def __init__(self, environment: ChaosEnvironment, *refused: int) -> None:
        super().__init__(environment, "one", "1", 0.0)
        self.refused = refused
        self.drawn: list[float] = []

    def step(self, session: Any) -> None:
        """Draw, and be refused or draw again; the tenth step is the last."""
        del session
        self.drawn.append(self.random.random())
        if len(self.drawn) == 10:
            self._stopping.set()
        if len(self.drawn) in self.refused:
            raise psycopg.errors.LockNotAvailable
        self.random.random()


def test_a_refused_step_changes_no_later_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """
    Refusals depend on the machine, but a seed's choices must not.
    """
    session = SimpleNamespace(closed=False)
    monkeypatch.setattr(actors, "connect", lambda _: contextlib.nullcontext(session))

    def drawn(*refused: int) -> list[float]:
        one = Refused(unreachable_environment(tmp_path), *refused)
        with one:
            one._thread.join()
        return one.drawn

    assert drawn() == drawn(2, 3, 7)


def test_a_failed_cancellation_is_sent_again():
    """
    Otherwise the commit would remain invisible, and its session would wait.
    """
    sent: list[int] = []
    is_released = threading.Event()

    def cancel(timeout: float) -> None:
        del timeout
        sent.append(1)
        if len(sent) == 1:
            raise psycopg.errors.CancellationTimeout
        is_released.set()

    session: Any = SimpleNamespace(execute=lambda _: None, cancel_safe=cancel)
    with actors.LateCommit(session, 0.0):
        assert is_released.wait(2.0)


class RecordingLauncher:
    """A launcher of programs, each of which has a log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: Sequence[str]) -> int:
        """Start a program."""
        with self.log(name).open("wb") as output:
            self.children.append(subprocess.Popen([*command], stdout=output))
        return self.children[-1].pid

    def stop(self, _name: str) -> None:
        """Wait for the program's end."""
        self.children[-1].wait()

    def log(self, name: str) -> Path:
        """Return the log of a program."""
        return self.folder / f"{name}.log"


@pytest.mark.parametrize("code", [0, 3])
def test_a_run_begins_only_if_its_relay_was_prepared(tmp_path: Path, code: int):
    """
    If init failed after it had created the slot, everything else would be missing.
    """
    program = f"print('no topic', flush=True); raise SystemExit({code})"
    environment = dataclasses.replace(
        unreachable_environment(tmp_path),
        towpath=(sys.executable, "-c", program),
        launcher=RecordingLauncher(tmp_path),
    )
    relay = ChaosRelay(environment, seed=1)
    reason = r"relay init exited with code 3\n.*init.log:\nno topic"

    with pytest.raises(ChaosError, match=reason) if code else contextlib.nullcontext():
        relay.prepare()


class Refusing(Session):
    """A server that refuses the first two signals that resume snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    def execute(self, statement: Any, arguments: Any = None) -> Any:
        """Refuse, or record the statement."""
        if "resume-snapshot" in str(arguments) and self.refused < 2:
            self.refused += 1
            raise psycopg.errors.LockNotAvailable
        return super().execute(statement, arguments)


def test_paused_snapshots_are_resumed_despite_refusals_by_the_server(tmp_path: Path):
    """
    Otherwise the round's last snapshot would wait until the run declared it stuck.
    """
    options = ChaosOptions(minutes=1, seed=0)
    environment = dataclasses.replace(
        unreachable_environment(tmp_path), clock=StillClock()
    )
    requester: Any = SnapshotRequester(environment, options, "1", "r0")
    requester.rest = lambda _longest_s: None
    session: Any = Refusing()
    requester.pause(session)

    assert [True, True] == [
        kind in line
        for kind, line in zip(("pause", "resume"), session.statements, strict=True)
    ]


class StillClock(SystemClock):
    """A clock whose waits take no time."""

    def wait(self, delay_s: float) -> None:
        """Do not wait."""
