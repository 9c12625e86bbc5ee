"""
A benchmark from its first step to the last, and the clean-up behind it.

Its stack lives in a folder of its own below the system's temporary folder. Whatever
happens, every process that was started is stopped before this returns; a benchmark that
was killed itself is cleared away by the next.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Generic, NamedTuple

import psutil
from rich.console import Console, RenderableType

from towpath.deploy.bench import debezium
from towpath.deploy.bench.launcher import Launcher
from towpath.deploy.demo.folder import stop_all
from towpath.deploy.demo.interrupt import interrupted_once
from towpath.deploy.jars import fetch, lock
from towpath.deploy.local import ports, postgres_home
from towpath.deploy.local.stack import Stack
from towpath.loadtests.bench.broker import Broker
from towpath.loadtests.bench.place import Place
from towpath.loadtests.bench.plan import Bench, Options
from towpath.loadtests.bench.result import CaseT, Result
from towpath.loadtests.bench.screen import open_screen
from towpath.schemas.clock import SystemClock

VERIFIED: Final = 0
DIFFERENT: Final = 1

_PARTS: Final = ("postgres", "kafka")
_FOLDERS: Final = "towpath-bench-"
_OWNER: Final = "owner"
_GONE_WITHIN_S: Final = 10.0
_WIDTH: Final = 140


class Benchmark(NamedTuple, Generic[CaseT]):
    """What measures upon a stack, and what draws its result for a person."""

    measure: Callable[[Bench], Result[CaseT]]
    draw: Callable[[Result[CaseT]], RenderableType]


def play(
    options: Options, benchmark: Benchmark[CaseT], *, keep: bool, as_json: bool
) -> int:
    """
    Carry a benchmark out and print it; return 0 if all was verified, else 1.

    Raises:
        TowpathError: It could not be carried out to its end.
        KeyboardInterrupt: It was interrupted.
    """
    news = Console(stderr=True)
    clear_abandoned()
    environ = os.environ  # noqa: TID251 - a root
    fetch.ensure(news.print, environ, lock.read())
    connect = debezium.words(news.print) if options.with_debezium else None
    with _stack(news, keep=keep) as stack, open_screen(news) as screen:
        bench = Bench(
            place=_place(stack, connect),
            options=options,
            broker=Broker(stack.addresses().kafka, SystemClock()),
            screen=screen,
            clock=SystemClock(),
        )
        result = benchmark.measure(bench)
    _print(result, None if as_json else benchmark.draw(result))
    return VERIFIED if result.verified else DIFFERENT


def clear_abandoned(folder: Path | None = None) -> None:
    """Stop and remove what benchmarks have left that were killed."""
    for left in (folder or Path(tempfile.gettempdir())).glob(f"{_FOLDERS}*"):
        with contextlib.suppress(OSError, ValueError):
            owner = int((left / _OWNER).read_text(encoding="ascii"))
            if not psutil.pid_exists(owner):
                _remove(Stack(left))


@contextlib.contextmanager
def _stack(news: Console, *, keep: bool) -> Iterator[Stack]:
    """Start a stack for the block; stop and remove it behind, whatever happened."""
    with interrupted_once() as attention:
        stack = Stack(Path(tempfile.mkdtemp(prefix=_FOLDERS)))
        owner = stack.state.root / _OWNER
        owner.write_text(f"{os.getpid()}\n", encoding="ascii")
        try:
            with news.status("starting Postgres and Kafka"):
                stack.up(_PARTS)
            yield stack
        finally:
            attention.turn_away()
            if keep:
                _stop(stack)
                owner.unlink()
                news.print(f"logs and files: {stack.state.root}", soft_wrap=True)
            else:
                _remove(stack)
            _kill_children()


def _place(stack: Stack, connect: tuple[str, ...] | None) -> Place:
    addresses = stack.addresses()
    env = _environment()
    broker = next(part for part in stack.status() if part.name == "kafka")
    return Place(
        dsn=addresses.dsn("postgres"),
        dsn_of=addresses.dsn,
        kafka=addresses.kafka,
        broker_pid=broker.pid or 0,
        programs=postgres_home.of(stack.state).programs,
        towpath=(sys.executable, "-m", "towpath.deploy.cli"),
        connect=connect,
        connect_port=ports.any_free(),
        log_folder=stack.state.data("kafka") / "data",
        folder=stack.state.root,
        env=env,
        launcher=Launcher(stack.state, env),
    )


def _environment() -> dict[str, str]:
    """Return our environment without the variables that overrule a configuration."""
    inherited = os.environ.items()  # noqa: TID251 - a root
    return {name: text for name, text in inherited if not name.startswith("TOWPATH_")}


def _stop(stack: Stack) -> None:
    stop_all(stack.state)
    stack.down()


def _remove(stack: Stack) -> None:
    stop_all(stack.state)
    stack.purge()
    shutil.rmtree(stack.state.root, ignore_errors=True)


def _kill_children() -> None:
    """Kill what was just being started when the benchmark was interrupted."""
    children = psutil.Process(os.getpid()).children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=_GONE_WITHIN_S)


def _print(result: Result[CaseT], drawn: RenderableType | None) -> None:
    if drawn is None:
        sys.stdout.write(json.dumps(result.as_json(), indent=1) + "\n")
    else:
        # A file is as wide as its tables.
        width = None if sys.stdout.isatty() else _WIDTH
        Console(width=width).print(drawn)
