"""``towpath sink add | refill | drop``: a sink comes, is filled again, and goes."""

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Console

from towpath.deploy import dropping, filling, signals
from towpath.deploy.cli.places import ConfigOption, config_file
from towpath.deploy.shapes import Shapes
from towpath.deploy.snapshot_view import open_bars
from towpath.deploy.snapshot_watch import INCOMPLETE
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import Settings, Sink, load
from towpath.sinks import declare
from towpath.sinks.checking import check_block
from towpath.sinks.errors import SinkNotRunningError
from towpath.sinks.kafka import Topics
from towpath.sinks.kinds import eraser_of
from towpath.sinks.progress import progress_path, read_progress

_RUNNING_WITHIN_S: Final = 60.0
_STUCK_AFTER_S: Final = 300.0
Flag = Parameter(negative="")


def add(
    block: Path,
    /,
    *,
    max_rows_per_second: int | None = None,
    signal: str | None = None,
    config: ConfigOption = None,
) -> int:
    """
    Add a sink while everything runs, and fill it from the existing rows.

    Its driver must be running. The sink begins at the present end of the stream; a
    snapshot with the sink as its target brings what was there before. If it is
    interrupted, run it again: it goes on. Exit 1 if the snapshot fails, or if keys
    are parked behind dead letters. Nothing is declared that does not fit its tables
    and its target, or that no running relay could fill.

    Args:
        block: A file with one [[sink]] block and its routes.
        max_rows_per_second: Bound of the reading speed.
        signal: Send no signal, but show the SQL row that asks for the rows, with this
            id, and wait until somebody has inserted it.
        config: Configuration file.
    """
    path = config_file(config)
    try:
        text = block.read_text(encoding="utf-8")
    except OSError as error:
        message = f"{block}: {error.strerror}"
        raise UsageError(message) from error
    settings = _settings(path)
    cluster, clock = Topics(settings.kafka), SystemClock()
    sink = declare.declare_sink(path, text, _environ(), cluster, clock, _check)
    print(f"{sink.name} is declared", flush=True)
    settings = _settings(path)
    collections = filling.collections_of(settings, sink)
    try:
        declare.wait_running(settings, sink.name, clock, _RUNNING_WITHIN_S)
    except SinkNotRunningError:
        print(
            f"{sink.name} stays declared: correct its block in {path}, its driver "
            f"looks at it, and add the same; or towpath sink drop {sink.name}",
            file=sys.stderr,
        )
        raise
    speed = max_rows_per_second
    if collections and not _fill(settings, sink, collections, speed, signal_id=signal):
        print(
            f"{sink.name} stays declared, without the rows of before: add the same "
            f"again, or towpath sink drop {sink.name}",
            file=sys.stderr,
        )
        return 1
    declare.mark_ready(settings, sink.name)
    print(f"{sink.name} is ready")
    return _tell_aside(settings, sink.name)


def refill(
    name: str,
    /,
    *,
    route: str | None = None,
    max_rows_per_second: int | None = None,
    config: ConfigOption = None,
) -> int:
    """
    Read all existing rows into a sink again; what is gone from the source goes.

    The sink goes on serving meanwhile, and so do the others. If it is interrupted, run
    it again: it goes on. Exit 1 if the snapshot fails, or if keys are parked behind
    dead letters.

    Args:
        name: The sink.
        route: Only this route of it.
        max_rows_per_second: Bound of the reading speed.
        config: Configuration file.
    """
    settings = _settings(config_file(config))
    sink = declare.sink_named(settings, name)
    collections = filling.collections_of(settings, sink, route)
    if not collections:
        message = f"{name} keeps events only, which cannot be read again"
        raise UsageError(message)
    is_good = _fill(settings, sink, collections, max_rows_per_second, has_sweep=True)
    if is_good:
        print(f"{name} is filled again")
        return _tell_aside(settings, name)
    return 1


def drop(
    name: str,
    /,
    *,
    data: Annotated[bool, Flag] = False,
    yes: Annotated[bool, Flag] = False,
    config: ConfigOption = None,
) -> int:
    """
    Drop a sink: its block, its state, its topics; with --data also what it wrote.

    Its driver goes on with the others. If it is interrupted, run it again. Its topics
    are its dead letters and what snapshots read for it; each that goes is listed.

    Args:
        name: The sink.
        data: Take away what it wrote too: keys, indexes, tables with their history.
        yes: Do not ask.
        config: Configuration file.
    """
    path = config_file(config)
    settings = _settings(path)
    planned = dropping.plan(settings, name, has_data=data)
    sink = planned.sink
    erase = eraser_of(sink) if sink is not None and planned.has_data else None
    routes = ", ".join(route.name for route in sink.route) if sink is not None else ""
    what = f"and all that it wrote ({routes})" if erase else "not its data"
    if not yes and not _agreed(f"drop the sink {name}, {what}?"):
        print(f"{name} stays")
        return 1
    broker = Topics(settings.kafka)
    means = dropping.Means(erase, broker, SystemClock(), print)
    dropping.carry_out(path, _environ(), planned, means)
    print(f"{name} is dropped")
    return 0


def _check(settings: Settings, sink: Sink) -> None:
    from towpath.deploy import fillable  # noqa: PLC0415 - keeps --help fast

    # A route that nothing can fill is in the file: no server is needed to say so.
    collections = filling.collections_of(settings, sink)
    with closing(Shapes(settings)) as shapes:
        check_block(settings, sink, shapes)
    fillable.check(settings, sink.name, collections)


def _fill(
    settings: Settings,
    sink: Sink,
    collections: list[str],
    max_rows_per_second: int | None,
    *,
    has_sweep: bool = False,
    signal_id: str | None = None,
) -> bool:
    """Fill a sink, or go on with it, until it has applied all of it."""
    source, clock = settings.database, SystemClock()
    begun, is_old = filling.begin(
        settings, sink, collections, has_sweep=has_sweep, signal_id=signal_id
    )
    verb = "goes on to fill" if is_old else "fills"
    print(f"snapshot {begun.signal_id} {verb} {sink.name}", flush=True)
    if signal_id:
        wanted = (begun.collections, sink.name, begun.signal_id)
        print(signals.statement(source, *wanted, max_rows_per_second), flush=True)
        filling.await_signal(source, begun, clock)
    with open_bars(Console(stderr=True)) as bars:
        answer = filling.carry_out(
            source, sink, begun, clock, bars.show, max_rows_per_second
        )
    if answer.status != "completed":
        if answer.status != INCOMPLETE:
            filling.end(settings, sink, begun, is_applied=False)
        told = f"{answer.status}: {answer.reason}" if answer.reason else answer.status
        print(f"the snapshot was {told}; run this again", file=sys.stderr)
        return False
    ends = declare.sink_ends(settings, sink.name, Topics(settings.kafka))
    declare.wait_applied(settings, sink.name, ends, clock, _STUCK_AFTER_S)
    filling.end(settings, sink, begun, is_applied=True)
    return True


def _tell_aside(settings: Settings, name: str) -> int:
    """Tell of records that wait aside: what is filled may lack them. Exit 1 then."""
    progress = read_progress(progress_path(settings.state_folder, name), name)
    if progress.parked:
        print(
            f"{progress.parked:,} keys of {name} are parked, each with its reason: "
            f"towpath dead-letters list --sink {name}",
            file=sys.stderr,
        )
    return int(progress.parked > 0)


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        message = "nobody can be asked here: say --yes"
        raise UsageError(message)
    return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}


def _environ() -> Mapping[str, str]:
    return os.environ  # noqa: TID251 - a root


def _settings(path: Path) -> Settings:
    return load(path, _environ())
