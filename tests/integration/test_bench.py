"""The relay benchmark at small scale: its figures, its failures and its cleanup."""

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from support.command import towpath
from support.waiting import until
from towpath.loadtests.bench.broker import Broker
from towpath.schemas.clock import Deadline, SystemClock

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

COMMAND = ("bench", "relay")
SMALL = ("--rows", "2000", "--rounds", "1", "--duration", "2", "--warm-up", "1")
LONG = ("--case", "steady_500", "--duration", "60", "--warm-up", "0")


def until_a_relay_runs(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until the benchmark has started a relay."""
    deadline = Deadline(SystemClock(), 60)
    while not list(folder.glob("*/run/bench_steady_500_relay_0.pid")):
        assert not deadline.passed()
        assert process.poll() is None, process.stderr.read()
        SystemClock().wait(0.1)


def test_the_command_measures_verifies_and_cleans_up(tmp_path: Path):
    """
    The output is a JSON object with all systems' figures and ratios; no file remains.
    """
    args = ("--json", *SMALL, "--case", "drain_100", "--case", "steady_500")
    with towpath(tmp_path, *COMMAND, *args) as process:
        output, errors = process.communicate(timeout=80)
    assert process.returncode == 0, errors.decode()
    report = json.loads(output)
    drain, steady = report["cases"]["drain_100"], report["cases"]["steady_500"]
    relay = steady["systems"]["relay"]

    assert (
        True,
        ["drain_100", "steady_500"],
        ["limit", "pg_recvlogical", "relay"],
        True,
        None,
        True,
        [],
    ) == (
        report["verified"],
        list(report["cases"]),
        sorted(drain["systems"]),
        drain["ratio_to_limit"] > 0,
        drain["ratio_to_debezium"],
        0 < relay["p50_ms"]["median"] <= relay["max_ms"]["median"],
        list(tmp_path.iterdir()),
    )


@pytest.mark.soak
def test_a_case_is_printed_when_it_ends_and_an_interrupt_cleans_up(tmp_path: Path):
    """
    The first case's table is printed before the next case is measured.

    Ctrl-C then gives exit code 130; no process of the benchmark and no file remains.
    """
    args = ("--rows", "2000", "--rounds", "1", "--case", "drain_100", *LONG)
    with towpath(tmp_path, *COMMAND, *args) as process:
        first = process.stdout.readline() + process.stdout.readline()
        until_a_relay_runs(process, tmp_path)
        processes = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    assert (True, 130, True, [], []) == (
        b"drain_100" in first,
        process.returncode,
        len(processes) >= 3,
        [one for one in processes if one.is_running()],
        list(tmp_path.iterdir()),
    )


@pytest.mark.soak
def test_a_killed_server_ends_the_benchmark_with_one_error(tmp_path: Path):
    """
    A server that dies gives exit code 3 and a remedy; no file remains.
    """
    with towpath(tmp_path, *COMMAND, *LONG) as process:
        until_a_relay_runs(process, tmp_path)
        (postgres,) = tmp_path.glob("*/run/postgres.pid")
        os.kill(int(postgres.read_text().split()[0]), signal.SIGKILL)
        _, errors = process.communicate(timeout=60)

    assert (3, True, []) == (
        process.returncode,
        b"\nremedy: " in errors,
        list(tmp_path.iterdir()),
    )


def test_a_warm_up_writes_records_and_leaves_no_topic(stack):
    """
    All records that it counts were acknowledged.
    """
    broker = Broker(stack.up("kafka").kafka, SystemClock())
    written = broker.warm_up(0.5)
    until(lambda: not broker.ends("bench_warm_up"), "the topic is deleted")

    assert written > 0
    assert written % 200 == 0
