"""The archives of a comparison, and the remains of benchmarks that were killed."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from cyclopts import ValidationError

from towpath.deploy.bench import merge, runner
from towpath.deploy.cli.bench import bench_app
from towpath.deploy.local.own_stack import clear_abandoned
from towpath.sinks.jars import store

PID_OF_NOBODY = 2**22 + 1


def test_the_archives_of_a_comparison_have_a_lock_of_their_own():
    """
    Each has a sha256, a size and its own file name; nobody else's lock names them.
    """
    jars = store.read_lock(runner.DEBEZIUM_LOCK)
    odd = [
        jar.coordinate
        for jar in jars
        if jar.use != "debezium"
        or len(jar.sha256) != 64
        or jar.size_bytes <= 0
        or jar.repository_path.name != jar.file
    ]
    others = {jar.use for jar in store.read_lock()}

    assert ([], len(jars), False, True) == (
        odd,
        len({jar.file for jar in jars}),
        "debezium" in others,
        any("debezium-connector-postgres:3.7.0.Final" in j.coordinate for j in jars),
    )


def test_a_failed_merge_is_not_hidden_by_a_missing_folder(tmp_path, monkeypatch):
    """
    An engine that fails at once has written nothing that could be deleted.
    """
    session = SimpleNamespace(stop=lambda: None)
    sink = SimpleNamespace(route=[])
    settings = SimpleNamespace(state_folder=tmp_path)
    monkeypatch.setattr(merge, "load", lambda *_: settings)
    monkeypatch.setattr(merge, "sink_named", lambda *_: sink)
    monkeypatch.setattr(merge, "_engine", lambda *_: None)
    monkeypatch.setattr(merge, "start_session", lambda _: session)

    with pytest.raises(IndexError):
        merge.main(tmp_path, "warehouse", tmp_path / "report")


def test_connect_gets_the_locked_archives_only():
    """
    The class path names files, so that whatever else lies in the store stays out.
    """
    words = runner.connect_command(Path("/java"), [Path("/s/a.jar"), Path("/s/b.jar")])

    assert ("/java/bin/java", "/s/a.jar:/s/b.jar", False) == (
        words[0],
        words[words.index("-cp") + 1],
        any("*" in word for word in words),
    )


def test_the_next_benchmark_removes_a_killed_ones_folder(tmp_path: Path):
    """
    A folder whose owner is alive, or that was kept, stays; an abandoned one goes.
    """
    folders = {}
    for name, owner in (("mine", os.getpid()), ("left", PID_OF_NOBODY), ("kept", None)):
        folders[name] = tmp_path / f"towpath-bench-{name}"
        folders[name].mkdir()
        if owner is not None:
            (folders[name] / "owner").write_text(f"{owner}\n")
    clear_abandoned("towpath-bench-", tmp_path)

    assert {"mine": True, "left": False, "kept": True} == {
        name: folder.exists() for name, folder in folders.items()
    }


def test_a_kill_searches_no_settings():
    """
    A kill needs no search: the two options together are an error, not half a run.
    """
    words = ["relay", "--kill", "--search"]

    with pytest.raises(ValidationError, match="Mutually exclusive"):
        bench_app.parse_args(words, print_error=False, exit_on_error=False)


def test_a_closed_terminal_ends_the_benchmark_that_runs(monkeypatch):
    """
    It runs in a session of its own, in which no other signal reaches it.
    """
    sent = []

    class Running:
        """A benchmark during which the terminal is closed."""

        returncode = 0

        def __init__(self, _command, **_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def communicate(self):
            """Receive the signal, and print nothing."""
            signal.raise_signal(signal.SIGHUP)
            return b"", None

        def send_signal(self, number):
            """Take a signal."""
            sent.append(number)

        def wait(self):
            """End."""

    monkeypatch.setattr(runner, "prepare", lambda *_: None)
    monkeypatch.setattr(runner.subprocess, "Popen", Running)
    options = runner.AllOptions(
        is_quick=True, with_debezium=False, as_json=True, plot_file=None
    )
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        with pytest.raises(KeyboardInterrupt):
            runner.run_all(options)
    finally:
        signal.signal(signal.SIGHUP, before)

    assert [signal.SIGINT] == sent
