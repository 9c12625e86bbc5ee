"""The file for a result or a plot is checked before the run, not after it."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from towpath.deploy.bench import runner
from towpath.deploy.bench.runner import AllOptions, CaptureOutput
from towpath.deploy.cli.trials import demo_platform
from towpath.deploy.demo import run
from towpath.deploy.demo.stage import DemoOptions, JoinedPlatform
from towpath.schemas.failure import UsageError


def begun(*_, **__):
    """Fail, because the run has begun."""
    pytest.fail("the run has begun")


@pytest.fixture(params=["a folder", "below a file", "in no folder"])
def unwritable(request, tmp_path):
    """Provide a path at which no file can be written."""
    (tmp_path / "file").touch()
    return {
        "a folder": tmp_path,
        "below a file": tmp_path / "file" / "plot",
        "in no folder": tmp_path / "none" / "plot",
    }[request.param]


def test_an_unwritable_result_or_plot_file_is_refused_before_the_run(
    unwritable, monkeypatch
):
    """
    A mistyped option must not cost an hour of measurements.
    """
    monkeypatch.setattr(runner, "prepare", begun)
    monkeypatch.setattr("towpath.deploy.demo.run.run_demo", begun)
    options = AllOptions(
        is_quick=True, with_debezium=False, as_json=False, plot_file=unwritable
    )

    with pytest.raises(UsageError, match=r"--plot: .* folder"):
        runner.run_all(options)
    with pytest.raises(UsageError, match=r"--plot: .* folder"):
        runner.run_capture_comparison(
            None, CaptureOutput(as_json=False, plot_file=unwritable), keep=False
        )
    with pytest.raises(UsageError, match=r"--json: .* folder"):
        demo_platform(json=unwritable, state=unwritable)


def test_a_plot_that_cannot_be_written_does_not_lose_the_result(
    tmp_path, monkeypatch, capsys
):
    """
    The disk may have filled up during the hours of the benchmarks.
    """

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name, result in (("prepare", None), ("_run", (0, {}))):
        monkeypatch.setattr(runner, name, lambda *_, found=result: found)
    monkeypatch.setattr(runner.summary, "plot", lambda _: "<svg/>")
    monkeypatch.setattr(Path, "write_text", full)
    options = AllOptions(
        is_quick=True, with_debezium=False, as_json=True, plot_file=tmp_path / "plot"
    )
    with pytest.raises(UsageError, match=r"--plot: .* No space left"):
        runner.run_all(options)

    assert {"relay", "sinks"} <= json.loads(capsys.readouterr().out)["took_s"].keys()


def test_a_result_that_cannot_be_written_gives_one_clear_error(tmp_path, monkeypatch):
    """
    The demo has already printed it.
    """
    result = SimpleNamespace(as_json=dict, equal=True, adds_up=True)
    shop = SimpleNamespace(database=SimpleNamespace(dsn=""))
    monkeypatch.setattr(run, "load", lambda *_: shop)
    monkeypatch.setattr(run.platform, "count_orders", lambda _: 0)
    monkeypatch.setattr(run, "_run_joined", lambda *_: result)
    monkeypatch.setattr(run.table, "draw", lambda _: "")
    monkeypatch.setattr(run, "kill_children", lambda _: None)
    options = DemoOptions(json_file=tmp_path)
    joined = JoinedPlatform(Path("towpath.toml"), "http://orders", {})
    with pytest.raises(UsageError, match=r"--json: .* Is a directory"):
        run.run_joined(options, joined, tmp_path, Console(quiet=True))
