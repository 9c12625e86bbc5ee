"""The checkout benchmark at small scale: a rate, its backlogs and its verification."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Each test starts five servers, the relay, two Spark engines and the services.
pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(400)]

COMMAND = (sys.executable, "-m", "towpath.cli", "bench", "checkout", "--json")
SMALL = ("--orders", "2000", "--refine", "0", "--duration", "15")


def bench(folder: Path, *args: str) -> dict[str, Any]:
    """Run the command to completion, with its stack in the folder."""
    inherited = dict(os.environ)  # noqa: TID251 - a root
    with subprocess.Popen(
        [*COMMAND, *SMALL, *args],
        env=inherited | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            output, errors = process.communicate(timeout=360)
        except subprocess.TimeoutExpired:
            # An interrupt lets the command clean up after itself; a kill would not.
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate()
    assert process.returncode == 0, errors.decode()
    found: dict[str, Any] = json.loads(output)
    return found


def test_the_shop_is_measured_and_verified(tmp_path: Path):
    """
    Sagas complete, every sink has samples, and no file remains.
    """
    found = bench(tmp_path, "--rates", "4", "--warm-up", "10")
    (rate,) = found["cases"]["checkout"]["rates"]
    parts = {"orders", "inventory", "payments", "shipping", "relay", "postgres"}

    assert ((True, []), (4.0, 0, 0), []) == (
        (found["verified"], found["findings"]),
        (rate["rate_per_s"], rate["failures"], rate["restarts"]),
        list(tmp_path.iterdir()),
    )
    assert {"saga", "relay", "cache", "search", "warehouse"} == set(rate["backlogs"])
    assert parts <= set(rate["cpu"])
    assert min(rate["saga_samples"], rate["rows_per_s"], rate["events_per_s"]) > 0
    assert rate["saga_p50_ms"] <= rate["saga_p95_ms"]
    assert all(rate[f"{sink}_samples"] for sink in ("cache", "search", "warehouse"))


def test_relay_and_sinks_are_measured_with_rows_written_by_sql(tmp_path: Path):
    """
    No service runs; a writer commits the rows with SQL.
    """
    found = bench(tmp_path, "--case", "rows", "--rates", "500", "--warm-up", "5")
    (rate,) = found["cases"]["rows"]["rates"]

    assert ((True, []), (500.0, 0.0), (0, 0), []) == (
        (found["verified"], found["findings"]),
        (rate["rate_per_s"], rate["events_per_s"]),
        (rate["failures"], rate["restarts"]),
        list(tmp_path.iterdir()),
    )
    assert {"orders", "inventory", "payments", "shipping"}.isdisjoint(rate["cpu"])
    assert min(rate["reached_per_s"], rate["rows_per_s"]) > 0
    assert all(rate[f"{sink}_samples"] for sink in ("cache", "search", "warehouse"))
