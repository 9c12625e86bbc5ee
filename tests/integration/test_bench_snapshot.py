"""The snapshot benchmark at small scale: verified figures, or none if a row is lost."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

COMMAND = (sys.executable, "-m", "towpath.cli", "bench", "snapshot", "--json")
SMALL = ("--rows", "20000", "--duration", "2", "--warm-up", "1")

# ``sitecustomize`` of every Python process in the benchmark: instead of one row, the
# producer sends the preceding row again.
DEFECT = """
import confluent_kafka

class Losing(confluent_kafka.Producer):
    last = None, None, None

    def produce(self, topic, value=None, key=None, partition=-1, *rest, **named):
        if topic.endswith("bench.item") and key is not None:
            if b'"id":77}' in key and b'"op":"r"' in value:
                value, key, partition = self.last
            self.last = value, key, partition
        return super().produce(topic, value, key, partition, *rest, **named)

confluent_kafka.Producer = Losing
"""


def bench(folder: Path, *args: str, **env: str) -> tuple[int, bytes, bytes]:
    """Run the command to completion, with its stack in the folder."""
    inherited = dict(os.environ)  # noqa: TID251 - a root
    with subprocess.Popen(
        [*COMMAND, *args],
        env=inherited | {"TMPDIR": str(folder)} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            output, errors = process.communicate(timeout=75)
        except subprocess.TimeoutExpired:
            # An interrupt lets the command clean up after itself; a kill would not.
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate()
        return process.returncode, output, errors


@pytest.mark.parametrize(
    ("load", "has_latency"),
    [
        ("updates", True),
        pytest.param("quiet", False, marks=pytest.mark.soak),
    ],
)
def test_a_snapshot_is_measured_and_verified(tmp_path: Path, load, has_latency):
    """
    The topic has every key, last value and update.

    The report has the rate and the costs.
    """
    args = (*SMALL, "--case", "million_rows", "--load", load)
    code, output, errors = bench(tmp_path, *args)
    assert code == 0, errors.decode()
    report = json.loads(output)
    case = report["cases"]["million_rows"]
    relay = case["loads"][load]["systems"]["relay"]

    assert (
        (True, [], 20_000),
        ([load], ["copy", "relay"], None),
        (True, True, True),
        (True, 0.0, has_latency),
        [],
    ) == (
        (report["verified"], report["findings"], report["rows"]),
        (
            list(case["loads"]),
            sorted(case["loads"][load]["systems"]),
            case["ratio_to_debezium"],
        ),
        (
            case["share_of_copy"] > 0,
            case["peak_rss_bytes"] > 0,
            case["paper"]["relay"]["topic_bytes"] > 0,
        ),
        (
            relay["rows_read"]["median"] >= 19_000,
            relay["stale_rows"]["median"],
            "idle_p99_ms" in relay,
        ),
        list(tmp_path.iterdir()),
    )


@pytest.mark.soak
def test_a_lost_row_leaves_no_figure(tmp_path: Path):
    """
    One missing row of 20,000 gives exit code 1 and a finding, but no figures.
    """
    (tmp_path / "defect").mkdir()
    (tmp_path / "defect" / "sitecustomize.py").write_text(DEFECT, encoding="utf-8")
    inherited = os.environ.get("PYTHONPATH", "")  # noqa: TID251 - a root
    path = os.pathsep.join(filter(None, (str(tmp_path / "defect"), inherited)))
    args = (*SMALL, "--load", "quiet")
    code, output, errors = bench(tmp_path, *args, PYTHONPATH=path)
    assert output, errors.decode()
    report = json.loads(output)

    assert (
        1,
        (False, {}),
        ["bench_fill_quiet_relay_0: 1 lost"],
        ["defect"],
    ) == (
        code,
        (report["verified"], report["cases"]),
        report["findings"],
        [path.name for path in tmp_path.iterdir()],
    )
