"""The sink benchmark at small scale: verified figures, or none if a value is wrong."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Each test starts five servers, the relay, and a Spark engine for each sink.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

COMMAND = (sys.executable, "-m", "towpath.cli", "bench", "sinks", "--json")

# ``sitecustomize`` of every Python process in the benchmark: it sends the cache one
# wrong value.
DEFECT = """
import importlib.util
import sys

class Wrong:
    def find_spec(self, name, path=None, target=None):
        if name != "towpath.sinks.targets.cache.pipeline":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            send = module.packed_call
            module.packed_call = lambda name, count, keys, rest: send(
                name, count, keys, [p.replace(b'"0.77"', b'"0.78"') for p in rest]
            )
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Wrong())
"""


def bench(
    folder: Path, *args: str, rows: int = 5_000, **env: str
) -> tuple[int, bytes, bytes]:
    """Run the command to completion, with its stack in the folder."""
    inherited = dict(os.environ)  # noqa: TID251 - a root
    with subprocess.Popen(
        [*COMMAND, "--rows", str(rows), *args],
        env=inherited | {"TMPDIR": str(folder)} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            output, errors = process.communicate(timeout=270)
        except subprocess.TimeoutExpired:
            # An interrupt lets the command clean up after itself; a kill would not.
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate()
        return process.returncode, output, errors


@pytest.mark.parametrize(
    "sinks",
    [
        pytest.param({"cache": "hset"}, id="cache"),
        pytest.param(
            {"cache": "hset", "search": "bulk", "warehouse": "merge"},
            marks=pytest.mark.soak,
            id="all",
        ),
    ],
)
def test_every_sink_catches_up_and_is_verified(tmp_path: Path, sinks: dict[str, str]):
    """
    The report has each sink's rates, ratios and memory; no file remains.
    """
    args = [arg for sink in sinks for arg in ("--sink", sink)]
    code, output, errors = bench(tmp_path, "--case", "catch_up", *args)
    assert code == 0, errors.decode()
    report = json.loads(output)
    case = report["cases"]["catch_up"]
    ratios = [f"{sink}_ratio_to_{other}" for sink, other in sinks.items()]
    numbers = ("cache_rows_per_s", *ratios, "memory_bytes")
    systems = case["systems"]

    assert (
        (True, [], 5_000, []),
        sorted([*sinks, *sinks.values()]),
        [True] * len(sinks),
        [],
    ) == (
        (
            report["verified"],
            report["findings"],
            case["rows"],
            [name for name in numbers if not case[name]],
        ),
        sorted(systems),
        [
            systems[name]["rows_per_s"] > systems[name]["from_start_per_s"] > 0
            for name in sinks
        ],
        list(tmp_path.iterdir()),
    )


@pytest.mark.soak
def test_a_wrong_value_leaves_no_figure(tmp_path: Path):
    """
    One wrong amount among 5,000 rows in the cache gives exit code 1 and no figures.
    """
    (tmp_path / "defect").mkdir()
    (tmp_path / "defect" / "sitecustomize.py").write_text(DEFECT, encoding="utf-8")
    inherited = os.environ.get("PYTHONPATH", "")  # noqa: TID251 - a root
    path = os.pathsep.join(filter(None, (str(tmp_path / "defect"), inherited)))
    args = ("--case", "catch_up", "--sink", "cache")
    code, output, errors = bench(tmp_path, *args, PYTHONPATH=path)
    assert output, errors.decode()
    report = json.loads(output)

    assert (1, (False, {}), ["catch_up cache: 1 difference"], ["defect"]) == (
        code,
        (report["verified"], report["cases"]),
        report["findings"],
        [path.name for path in tmp_path.iterdir()],
    )


# Every run of the demo covers this code: the load, and the lag of three sinks.
@pytest.mark.soak
def test_checkouts_are_measured_and_verified(tmp_path: Path):
    """
    No sample of the three sinks is lost in a few seconds of checkouts.
    """
    args = ("--case", "checkout", "--rate", "4", "--duration", "4", "--warm-up", "1")
    code, output, errors = bench(tmp_path, *args)
    assert code == 0, errors.decode()
    report = json.loads(output)
    case = report["cases"]["checkout"]
    names = [f"{sink}_p99_ms" for sink in ("cache", "search", "warehouse")]

    assert ((True, 4.0, 0), [], [4.0], []) == (
        (report["verified"], case["rate_per_s"], case["lost"]),
        [name for name in names if not case[name]],
        [rate["rate_per_s"] for rate in case["rates"]],
        list(tmp_path.iterdir()),
    )


# The test starts six Spark engines, four of them with a cluster.
@pytest.mark.soak
@pytest.mark.timeout(600)
def test_executors_are_measured_against_the_driver(tmp_path: Path):
    """
    The cache equals its source each time, and no record is left to the driver.
    """
    code, output, errors = bench(tmp_path, "--cluster", "--sink", "cache", rows=20_000)
    assert code == 0, errors.decode()
    report = json.loads(output)
    case = report["cases"]["cluster"]
    systems = case["systems"]
    names = [
        f"{sink}_{system}"
        for sink in ("cache", "null")
        for system in ("driver", "one_worker", "two_workers")
    ]

    assert (True, sorted(names), [0.0] * len(names), []) == (
        report["verified"],
        sorted(systems),
        [systems[name]["left"] for name in names],
        list(tmp_path.iterdir()),
    )
    assert all(systems[name]["rows_per_s"] > 0 for name in names)
    assert case["null_cpu_ratio"] > 0
