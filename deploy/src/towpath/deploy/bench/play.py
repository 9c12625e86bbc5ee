"""A benchmark from its first step to the last, upon a stack of its own."""

import json
import sys
from collections.abc import Callable
from typing import Final, Generic, NamedTuple

from rich.console import Console, RenderableType

from towpath.deploy.bench import debezium
from towpath.deploy.bench.launcher import Launcher
from towpath.deploy.jars import store
from towpath.deploy.local import ports, postgres_home
from towpath.deploy.local.stack import Stack
from towpath.deploy.own_stack import environment, own_stack, prepare
from towpath.loadtests.bench.broker import Broker
from towpath.loadtests.bench.place import Place
from towpath.loadtests.bench.plan import Bench, Options, Screen
from towpath.loadtests.bench.result import CaseT, Result
from towpath.loadtests.bench.screen import open_screen
from towpath.schemas.clock import SystemClock

VERIFIED: Final = 0
DIFFERENT: Final = 1

FOLDERS: Final = "towpath-bench-"
_WIDTH: Final = 140


class Benchmark(NamedTuple, Generic[CaseT]):
    """What measures upon a stack, and what draws the close of its result."""

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
    prepare(FOLDERS, news)
    connect = debezium.words(news.print) if options.with_debezium else None
    cases = news if as_json else results()
    with (
        own_stack(FOLDERS, news, keep=keep) as stack,
        open_screen(news, cases) as screen,
    ):
        result = benchmark.measure(bench_upon(stack, options, screen, connect))
    return tell(result, None if as_json else benchmark.draw(result))


def results() -> Console:
    """Return where results are printed; a file is as wide as its tables."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH)


def bench_upon(
    stack: Stack,
    options: Options,
    screen: Screen,
    connect: tuple[str, ...] | None = None,
) -> Bench:
    """Return what all runs upon a stack share."""
    return Bench(
        place=_place(stack, connect),
        options=options,
        broker=Broker(stack.addresses().kafka, SystemClock()),
        screen=screen,
        clock=SystemClock(),
    )


def tell(result: Result[CaseT], drawn: RenderableType | None) -> int:
    """Print a result, as JSON unless it is drawn; return the exit code."""
    _print(result, drawn)
    return VERIFIED if result.verified else DIFFERENT


def _place(stack: Stack, connect: tuple[str, ...] | None) -> Place:
    addresses = stack.addresses()
    env = {**environment(), "TOWPATH_JARS": str(store.folder())}
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


def _print(result: Result[CaseT], drawn: RenderableType | None) -> None:
    if drawn is None:
        sys.stdout.write(json.dumps(result.as_json(), indent=1) + "\n")
    else:
        results().print(drawn)
