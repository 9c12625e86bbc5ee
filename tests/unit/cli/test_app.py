"""Behavior that all commands share: exit codes, errors, and the search for files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from towpath.cli import app as root
from towpath.cli.options import config_file, state_folder
from towpath.schemas.failure import ConfigurationError, UnavailableError, UsageError


def test_our_failure_is_printed_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The message and remedy go to standard error; the class determines the exit code.
    """

    def fail(_: list[str]) -> None:
        message = "the broker is gone"
        raise UnavailableError(message)

    monkeypatch.setattr(root, "app", fail)

    code = root.run([])

    errors = capsys.readouterr().err
    assert code == 3

    assert errors == f"error: the broker is gone\nremedy: {UnavailableError.remedy}\n"


def test_configuration_mistakes_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    All mistakes are printed, one per line.
    """

    def fail(_: list[str]) -> None:
        raise ConfigurationError(["kafka: missing", "relay.x: unknown key"])

    monkeypatch.setattr(root, "app", fail)

    assert root.run([]) == 2

    assert "kafka: missing\nrelay.x: unknown key" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["--log-format", "--log-format="])
def test_a_log_format_without_a_value_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], given: str
) -> None:
    """The error names the two formats, whether or not the command logs anything."""
    assert 2 == root.run(["status", given])

    error = "error: --log-format has no value: give human or json\n"
    assert f"{error}remedy: {UsageError.remedy}\n" == capsys.readouterr().err


def test_an_unexpected_exception_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    An exception outside the failure tree keeps its traceback.
    """

    def fail(_: list[str]) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(root, "app", fail)

    with pytest.raises(ZeroDivisionError):
        root.run([])


def test_an_interrupted_command_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    After Ctrl-C, the exit code is the one that a shell uses.
    """

    def fail(_: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(root, "app", fail)

    assert root.run([]) == root.INTERRUPTED


@pytest.mark.parametrize(("code", "expected"), [(None, 0), (0, 0), (7, 7), ("x", 2)])
def test_a_command_that_calls_exit_keeps_its_code(
    code: int | str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    ``sys.exit()`` without a code is a success.
    """

    def leave(_: list[str]) -> None:
        sys.exit(code)

    monkeypatch.setattr(root, "app", leave)

    assert expected == root.run([])


def test_paths_follow_option_then_variable_then_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The option wins over the variable, and the variable over an existing file.
    """
    monkeypatch.chdir(tmp_path)
    named = {"TOWPATH_STATE": "elsewhere", "TOWPATH_CONFIG": "other.toml"}
    found = [
        config_file(Path("mine.toml"), named),
        config_file(None, named),
        config_file(None, {"TOWPATH_STATE": "elsewhere"}),
        config_file(None, {}),
        state_folder(None, {}),
    ]
    (tmp_path / "towpath.toml").touch()
    found.append(config_file(None, {}))

    expected = [
        Path("mine.toml"),
        Path("other.toml"),
        Path("elsewhere/towpath.toml"),
        Path(".towpath/towpath.toml"),
        Path(".towpath"),
        Path("towpath.toml"),
    ]

    assert expected == found


def test_a_closed_pipe_is_not_a_failure(tmp_path: Path) -> None:
    """
    ``towpath config show | head -1`` reads one line, and no error is printed.
    """
    path = tmp_path / "towpath.toml"
    path.write_text(
        'version = 1\n[[source]]\ndsn = "postgresql:///x"\n'
        '[kafka]\nbootstrap_servers = "localhost:9092"\n'
    )
    args = [sys.executable, "-m", "towpath.cli", "config", "show", "--config"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*args, path], stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60
    )
    os.close(writing)

    assert (root.READER_GONE, b"") == (done.returncode, done.stderr)


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_not_a_failure(closed: str) -> None:
    """
    A service may have no streams: the command does its work and keeps its exit code.
    """
    args = [sys.executable, "-m", "towpath.cli", "--version"]
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *args], check=False, timeout=60
    )

    assert 0 == done.returncode


def test_an_unknown_driver_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    No engine is started for it; the error lists the existing drivers.
    """
    path = tmp_path / "towpath.toml"
    path.write_text(
        'version = 1\n[[source]]\ndsn = "postgresql:///x"\ntables = ["s.t"]\n'
        '[kafka]\nbootstrap_servers = "localhost:9092"\n'
        '[[sink]]\nname = "cache"\nkind = "cache"\nurl = "redis://x"\n'
        'driver = "serving"\n[[sink.route]]\ntopic = "towpath.s.t"\nname = "t"\n'
    )
    code = root.run(["sink", "run", "--driver", "servin", "--config", str(path)])

    errors = capsys.readouterr().err
    assert (2, True, True) == (
        code,
        "no sink has the driver 'servin' (drivers: serving)" in errors,
        "did you mean 'serving'?" in errors,
    )


@pytest.mark.parametrize(
    "args",
    [
        ("outbox", "clean", "--keep-days", "inf"),
        ("outbox", "clean", "--keep-days", "1e6"),
        ("outbox", "clean", "--days-ahead", "3000"),
        ("relay", "state", "show", "--parked", "-1"),
    ],
)
def test_a_number_out_of_range_is_refused(
    args: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """
    The command reports it before it connects; an age, for example, may be too high.
    """
    config = tmp_path / "towpath.toml"
    config.write_text(
        """version = 1
[source]
dsn = "postgresql://127.0.0.1:1/x"
[kafka]
bootstrap_servers = "x"
"""
    )

    assert 2 == root.run([*args, "--config", str(config)])
    assert args[-2] in capsys.readouterr().err
