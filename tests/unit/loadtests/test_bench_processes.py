"""Processes of a benchmark that end too early: an error says so at once."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from towpath.loadtests.bench.context import translated
from towpath.loadtests.bench.publishers import ClientProgram
from towpath.loadtests.bench.sinks.catch_up import SinkCatchUp
from towpath.loadtests.bench.snapshot.fill import run_load
from towpath.loadtests.bench.snapshot.source import FillRun, Load
from towpath.loadtests.errors import BenchError
from towpath.schemas.clock import SystemClock

PID_OF_NOBODY = 2**22 + 1


class HastyClock(SystemClock):
    """Each wait takes ten minutes of its own time."""

    passed_s = 0.0

    def monotonic_s(self) -> float:
        """Return the time that the waits took."""
        return self.passed_s

    def wait(self, seconds: float) -> None:
        """Let ten minutes pass."""
        del seconds
        self.passed_s += 600.0


@pytest.fixture
def ended() -> Iterator[int]:
    """Provide a process that has ended, and that its parent has not reaped."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        until_ended(psutil.Process(child.pid))
        yield child.pid


def until_ended(*processes: psutil.Process) -> None:
    """Wait until processes have ended, and do not reap them."""
    while any(one.status() != psutil.STATUS_ZOMBIE for one in processes):
        SystemClock().wait(0.01)


def catching_up(folder: Path, driver: int, workers: tuple[int, ...] = ()) -> Any:
    """Make the measurement of a sink whose driver is a given process."""
    launcher = SimpleNamespace(
        start=lambda _name, _words: driver,
        stop=lambda _name: None,
        log=lambda name: folder / f"{name}.log",
    )
    environment = SimpleNamespace(broker_pid=None, towpath=(), launcher=launcher)
    screen = SimpleNamespace(begin=lambda _what, _total: lambda _done: None)
    bench = SimpleNamespace(environment=environment, clock=HastyClock(), screen=screen)
    backlog: Any = SimpleNamespace(
        bench=bench,
        state=folder,
        config=folder / "sinks.toml",
        run=SimpleNamespace(topic="t"),
        ends={0: 5},
    )
    return SinkCatchUp(backlog, "cache", {}, workers)


def test_a_driver_that_has_ended_is_noticed_at_once(tmp_path: Path, ended: int):
    """
    A process that was not reaped still has an id, but does not run.
    """
    with pytest.raises(BenchError, match="it ended"):
        catching_up(tmp_path, ended).measure()


def test_a_worker_that_is_gone_is_an_error_of_the_benchmark(tmp_path: Path):
    """
    The driver runs, and one of the cluster's workers does not.
    """
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as driver:
        try:
            with pytest.raises(BenchError, match="a worker ended"):
                catching_up(tmp_path, driver.pid, (PID_OF_NOBODY,)).measure()
        finally:
            driver.kill()


@pytest.mark.parametrize("code", [0, 3])
def test_a_load_that_ended_early_voids_the_run(tmp_path: Path, code: int):
    """
    Without its updates, a run would report the speed on a quiet server.
    """
    program = tmp_path / "bin" / "pgbench"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexit {code}\n", encoding="utf-8")
    program.chmod(0o755)
    environment = SimpleNamespace(
        folder=tmp_path,
        programs=tmp_path,
        env={},
        launcher=SimpleNamespace(log=lambda name: tmp_path / f"{name}.log"),
    )
    options = SimpleNamespace(rows=5)
    bench: Any = SimpleNamespace(environment=environment, options=options)
    source: Any = SimpleNamespace(dsn="postgresql://h/d")
    run = FillRun(system="relay", name="x", source=source, load=Load.UPDATES)
    before = psutil.Process().children()

    with pytest.raises(BenchError, match="pgbench: ended"), run_load(bench, run):
        until_ended(*(p for p in psutil.Process().children() if p not in before))


def test_an_answer_that_does_not_come_is_the_reason_of_an_error():
    """
    The future of a request to the broker times out without a text.
    """
    with pytest.raises(BenchError, match="failed: no answer in time"), translated():
        Future[None]().result(0.0)


def test_a_program_that_is_missing_is_an_error_of_the_benchmark(tmp_path: Path):
    """
    A system's Postgres may come without pgbench.
    """
    environment: Any = SimpleNamespace(
        folder=tmp_path,
        env={},
        launcher=SimpleNamespace(log=lambda name: tmp_path / f"{name}.log"),
    )
    program = ClientProgram(environment, "pgbench", (str(tmp_path / "pgbench"),))

    with pytest.raises(BenchError, match="pgbench cannot be started"), program:
        pass
