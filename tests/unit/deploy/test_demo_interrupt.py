"""Signals interrupt the demo once, but never its clean-up."""

import errno
import io
import signal
import threading
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from towpath.deploy.demo import run
from towpath.deploy.demo.stage import DemoOptions
from towpath.deploy.local import lifecycle, own_stack
from towpath.deploy.local.process import interrupted_once, interrupts_deferred
from towpath.deploy.local.stack import Stack


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_interrupts(number):
    """
    Ctrl-C, a closed terminal and kill all have the same effect, unless ignored.
    """
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), interrupted_once():
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)


def test_an_ignored_signal_remains_ignored():
    """
    This is how ``nohup`` starts a process that outlives its terminal.
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    done = []
    try:
        with interrupted_once():
            signal.raise_signal(signal.SIGHUP)
            done.append("continues")
        after = signal.getsignal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)

    assert (["continues"], signal.SIG_IGN) == (done, after)


def test_a_second_signal_does_not_disturb_the_clean_up():
    """
    After the first interrupt, the clean-up runs to its end despite further signals.
    """
    done = []

    def work():
        with interrupted_once():
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)
                done.append("clean")

    with pytest.raises(KeyboardInterrupt):
        work()

    assert done == ["clean"]


def test_the_clean_up_of_a_finished_demo_is_not_interrupted():
    """
    Once interrupts are disabled, not even the first signal interrupts.
    """
    done = []
    with interrupted_once() as interrupts:
        interrupts.disable()
        signal.raise_signal(signal.SIGINT)
        done.append("clean")

    assert done == ["clean"]


def test_signal_handlers_are_restored_afterwards():
    """
    The previous handlers are installed again.
    """
    before = signal.getsignal(signal.SIGTERM)
    with interrupted_once():
        pass

    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("block", [interrupted_once, interrupts_deferred])
def test_a_non_python_signal_handler_hides_no_error(block, monkeypatch):
    """
    A C library may have installed one, which Python reports as None.
    """
    install = signal.signal
    before = {number: signal.getsignal(number) for number in signal.Signals}

    def foreign(number, handler):
        install(number, handler)

    message = "the error of the run"

    monkeypatch.setattr(signal, "signal", foreign)
    try:
        with pytest.raises(LookupError, match=message), block():
            raise LookupError(message)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            install(number, before[number])


def test_an_interrupted_start_of_the_stack_waits_for_its_threads(monkeypatch, tmp_path):
    """
    If the start of a thread is interrupted, all threads end before the stack raises.
    """
    started, ended, cancelled = threading.Event(), [], []

    def bring_up(part, _state, ending):
        started.set()
        cancelled.append(ending.wait(10))
        ended.append(part.name)

    start = threading.Thread.start

    def start_interrupted(thread):
        start(thread)
        assert started.wait(10)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(lifecycle, "bring_up", bring_up)
    monkeypatch.setattr(threading.Thread, "start", start_interrupted)
    with pytest.raises(KeyboardInterrupt), interrupted_once():
        Stack(tmp_path).up(("redis", "kafka"))

    assert sorted(ended) == ["kafka", "redis"]
    assert cancelled == [True, True]


def failing(*_, **__):
    """Fail as if a file could not be removed."""
    raise OSError


def test_a_failed_step_of_the_clean_up_does_not_skip_others(monkeypatch):
    """
    Processes are stopped even if a file cannot be removed.
    """
    done = []
    stack = SimpleNamespace(down=lambda: done.append("down"), state=None)
    parts = {
        "demo_folder": lambda _: nullcontext(stack),
        "Supervisor": lambda _: SimpleNamespace(stop=failing),
        "_run_own": failing,
        "stop_all": lambda _: done.append("all"),
        "kill_children": lambda _: done.append("children"),
    }
    for name, part in parts.items():
        monkeypatch.setattr(run, name, part)
    with pytest.raises(OSError, match=r"^$"):
        run.run_demo(DemoOptions(), Path("demo"), Console(quiet=True))

    assert ["down", "all", "children"] == done


class ClosedTerminal(io.StringIO):
    """A terminal whose window was closed."""

    def write(self, _text):
        """Fail as the operating system does."""
        raise OSError(errno.EIO, "Input/output error")


def test_a_closed_terminal_does_not_keep_the_parts_running(monkeypatch):
    """
    SIGHUP ends the demo, which can no longer print that it is stopping its parts.
    """
    done = []
    stack = SimpleNamespace(down=lambda: done.append("down"), state=None)
    supervisor = SimpleNamespace(stop=lambda _: done.append("parts"))
    parts = {
        "demo_folder": lambda _: nullcontext(stack),
        "Supervisor": lambda _: supervisor,
        "_run_own": failing,
        "stop_all": lambda _: done.append("all"),
        "kill_children": lambda _: done.append("children"),
    }
    for name, part in parts.items():
        monkeypatch.setattr(run, name, part)
    with pytest.raises(OSError, match="Input/output"):
        run.run_demo(DemoOptions(), Path("demo"), Console(file=ClosedTerminal()))

    assert ["parts", "down", "all", "children"] == done


def test_brackets_in_the_folder_of_a_kept_stack_are_shown(monkeypatch, tmp_path):
    """
    They belong to the name and are not markup.
    """
    folder, console = tmp_path / "a[b]", Console(file=io.StringIO())
    folder.mkdir()
    monkeypatch.setattr(Stack, "up", lambda *_: None)
    monkeypatch.setattr(own_stack, "kill_children", lambda _: None)
    monkeypatch.setattr(own_stack.tempfile, "mkdtemp", lambda **_: str(folder))
    with own_stack.own_stack("x", console, keep=True):
        pass

    assert f"{folder}\n" in console.file.getvalue()


def test_brackets_in_the_folder_of_a_kept_demo_are_shown(monkeypatch):
    """
    The lines name its configuration, whose path may contain brackets.
    """

    def interrupt(_):
        raise KeyboardInterrupt

    console, config = Console(file=io.StringIO()), Path("a[b]/towpath.toml")
    urls = ("kafka", "registry_url", "opensearch_url", "redis_url")
    stage = SimpleNamespace(
        addresses=SimpleNamespace(dsn=str, **dict.fromkeys(urls, "")),
        ports=defaultdict(int),
        shop_url="",
        shop_dsn="",
        config=config,
        pause=interrupt,
    )
    result = SimpleNamespace(equal=True, adds_up=True)
    stack = SimpleNamespace(down=lambda: None, state=None)
    parts = {
        "demo_folder": lambda _: nullcontext(stack),
        "Supervisor": lambda _: SimpleNamespace(stop=lambda _: None),
        "_run_own": lambda *_: (stage, result),
        "stop_all": lambda _: None,
        "kill_children": lambda _: None,
    }
    for name, part in parts.items():
        monkeypatch.setattr(run, name, part)
    monkeypatch.setattr(run.table, "draw", lambda _: "")
    monkeypatch.setattr(run.platform, "start_console", lambda _: None)
    monkeypatch.setattr(run.parts, "console_token", lambda _: "token")

    assert run.run_demo(DemoOptions(keep=True), Path("demo"), console) == 0
    assert f" {config}\n" in console.file.getvalue()


def test_children_are_killed_even_if_a_stack_cannot_be_removed(monkeypatch, tmp_path):
    """
    This holds for the stack of a benchmark, too.
    """
    done = []
    monkeypatch.setattr(Stack, "up", lambda *_: None)
    monkeypatch.setattr(own_stack, "stop_all", failing)
    monkeypatch.setattr(own_stack, "kill_children", lambda _: done.append("children"))
    monkeypatch.setattr(own_stack.tempfile, "mkdtemp", lambda **_: str(tmp_path))
    with (
        pytest.raises(OSError, match=r"^$"),
        own_stack.own_stack("x", Console(quiet=True), keep=False),
    ):
        pass

    assert ["children"] == done
