"""Benchmark processes that end too early: an error is raised at once."""

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

UNUSED_PID = 2**22 + 1


class HastyClock(SystemClock):
    """A clock on which each wait takes ten minutes."""

    passed_s = 0.0

    def monotonic_s(self) -> float:
        """Return the time that the waits took."""
        return self.passed_s

    def wait(self, seconds: float) -> None:
        """Advance the clock by ten minutes."""
        del seconds
        self.passed_s += 600.0


@pytest.fixture
def ended() -> Iterator[int]:
    """Provide a process that has ended but was not reaped by its parent."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        until_ended(psutil.Process(child.pid))
        yield child.pid


def until_ended(*processes: psutil.Process) -> None:
    """Wait until processes have ended, but do not reap them."""
    while any(one.status() != psutil.STATUS_ZOMBIE for one in processes):
        SystemClock().wait(0.01)


def catching_up(folder: Path, driver: int, workers: tuple[int, ...] = ()) -> Any:
    """Make the measurement of a sink with a given process as its driver."""
    launcher = SimpleNamespace(
        start=lambda _name, _args: driver,
        stop=lambda _name: None,
        log=lambda name: folder / f"{name}.log",
    )
    environment = SimpleNamespace(broker_pid=None, towpath=(), launcher=launcher)
    screen = SimpleNamespace(begin=lambda _label, _total: lambda _done: None)
    bench = SimpleNamespace(environment=environment, clock=HastyClock(), screen=screen)
    backlog: Any = SimpleNamespace(
        bench=bench,
        state=folder,
        config=folder / "sinks.toml",
        run=SimpleNamespace(topic="t"),
        ends={0: 5},
    )
    return SinkCatchUp(backlog, "cache", {}, workers)


def test_an_ended_driver_is_detected_at_once(tmp_path: Path, ended: int):
    """
    A process that was not reaped still has a pid, but is not running.
    """
    with pytest.raises(BenchError, match="it ended"):
        catching_up(tmp_path, ended).measure()


def test_an_ended_worker_is_an_error_of_the_benchmark(tmp_path: Path):
    """
    The driver is running, but one of the cluster's workers is not.
    """
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as driver:
        try:
            with pytest.raises(BenchError, match="a worker ended"):
                catching_up(tmp_path, driver.pid, (UNUSED_PID,)).measure()
        finally:
            driver.kill()


@pytest.mark.parametrize(
    ("code", "reason"), [(0, "ended before"), (3, "exited with code 3")]
)
def test_a_load_that_ended_early_voids_the_run(tmp_path: Path, code: int, reason: str):
    """
    Without its updates, a run would report the speed on an idle server.
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

    with (
        pytest.raises(BenchError, match=f"pgbench: {reason}"),
        run_load(bench, run),
    ):
        until_ended(*(p for p in psutil.Process().children() if p not in before))


def test_a_missing_response_from_the_broker_is_the_reason_for_an_error():
    """
    The future of a request to the broker times out without a message.
    """
    with pytest.raises(BenchError, match="failed: no answer in time"), translated():
        Future[None]().result(0.0)


def test_a_missing_program_is_an_error_of_the_benchmark(tmp_path: Path):
    """
    A system's Postgres may be installed without pgbench.
    """
    environment: Any = SimpleNamespace(
        folder=tmp_path,
        env={},
        launcher=SimpleNamespace(log=lambda name: tmp_path / f"{name}.log"),
    )
    program = ClientProgram(environment, "pgbench", (str(tmp_path / "pgbench"),))

    with pytest.raises(BenchError, match="pgbench cannot be started"), program:
        pass
