"""
Run one benchmark or all of them, the capture comparison, or the chaos test.

A run removes the leftovers of killed runs, starts its stack, measures, and prints the
result. For a comparison, Debezium runs in Kafka Connect's standalone mode, from Java
archives with a separate lock file.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple

from rich.console import Console, RenderableType
from rich.text import Text

from towpath.cli.options import check_output
from towpath.deploy.local import ports, postgres
from towpath.deploy.local.own_stack import Launcher, environment, own_stack, prepare
from towpath.deploy.local.part import StateFolder
from towpath.deploy.local.process import interrupted_once
from towpath.deploy.local.stack import Stack
from towpath.loadtests.bench import summary
from towpath.loadtests.bench.broker import Broker
from towpath.loadtests.bench.context import (
    Bench,
    BenchOptions,
    BenchScreen,
    open_screen,
)
from towpath.loadtests.bench.environment import BenchEnvironment
from towpath.loadtests.bench.machine import machine
from towpath.loadtests.bench.result import BenchResult, CaseT, ScenarioResult
from towpath.loadtests.capture import result as capture_result
from towpath.loadtests.capture.run import CaptureOptions, compare_captures
from towpath.loadtests.chaos import run as chaos
from towpath.loadtests.chaos.context import (
    ChaosEnvironment,
    ChaosOptions,
)
from towpath.loadtests.chaos.context import (
    open_screen as open_chaos_screen,
)
from towpath.relay.commands import compiled
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.sinks.jars import fetch, java, store

DEBEZIUM_LOCK: Final = store.LOCK.with_name("debezium.lock")

# The JVM flags of Kafka's own Connect script, and the log level.
_CONNECT_FLAGS: Final = (
    "-Xms256m",
    "-Xmx2g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_CONNECT_MAIN: Final = "org.apache.kafka.connect.cli.ConnectStandalone"


def fetch_connect(report: fetch.ReportLine) -> tuple[str, ...]:
    """
    Fetch Connect's archives; return its command, without its configuration files.

    Raises:
        JarsError: An archive could not be fetched.
    """
    environ = os.environ  # noqa: TID251 - a root
    jars = store.read_lock(DEBEZIUM_LOCK)
    fetch.ensure(report, environ, jars)
    paths = [store.folder(environ) / jar.use / jar.file for jar in jars]
    return connect_command(java.home(environ), paths)


def connect_command(java_home: Path, paths: list[Path]) -> tuple[str, ...]:
    """Return the command that runs Connect from the given archives."""
    class_path = ":".join(str(path) for path in paths)
    return (
        str(java_home / "bin" / "java"),
        *_CONNECT_FLAGS,
        "-cp",
        class_path,
        _CONNECT_MAIN,
    )


VERIFIED: Final = 0
DIFFERENT: Final = 1

BENCH_FOLDERS: Final = "towpath-bench-"
_WIDTH: Final = 140


class Benchmark(NamedTuple, Generic[CaseT]):
    """Runs a benchmark, and renders its result."""

    measure: Callable[[Bench], BenchResult[CaseT]]
    draw: Callable[[BenchResult[CaseT]], RenderableType]


def run_benchmark(
    options: BenchOptions, benchmark: Benchmark[CaseT], *, keep: bool, as_json: bool
) -> int:
    """
    Run a benchmark and print its result; return 0 if everything was verified, else 1.

    Raises:
        TowpathError: The benchmark did not complete.
        KeyboardInterrupt: The benchmark was interrupted.
    """
    console = Console(stderr=True)
    prepare(BENCH_FOLDERS, console)
    connect = fetch_connect(console.print) if options.with_debezium else None
    cases = console if as_json else results()
    with (
        own_stack(BENCH_FOLDERS, console, keep=keep, has_optimized_kafka=True) as stack,
        open_screen(console, cases) as screen,
    ):
        bench = bench_on(stack, options, screen, connect)
        written = bench.broker.warm_up(options.warm_up_s)
        screen.log(f"broker warmed up with {written:,} records")
        result = benchmark.measure(bench)
    return print_result(result, None if as_json else benchmark.draw(result))


_CAPTURE_FOLDERS: Final = "towpath-capture-"


class CaptureOutput(NamedTuple):
    """The forms of a comparison's result: JSON or a table, and a plot's file."""

    as_json: bool
    plot_file: Path | None


def run_capture_comparison(
    options: CaptureOptions, output: CaptureOutput, *, keep: bool
) -> int:
    """
    Compare methods of capturing a table; return 0 if the relay missed nothing, else 1.

    Raises:
        UsageError: The plot's file cannot be written.
        TowpathError: The comparison did not complete.
        KeyboardInterrupt: The comparison was interrupted.
    """
    check_output("--plot", output.plot_file)
    console = Console(stderr=True)
    prepare(_CAPTURE_FOLDERS, console)
    with (
        own_stack(_CAPTURE_FOLDERS, console, keep=keep) as stack,
        open_screen(console, console) as screen,
    ):
        bench = bench_on(stack, BenchOptions(), screen)
        result = compare_captures(bench, options)
    drawn = None if output.as_json else capture_result.draw(result)
    code = print_result(result, drawn)
    if output.plot_file is not None:
        _write_plot(output.plot_file, capture_result.plot(result.as_json()))
    return code


def _write_plot(path: Path, svg: str) -> None:
    """
    Write a plot; a full disk cannot lose the result, which is already printed.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        path.write_text(svg, encoding="utf-8")
    except OSError as error:
        message = f"--plot: {path}: {error.strerror or error}"
        raise UsageError(message) from error


def results() -> Console:
    """Return the console for results; output to a file has a fixed width."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH)


def bench_on(
    stack: Stack,
    options: BenchOptions,
    screen: BenchScreen,
    connect: tuple[str, ...] | None = None,
) -> Bench:
    """Return the context that all runs on a stack share."""
    return Bench(
        environment=_bench_environment(stack, connect),
        options=options,
        broker=Broker(stack.addresses().kafka, SystemClock()),
        screen=screen,
        clock=SystemClock(),
    )


def print_result(result: ScenarioResult, drawn: RenderableType | None) -> int:
    """Print a result's drawing, or its JSON if there is none; return the exit code."""
    if drawn is None:
        sys.stdout.write(json.dumps(result.as_json(), indent=1) + "\n")
    else:
        results().print(drawn)
    return VERIFIED if result.verified else DIFFERENT


def _bench_environment(
    stack: Stack, connect: tuple[str, ...] | None
) -> BenchEnvironment:
    addresses = stack.addresses()
    env = {**environment(), "TOWPATH_JARS": str(store.folder())}
    broker = next(part for part in stack.status() if part.name == "kafka")
    return BenchEnvironment(
        dsn=addresses.dsn("postgres"),
        dsn_of=addresses.dsn,
        kafka=addresses.kafka,
        broker_pid=broker.pid or 0,
        programs=postgres.home_of(stack.state).programs,
        towpath=(sys.executable, "-m", "towpath.cli"),
        relay_code=compiled.available(env),
        connect=connect,
        connect_port=ports.any_free(),
        log_folder=stack.state.data("kafka") / "data",
        folder=stack.state.root,
        env=env,
        launcher=Launcher(stack.state, env),
    )


_CHAOS_FOLDERS: Final = "towpath-chaos-"
_CHAOS_DATABASE: Final = "chaos"


def run_chaos(options: ChaosOptions, *, keep: bool, as_json: bool) -> int:
    """
    Run the chaos test and print its result; return 0 if it found no difference, else 1.

    Raises:
        TowpathError: The test did not complete.
        KeyboardInterrupt: The test was interrupted.
    """
    console = Console(stderr=True)
    prepare(_CHAOS_FOLDERS, console)
    console.print(f"seed {options.seed}", highlight=False)
    with own_stack(_CHAOS_FOLDERS, console, keep=keep) as stack:
        addresses = stack.addresses()
        postgres.create_database(addresses.dsn("postgres"), _CHAOS_DATABASE)
        run_environment = chaos_environment(
            stack.state,
            addresses.dsn(_CHAOS_DATABASE),
            addresses.kafka,
            _CHAOS_DATABASE,
        )
        with open_chaos_screen(console, run_environment.clock) as screen:
            result = chaos.run_chaos(run_environment, options, screen)
    return print_result(result, None if as_json else Text(result.text()))


def chaos_environment(
    state: StateFolder, dsn: str, kafka: str, prefix: str
) -> ChaosEnvironment:
    """Return the environment of a chaos run in a state folder."""
    return ChaosEnvironment(
        dsn=dsn,
        kafka=kafka,
        prefix=prefix,
        towpath=(sys.executable, "-m", "towpath.cli"),
        folder=state.root,
        launcher=Launcher(state, environment()),
        clock=SystemClock(),
    )


# Together less than ten minutes on two cores, without Debezium.
QUICK: Final[Mapping[str, str]] = {
    "relay": "--case drain_1 --case drain_100 --case steady_2000"
    " --rows 100000 --rounds 1 --duration 8 --warm-up 4",
    "snapshot": "--rows 300000 --duration 6 --warm-up 3",
    "outbox": "--rounds 1 --duration 4 --warm-up 1",
    "sinks": "--case catch_up --rows 300000",
    "checkout": "--rates 10 --refine 0 --orders 2000 --duration 30 --warm-up 15",
}
_WITH_DEBEZIUM: Final = ("relay", "snapshot")


class AllOptions(NamedTuple):
    """
    The options of a run of all benchmarks.

    Attributes:
        is_quick: Whether small loads are run for a short time.
        with_debezium: Whether Debezium is measured, too.
        as_json: Whether one JSON document is printed, instead of a table.
        plot_file: A file for the plot.
    """

    is_quick: bool
    with_debezium: bool
    as_json: bool
    plot_file: Path | None


def run_all(options: AllOptions) -> int:
    """
    Run all benchmarks, and print their summary; return the first code that is not 0.

    Raises:
        UsageError: The plot's file cannot be written.
        TowpathError: An archive could not be fetched.
        KeyboardInterrupt: The run was interrupted; its current benchmark has ended.
    """
    plot_file = options.plot_file
    check_output("--plot", plot_file)
    console = Console(stderr=True)
    prepare(BENCH_FOLDERS, console)
    if options.with_debezium:
        fetch_connect(console.print)
    documents, codes, took_s = {}, [], {}
    with interrupted_once():
        for name in summary.BENCHMARKS:
            began_s = _CLOCK.monotonic_s()
            code, documents[name] = _run(name, options)
            took_s[name] = round(_CLOCK.monotonic_s() - began_s)
            codes.append(code)
            line = f"bench {name}: {took_s[name]} s, exit {code}"
            console.print(line, highlight=False)
    lines = summary.lines(documents)
    if options.as_json:
        whole = {"machine": machine(), "took_s": took_s, "benchmarks": documents}
        sys.stdout.write(json.dumps(whole, indent=1) + "\n")
    else:
        on = ", ".join(f"{name} {value}" for name, value in machine().items())
        sys.stdout.write(f"{summary.markdown(lines)}\n\n{on}\n")
    if plot_file is not None:
        _write_plot(plot_file, summary.plot(lines))
    return next((code for code in codes if code), VERIFIED)


_CLOCK: Final = SystemClock()


def _run(name: str, options: AllOptions) -> tuple[int, Mapping[str, Any]]:
    """Run one benchmark; return its exit code, and its document if it printed one."""
    further = QUICK[name].split() if options.is_quick else []
    if options.with_debezium and name in _WITH_DEBEZIUM:
        further.append("--with-debezium")
    command = [sys.executable, "-m", "towpath.cli", "bench", name, "--json", *further]
    # In a separate session, so that it gets only the SIGINT that is sent below.
    with subprocess.Popen(  # noqa: S603 - our own command
        command, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            printed, _ = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    try:
        return process.returncode, json.loads(printed)
    except json.JSONDecodeError:
        return process.returncode or DIFFERENT, {}
