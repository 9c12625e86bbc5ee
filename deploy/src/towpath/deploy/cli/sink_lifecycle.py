"""
``towpath sink list | add | refill | rebuild | drop``.

A sink is added while everything runs, filled again from the existing rows, given a new
search index in place of the old one, and dropped.
"""

import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from towpath.cli.options import ConfigOption, Flag, config_file
from towpath.deploy.sinks import dropping, filling
from towpath.deploy.snapshots import signals
from towpath.deploy.snapshots.signals import INCOMPLETE
from towpath.deploy.snapshots.view import open_bars
from towpath.deploy.status import overview
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import Route, Settings, Sink, SinkKind, load
from towpath.settings.logs import configure_logs
from towpath.sinks.cli.tables import TableShapes
from towpath.sinks.errors import NothingToRebuildError, SinkNotRunningError
from towpath.sinks.kafka.client import KafkaRelations, Topics
from towpath.sinks.kinds import RoutedRelations, eraser_of
from towpath.sinks.state import declare
from towpath.sinks.state.progress import progress_path, read_progress
from towpath.sinks.targets.checks import check_block

if TYPE_CHECKING:
    from towpath.sinks.targets.search.rebuild import Rebuild

_RUNNING_WITHIN_S: Final = 60.0
_STUCK_AFTER_S: Final = 300.0


def list_sinks(*, config: ConfigOption = None) -> int:
    """
    List the configured sinks: the state of each, and how many records it is behind.

    Dead letters are counted that are neither replayed nor discarded; awaited rows were
    requested from the source and have not arrived yet. Problems are listed below:
    failures, refused blocks, a relay that does not run. Exit 1 if there are any.

    Args:
        config: Configuration file.
    """
    configure_logs()
    settings = _settings(config_file(config))
    document = overview((), settings, SystemClock())
    table = Table(
        *("sink", "kind", "driver", "state", "behind", "written", "dead", "parked"),
        *("awaited",),
        box=None,
    )
    for sink in document["sinks"]:
        names = ("lag_records", "rows", "open_letters", "parked", "owed")
        counts = ("?" if sink[n] is None else f"{sink[n]:,}" for n in names)
        words = (sink[n] for n in ("sink", "kind", "driver", "running_state"))
        table.add_row(*words, *counts)
    Console().print(table)
    for sentence in document["wrong"]:
        print(sentence)
    return int(bool(document["wrong"]))


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
    snapshot with the sink as its target delivers the earlier rows. Run an interrupted
    command again: it resumes. Exit 1 if the snapshot fails, or if keys are parked
    behind dead letters. A sink that does not fit its tables and its target, or that no
    running relay could fill, is not declared.

    Args:
        block: A file with one [[sink]] block and its routes.
        max_rows_per_second: Bound of the reading speed.
        signal: Send no signal, but print the SQL row that requests the snapshot, with
            this id, and wait until it has been inserted.
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
            f"{sink.name} stays declared. Correct its block in {path}, then run the "
            f"same towpath sink add again; or run towpath sink drop {sink.name}",
            file=sys.stderr,
        )
        raise
    speed = max_rows_per_second
    if collections and not _fill(settings, sink, collections, speed, signal_id=signal):
        print(
            f"{sink.name} stays declared, without its earlier rows: run the same "
            f"towpath sink add again, or towpath sink drop {sink.name}",
            file=sys.stderr,
        )
        return 1
    declare.mark_ready(settings, sink.name)
    print(f"{sink.name} is ready")
    return _report_parked(settings, sink.name)


def refill(
    name: str,
    /,
    *,
    route: str | None = None,
    max_rows_per_second: int | None = None,
    config: ConfigOption = None,
) -> int:
    """
    Read all existing rows into a sink again; rows that the source lacks are deleted.

    The sink serves meanwhile, and so do the others. Run an interrupted command again:
    it resumes. Exit 1 if the snapshot fails, or if keys are parked behind dead letters.

    Args:
        name: The sink.
        route: Only this route of the sink.
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
        return _report_parked(settings, name)
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
    Drop a sink: its block, its state, its topics; with --data also its data.

    Its driver continues with the others. Run an interrupted command again. Its topics
    hold its dead letters and the rows that snapshots read for it; each deleted topic is
    listed.

    Args:
        name: The sink.
        data: Delete its data too: keys, indexes, tables with their history.
        yes: Drop it without a confirmation.
        config: Configuration file.
    """
    path = config_file(config)
    settings = _settings(path)
    planned = dropping.plan_drop(settings, name, has_data=data)
    sink = planned.sink
    erase = eraser_of(sink) if sink is not None and planned.has_data else None
    routes = ", ".join(route.name for route in sink.route) if sink is not None else ""
    what = f"and all that it wrote ({routes})" if erase else "not its data"
    if not yes and not _confirm(f"drop the sink {name}, {what}?"):
        print(f"{name} stays")
        return 1
    broker = Topics(settings.kafka)
    services = dropping.DropServices(erase, broker, SystemClock(), print)
    dropping.carry_out_drop(path, _environ(), planned, services)
    print(f"{name} is dropped")
    return 0


def _check(settings: Settings, sink: Sink) -> None:
    # A route that nothing can fill is a mistake of the file: no server is needed.
    collections = filling.collections_of(settings, sink)
    with closing(TableShapes(settings)) as shapes:
        check_block(settings, sink, shapes)
    filling.check_fillable(settings, sink.name, collections)


def _fill(
    settings: Settings,
    sink: Sink,
    collections: list[str],
    max_rows_per_second: int | None,
    *,
    has_sweep: bool = False,
    signal_id: str | None = None,
) -> bool:
    """Fill a sink, or resume its fill, and wait until it has applied the snapshot."""
    source, clock = settings.database, SystemClock()
    begun, is_old = filling.begin_fill(
        settings, sink, collections, has_sweep=has_sweep, signal_id=signal_id
    )
    verb = "continues to fill" if is_old else "fills"
    print(f"snapshot {begun.signal_id} {verb} {sink.name}", flush=True)
    if signal_id:
        wanted = (begun.collections, sink.name, begun.signal_id)
        print(signals.statement(source, *wanted, max_rows_per_second), flush=True)
        filling.await_signal(source, begun, clock)
    with open_bars(Console(stderr=True)) as bars:
        answer = filling.carry_out_fill(
            source, sink, begun, clock, bars.show, max_rows_per_second
        )
    if answer.status != "completed":
        if answer.status != INCOMPLETE:
            filling.end_fill(settings, sink, begun, is_applied=False)
        print(f"the snapshot was {answer}; run this again", file=sys.stderr)
        return False
    ends = declare.sink_ends(settings, sink.name, Topics(settings.kafka))
    declare.wait_applied(settings, sink.name, ends, clock, _STUCK_AFTER_S)
    filling.end_fill(settings, sink, begun, is_applied=True)
    return True


def _report_parked(settings: Settings, name: str) -> int:
    """Report parked keys, which the filled sink may lack; return the exit code."""
    progress = read_progress(progress_path(settings.state_folder, name), name)
    if progress.parked:
        print(
            f"{progress.parked:,} keys of {name} are parked, each with its reason: "
            f"towpath dead-letters list --sink {name}",
            file=sys.stderr,
        )
    return int(progress.parked > 0)


def _confirm(question: str) -> bool:
    if not sys.stdin.isatty():
        message = "there is no terminal to confirm on: pass --yes"
        raise UsageError(message)
    return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}


def _environ() -> Mapping[str, str]:
    return os.environ  # noqa: TID251 - a root


def _settings(path: Path) -> Settings:
    return load(path, _environ())


class _RebuildContext(NamedTuple):
    """The sink that is rebuilt, and the parts that the steps need."""

    settings: Settings
    sink: Sink
    rebuild: "Rebuild"
    clock: Clock


def rebuild(
    sink: str,
    /,
    *,
    route: Annotated[str | None, Parameter(name="--route")] = None,
    config: ConfigOption = None,
) -> int:
    """
    Rebuild a search sink's indexes from the source, while searches go on.

    The sink must be running. A new index is created from the present tables and
    configuration, written beside the old one, filled by a snapshot, and put in its
    place in one step. Run the command again after a crash: it resumes. Exit 1 if the
    snapshot fails, or if records became dead letters meanwhile: then nothing is
    replaced.

    Args:
        sink: The sink.
        route: Only this route's index; left out, all of them, one after the other.
        config: Configuration file.
    """
    settings = _settings(config_file(config))
    declared = declare.sink_named(settings, sink)
    routes = _searched_routes(declared, route)
    for chosen in routes:
        # A route that cannot be filled is refused before an index is created.
        filling.collections_of(settings, declared, chosen.name)
    clock = SystemClock()
    declare.wait_running(settings, sink, clock, _RUNNING_WITHIN_S)
    with _open_rebuild(settings, declared) as opened:
        context = _RebuildContext(settings, declared, opened, clock)
        # One at a time, so that there is never more than one spare index.
        return max(_rebuild_route(context, chosen) for chosen in routes)


def _searched_routes(sink: Sink, route: str | None) -> list[Route]:
    if sink.kind != SinkKind.SEARCH:
        message = f"{sink.name} is a {sink.kind}: only a search index is rebuilt"
        raise NothingToRebuildError(message)
    chosen = [r for r in sink.route if route in {None, r.name}]
    if not chosen:
        known = ", ".join(r.name for r in sink.route)
        message = f"{sink.name} has no route {route}, only {known}"
        raise NothingToRebuildError(message)
    return chosen


@contextmanager
def _open_rebuild(settings: Settings, sink: Sink) -> Iterator["Rebuild"]:
    from towpath.sinks.targets.search.rebuild import Rebuild  # noqa: PLC0415 - keeps --help fast
    from towpath.sinks.targets.search.schema import RouteFields, event_schemas  # noqa: PLC0415 - keeps --help fast

    kafka, prefix = settings.kafka, settings.database.prefix
    announced = KafkaRelations(kafka, prefix)
    relations = RoutedRelations(announced, sink.route)
    fields = RouteFields(relations, event_schemas(sink.search, sink.route))
    opened = Rebuild(sink.url, sink.search, fields)
    try:
        yield opened
    finally:
        opened.close()
        announced.close()


def _rebuild_route(context: _RebuildContext, route: Route) -> int:
    """Rebuild one route; return 0 if its index was replaced, else 1."""
    letters_before = _dead_letters(context)
    # An interrupted rebuild may have left the old index after its swap.
    context.rebuild.retire(route, context.clock)
    begun = context.rebuild.begin(route, f"rebuild-{uuid.uuid4().hex[:12]}")
    word = "continues to fill" if begun.is_resumed else "fills"
    print(f"{route.name}: snapshot {begun.snapshot} {word} {begun.new}", flush=True)
    if not _fill_route(context, route, begun.snapshot):
        context.rebuild.abort(route)
        return 1
    cluster = Topics(context.settings.kafka)
    ends = declare.sink_ends(context.settings, context.sink.name, cluster)
    declare.wait_applied(
        context.settings, context.sink.name, ends, context.clock, _STUCK_AFTER_S
    )
    if more := _dead_letters(context) - letters_before:
        print(
            f"{more} records became dead letters meanwhile: {begun.new} may lack them "
            "and replaces nothing yet. Look at them, then run this command again: it "
            "resumes."
        )
        return 1
    done = context.rebuild.swap(route)
    print(
        f"{route.name}: {done.new} with {done.after:,} documents replaces {done.old} "
        f"with {done.before:,}",
        flush=True,
    )
    context.rebuild.retire(route, context.clock)
    return 0


def _fill_route(context: _RebuildContext, route: Route, snapshot: str) -> bool:
    """Request the snapshot, unless that was done before, and watch it to its end."""
    collections = filling.collections_of(context.settings, context.sink, route.name)
    fill = filling.SinkFill(snapshot, tuple(collections))
    source = context.settings.database
    with open_bars(Console(stderr=True)) as bars:
        answer = filling.carry_out_fill(
            source, context.sink, fill, context.clock, bars.show
        )
    if answer.status == "completed":
        return True
    print(f"{route.name} stays as it is: the snapshot was {answer}", file=sys.stderr)
    return False


def _dead_letters(context: _RebuildContext) -> int:
    path = progress_path(context.settings.state_folder, context.sink.name)
    return read_progress(path, context.sink.name).dead_letters
