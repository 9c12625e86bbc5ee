"""A file for a result or a plot is checked before the run, not after it."""

import pytest

from towpath.deploy.bench import runner
from towpath.deploy.bench.runner import AllOptions, CaptureOutput
from towpath.deploy.cli.trials import demo_platform
from towpath.schemas.failure import UsageError


def begun(*_, **__):
    """Fail, since the run has begun."""
    pytest.fail("the run has begun")


@pytest.fixture(params=["a folder", "below a file", "in no folder"])
def place(request, tmp_path):
    """Provide a place where no file can be written."""
    (tmp_path / "file").touch()
    return {
        "a folder": tmp_path,
        "below a file": tmp_path / "file" / "plot",
        "in no folder": tmp_path / "none" / "plot",
    }[request.param]


def test_the_file_of_a_result_or_a_plot_can_be_written(place, monkeypatch):
    """
    A measurement of an hour is not lost for a mistyped option.
    """
    monkeypatch.setattr(runner, "prepare", begun)
    monkeypatch.setattr("towpath.deploy.demo.run.run_demo", begun)
    options = AllOptions(
        is_quick=True, with_debezium=False, as_json=False, plot_file=place
    )

    with pytest.raises(UsageError, match=r"--plot: .* folder"):
        runner.run_all(options)
    with pytest.raises(UsageError, match=r"--plot: .* folder"):
        runner.run_capture_comparison(
            None, CaptureOutput(as_json=False, plot_file=place), keep=False
        )
    with pytest.raises(UsageError, match=r"--json: .* folder"):
        demo_platform(json=place, state=place)
