"""``towpath sink run | list | add``."""

import os
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from towpath.deploy import java, offsets, signals
from towpath.deploy.cli.places import ConfigOption, config_file
from towpath.deploy.jars import store
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import UsageError
from towpath.schemas.topics import outbox_topic
from towpath.settings import RouteKind, Settings, Sink, load
from towpath.sinks.kafka import Topics
from towpath.sinks.progress import State

app = App(name="sink", help="Run sinks, list them, add one and fill it.")

_LOOK_EVERY_S: Final = 0.5
_STUCK_AFTER_S: Final = 300.0


@app.command
def run(
    *names: str,
    driver: Annotated[str | None, Parameter(name="--driver")] = None,
    config: ConfigOption = None,
) -> int:
    """
    Run sinks in one Spark driver until told to stop.

    Args:
        names: The sinks; left out, all those of the driver.
        driver: The sinks that the configuration gives to this driver.
        config: Configuration file.
    """
    import towpath.sinks.__main__ as sinks  # noqa: PLC0415 - keeps --help fast

    if not names and driver is None:
        message = "name the sinks to run, or a driver"
        raise UsageError(message)
    path = config_file(config)
    environ = os.environ  # noqa: TID251 - a root
    if "TOWPATH_SPARK_JARS" in environ:
        return sinks.run(path, list(names), driver)
    wrapper = load(path, environ).state_folder / "java"
    return sinks.run(
        path,
        list(names),
        driver,
        java_home=java.spark_home(wrapper, environ),
        jars=store.of("spark"),
    )


@app.command(name="list")
def list_sinks(*, config: ConfigOption = None) -> int:
    """
    List the configured sinks: what each does, and how many records it is behind.

    Exit 1 if one has failed.

    Args:
        config: Configuration file.
    """
    settings = _settings(config_file(config))
    ends = offsets.read_ends(Topics(settings.kafka.bootstrap_servers))
    table = Table(
        *("sink", "kind", "driver", "state", "behind", "written", "dead"), box=None
    )
    said = [(sink, offsets.progress_of(settings, sink)) for sink in settings.sink]
    for sink, one in said:
        behind = offsets.lag_records(sink, one.applied, ends)
        counts = (f"{count:,}" for count in (behind, one.rows, one.dead_letters))
        table.add_row(sink.name, sink.kind, sink.driver, one.state, *counts)
    Console().print(table)
    for sink, one in said:
        if one.error:
            print(f"{sink.name}: {one.error}")
    return int(any(one.state is State.FAILED for _, one in said))


@app.command
def add(
    block: Path,
    /,
    *,
    max_rows_per_second: int | None = None,
    config: ConfigOption = None,
) -> int:
    """
    Add a sink while everything runs, and fill it from the existing rows.

    Its driver must be running. The sink begins at the present end of the stream; a
    snapshot with the sink as its target brings what was there before. Exit 1 if the
    snapshot fails.

    Args:
        block: A file with one [[sink]] block and its routes.
        max_rows_per_second: Bound of the reading speed.
        config: Configuration file.
    """
    import towpath.sinks.__main__ as sinks  # noqa: PLC0415 - keeps --help fast

    path = config_file(config)
    try:
        text = block.read_text(encoding="utf-8")
    except OSError as error:
        message = f"{block}: {error.strerror}"
        raise UsageError(message) from error
    sink = sinks.declare_sink(path, text)
    print(f"{sink.name} is declared")
    sinks.wait_running(path, sink.name)
    settings = _settings(path)
    dsn = settings.database.dsn
    snapshot = signals.ask(
        dsn,
        _collections(settings, sink),
        target=sink.name,
        max_rows_per_second=max_rows_per_second,
    )
    print(f"{sink.name} runs; snapshot {snapshot} fills it")
    if not _completed(dsn, snapshot, SystemClock()):
        print(f"the snapshot failed: towpath snapshot show {snapshot}")
        return 1
    ends = sinks.sink_ends(path, sink.name)
    sinks.wait_applied(path, sink.name, ends, _STUCK_AFTER_S)
    sinks.mark_ready(path, sink.name)
    print(f"{sink.name} is ready")
    return 0


def _collections(settings: Settings, sink: Sink) -> list[str]:
    """Return what is behind a sink's routes; an event log cannot be read again."""
    prefix, outbox = f"{settings.database.prefix}.", settings.relay.outbox
    views = {
        # A name that stands for all views of the type.
        outbox_topic(outbox.topic, view.aggregate_type): f"outbox.{view.aggregate_type}"
        for view in outbox.view
    }
    found = []
    for route in sink.route:
        if route.kind is RouteKind.TABLE:
            found.append(route.topic.removeprefix(prefix))
        elif route.kind is RouteKind.AGGREGATE:
            if route.topic not in views:
                message = (
                    f"{sink.name} runs but cannot be filled: no view of "
                    f"relay.outbox.view gives {route.topic}"
                )
                raise UsageError(message)
            found.append(views[route.topic])
    return found


def _completed(dsn: str, snapshot: str, clock: Clock) -> bool:
    """Wait until the relay has carried out a signal; tell whether all went well."""
    while True:
        found = signals.state(dsn, snapshot)
        status = found[0] if found else None
        if status in {"completed", "failed", "rejected"}:
            return status == "completed"
        clock.wait(_LOOK_EVERY_S)


def _settings(path: Path) -> Settings:
    return load(path, os.environ)  # noqa: TID251 - a root
