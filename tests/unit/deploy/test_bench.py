"""The archives of a comparison, and leftovers of killed benchmarks."""

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

UNUSED_PID = 2**22 + 1


def test_the_archives_of_a_comparison_have_a_lock_of_their_own():
    """
    Each archive has a sha256, a size and its own file name; no other lock lists it.
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
    The class path lists files, so other archives in the store are not loaded.
    """
    args = runner.connect_command(Path("/java"), [Path("/s/a.jar"), Path("/s/b.jar")])

    assert ("/java/bin/java", "/s/a.jar:/s/b.jar", False) == (
        args[0],
        args[args.index("-cp") + 1],
        any("*" in arg for arg in args),
    )


def test_the_next_benchmark_removes_the_folder_of_a_killed_one(tmp_path: Path):
    """
    Folders with a live owner, or kept on purpose, remain; others are deleted.
    """
    folders = {}
    for name, owner in (
        ("mine", os.getpid()),
        ("abandoned", UNUSED_PID),
        ("kept", None),
    ):
        folders[name] = tmp_path / f"towpath-bench-{name}"
        folders[name].mkdir()
        if owner is not None:
            (folders[name] / "owner").write_text(f"{owner}\n")
    clear_abandoned("towpath-bench-", tmp_path)

    assert {"mine": True, "abandoned": False, "kept": True} == {
        name: folder.exists() for name, folder in folders.items()
    }


def test_a_kill_and_a_search_exclude_each_other():
    """
    The two options together are an error, so no run ignores one of them.
    """
    args = ["relay", "--kill", "--search"]

    with pytest.raises(ValidationError, match="Mutually exclusive"):
        bench_app.parse_args(args, print_error=False, exit_on_error=False)


def test_a_closed_terminal_ends_the_running_benchmark(monkeypatch):
    """
    The benchmark runs in its own session, which the terminal's signals do not reach.
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
            """Record a signal."""
            sent.append(number)

        def wait(self):
            """Return at once."""

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
