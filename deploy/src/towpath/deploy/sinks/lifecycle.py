"""
Adds, refills, rebuilds and drops sinks, for ``towpath sink`` and the console.

Each change reports its steps. A change that fills a sink returns whether it succeeded
in full. An interrupted change resumes when it is called again with the same arguments.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from towpath.deploy.sinks import dropping, filling
from towpath.deploy.snapshots import signals
from towpath.deploy.snapshots.signals import INCOMPLETE, TableProgress
from towpath.deploy.status import progress_of
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import Route, Settings, Sink, SinkKind, load
from towpath.sinks.cli.sink import TableShapes
from towpath.sinks.errors import NothingToRebuildError, SinkNotRunningError
from towpath.sinks.kafka.client import KafkaRelations, Topics
from towpath.sinks.kafka.progress_topic import ProgressReader, ProgressTopic
from towpath.sinks.kinds import RoutedRelations, eraser_of
from towpath.sinks.state import declare
from towpath.sinks.state.files import JsonFile
from towpath.sinks.state.progress import sink_folder
from towpath.sinks.state.published import ProgressSource
from towpath.sinks.targets.checks import check_block

if TYPE_CHECKING:
    from towpath.sinks.targets.search.rebuild import Rebuild, RebuildStart

RUNNING_WITHIN_S: Final = 60.0
_STUCK_AFTER_S: Final = 300.0

REBUILDS_FILE: Final = "rebuilds.json"


class LifecycleReport(Protocol):
    """Shows the user the steps of a change to a sink."""

    def say(self, line: str) -> None:
        """Show a step."""

    def warn(self, line: str) -> None:
        """Warn the user about work that remains."""

    def watching(
        self,
    ) -> AbstractContextManager[Callable[[Sequence[TableProgress]], None]]:
        """Show the progress of a snapshot until the ``with`` block ends."""


def add_sink(
    path: Path,
    environ: Mapping[str, str],
    block: str,
    report: LifecycleReport,
    *,
    max_rows_per_second: int | None = None,
    signal_id: str | None = None,
) -> bool:
    """
    Add a sink while the platform runs, and fill it from the existing rows.

    Args:
        path: The configuration file.
        environ: Environment variables that override the file.
        block: One ``[[sink]]`` block with its routes, as TOML.
        report: Shows the steps.
        max_rows_per_second: Limit on the reading speed.
        signal_id: Show the SQL statement that requests the snapshot with this id, and
            wait until it has been run, instead of sending the signal.

    Raises:
        TowpathError: The block is refused, or a part does not answer.
    """
    settings = load(path, environ)
    cluster, clock = Topics(settings.kafka), SystemClock()
    check = partial(_check, signal_id)
    sink = declare.declare_sink(path, block, environ, cluster, clock, check)
    report.say(f"{sink.name} is declared")
    settings = load(path, environ)
    collections = filling.collections_of(settings, sink)
    try:
        _wait_running(settings, sink)
    except SinkNotRunningError:
        report.warn(
            f"{sink.name} remains declared. If its block has a mistake, correct it in "
            f"{path} and in the block that you pass. Then run towpath sink add again, "
            f"or towpath sink drop {sink.name}"
        )
        raise
    request = _FillRequest(collections, max_rows_per_second, signal_id=signal_id)
    if collections and not _fill(settings, sink, request, report):
        report.warn(
            f"{sink.name} remains declared, without its earlier rows: run the same "
            f"towpath sink add again, or towpath sink drop {sink.name}"
        )
        return False
    declare.mark_ready(settings, sink.name)
    report.say(f"{sink.name} is ready")
    return _nothing_is_parked(settings, sink, report)


def fillable_sink(
    settings: Settings, name: str, route: str | None = None
) -> tuple[Sink, list[str]]:
    """
    Return a declared sink, and the collections that fill it or one of its routes.

    Raises:
        UsageError: There is no such sink or route, or it stores only events.
    """
    sink = declare.sink_named(settings, name)
    collections = filling.collections_of(settings, sink, route)
    if not collections:
        message = f"{name} stores only events, which cannot be read again"
        raise UsageError(message)
    return sink, collections


def refill_sink(
    settings: Settings,
    name: str,
    report: LifecycleReport,
    *,
    route: str | None = None,
    max_rows_per_second: int | None = None,
) -> bool:
    """
    Read all existing rows into a sink again; rows that the source lacks are deleted.

    Args:
        settings: The configuration.
        name: The sink.
        report: Shows the steps.
        route: Only this route.
        max_rows_per_second: Limit on the reading speed.

    Raises:
        TowpathError: There is no such sink or route, or a part does not answer.
    """
    sink, collections = fillable_sink(settings, name, route)
    request = _FillRequest(collections, max_rows_per_second, has_sweep=True)
    if not _fill(settings, sink, request, report):
        return False
    report.say(f"{name} is refilled")
    return _nothing_is_parked(settings, sink, report)


def drop_sink(
    path: Path,
    environ: Mapping[str, str],
    planned: dropping.DropPlan,
    report: LifecycleReport,
) -> None:
    """
    Drop a sink as planned.

    Args:
        path: The configuration file.
        environ: Environment variables that override the file.
        planned: The result of ``dropping.plan_drop``.
        report: Shows the steps.

    Raises:
        TowpathError: The driver does not release the sink, or a part does not answer.
    """
    settings, sink = load(path, environ), planned.sink
    erase = eraser_of(sink) if sink is not None and planned.deletes_data else None
    clock, broker = SystemClock(), Topics(settings.kafka)
    forget = ProgressTopic(settings, clock).drop
    services = dropping.DropServices(erase, forget, broker, clock, report.say)
    dropping.carry_out_drop(path, environ, planned, services)
    report.say(f"{planned.name} is dropped")


def drop_question(planned: dropping.DropPlan) -> str:
    """Return the question that confirms a drop."""
    sink = planned.sink
    erase = eraser_of(sink) if sink is not None and planned.deletes_data else None
    routes = ", ".join(route.name for route in sink.route) if sink is not None else ""
    data = f", and all that it wrote ({routes})" if erase else " but keep its data"
    return f"drop the sink {planned.name}{data}?"


def _wait_running(settings: Settings, sink: Sink) -> None:
    clock = SystemClock()
    with closing(ProgressReader(settings, clock)) as published:
        declare.wait_running(settings, sink.name, published, clock, RUNNING_WITHIN_S)


def _check(signal_id: str | None, settings: Settings, sink: Sink) -> None:
    # This check runs first because it needs no server.
    # It refuses a route that nothing can fill.
    collections = filling.collections_of(settings, sink)
    if signal_id is not None:
        filling.check_new_signal(settings.database, signal_id)
    with closing(TableShapes(settings)) as shapes:
        check_block(settings, sink, shapes)
    filling.check_fillable(settings, sink.name, collections)


class _FillRequest(NamedTuple):
    """A fill of a sink: its collections, and the options of its snapshot."""

    collections: list[str]
    max_rows_per_second: int | None = None
    has_sweep: bool = False
    signal_id: str | None = None


def _fill(
    settings: Settings, sink: Sink, request: _FillRequest, report: LifecycleReport
) -> bool:
    """Fill a sink, or resume its fill, and wait until it has applied the snapshot."""
    source, clock = settings.database, SystemClock()
    begun, is_old = filling.begin_fill(
        *(settings, sink, request.collections),
        has_sweep=request.has_sweep,
        signal_id=request.signal_id,
    )
    verb = "continues to fill" if is_old else "fills"
    report.say(f"snapshot {begun.signal_id} {verb} {sink.name}")
    speed = request.max_rows_per_second
    if request.signal_id is not None:
        requested = (begun.collections, sink.name, begun.signal_id)
        report.say(signals.statement(source, *requested, speed))
        filling.await_signal(source, begun, clock)
    with report.watching() as show:
        answer = filling.carry_out_fill(source, sink, begun, clock, show, speed)
    if answer.status != "completed":
        if answer.status != INCOMPLETE:
            filling.end_fill(settings, sink, begun, is_applied=False)
        report.warn(f"the snapshot did not complete ({answer}); run this again")
        return False
    ends = declare.sink_ends(settings, sink.name, Topics(settings.kafka))
    with closing(ProgressReader(settings, clock)) as published:
        declare.wait_applied(sink.name, ends, published, clock, _STUCK_AFTER_S)
    filling.end_fill(settings, sink, begun, is_applied=True)
    return True


def _nothing_is_parked(settings: Settings, sink: Sink, report: LifecycleReport) -> bool:
    """Warn of parked keys, whose rows may be missing; return whether there are none."""
    with closing(ProgressReader(settings, SystemClock())) as published:
        progress = progress_of(published, sink)
    if progress.parked:
        is_one = progress.parked == 1
        keys, verb = ("key", "is") if is_one else ("keys", "are")
        report.warn(
            f"{progress.parked:,} {keys} of {sink.name} {verb} parked; list the "
            f"reasons: towpath dead-letters list --sink {sink.name}"
        )
    return not progress.parked


class _RebuildContext(NamedTuple):
    """The sink that is rebuilt, and the objects that the steps need."""

    settings: Settings
    sink: Sink
    rebuild: "Rebuild"
    published: ProgressSource
    clock: Clock
    report: LifecycleReport


def rebuild_sink(
    settings: Settings, name: str, report: LifecycleReport, *, route: str | None = None
) -> bool:
    """
    Rebuild a search sink's indexes from the source, while searches continue.

    Args:
        settings: The configuration.
        name: The sink, which must be running.
        report: Shows the steps.
        route: Only this route's index; None for all, one after the other.

    Raises:
        NothingToRebuildError: The sink is not a search sink, or has no such route.
        TowpathError: The sink is not running, or a part does not answer.
    """
    declared, routes = searched_routes(settings, name, route)
    clock = SystemClock()
    with (
        closing(ProgressReader(settings, clock)) as published,
        _open_rebuild(settings, declared) as opened,
    ):
        declare.wait_running(settings, name, published, clock, RUNNING_WITHIN_S)
        context = _RebuildContext(settings, declared, opened, published, clock, report)
        # One route at a time, so that there is never more than one spare index.
        replaced = [_rebuild_route(context, chosen) for chosen in routes]
    return all(replaced)


def searched_routes(
    settings: Settings, name: str, route: str | None = None
) -> tuple[Sink, list[Route]]:
    """
    Return a declared search sink, and the routes whose indexes are to be rebuilt.

    Raises:
        UsageError: There is no such sink, or a route cannot be filled.
        NothingToRebuildError: The sink is not a search sink, or has no such route.
    """
    sink = declare.sink_named(settings, name)
    routes = _searched_routes(sink, route)
    for chosen in routes:
        # A route that cannot be filled is refused before an index is created.
        filling.collections_of(settings, sink, chosen.name)
    return sink, routes


def _searched_routes(sink: Sink, route: str | None) -> list[Route]:
    if sink.kind != SinkKind.SEARCH:
        message = f"{sink.name} is a {sink.kind}: only a search index can be rebuilt"
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
    with closing(KafkaRelations(kafka, prefix)) as announced:
        relations = RoutedRelations(announced, sink.route)
        fields = RouteFields(relations, event_schemas(sink.search, sink.route))
        with closing(Rebuild(sink.url, sink.search, fields)) as opened:
            yield opened


def _rebuild_route(context: _RebuildContext, route: Route) -> bool:
    """Rebuild one route; return whether its index was replaced."""
    report = context.report
    # A rebuild that was interrupted after its swap may have left the old index.
    context.rebuild.retire(route, context.clock)
    earlier_count, begun = _begin_rebuild(context, route)
    verb = "continues to fill" if begun.is_resumed else "fills"
    report.say(f"{route.name}: snapshot {begun.snapshot} {verb} {begun.new}")
    if not _fill_route(context, route, begun.snapshot):
        context.rebuild.abort(route)
        return False
    cluster = Topics(context.settings.kafka)
    ends = declare.sink_ends(context.settings, context.sink.name, cluster)
    published, clock = context.published, context.clock
    declare.wait_applied(context.sink.name, ends, published, clock, _STUCK_AFTER_S)
    count = _count_dead_letters(context)
    if count != earlier_count:
        _store_count(context, route, count)
        report.say(
            f"records became dead letters meanwhile: {begun.new} may lack them and "
            "replaces nothing yet. Inspect the dead letters, then run this command "
            "again: it resumes the rebuild."
        )
        return False
    done = context.rebuild.swap(route)
    report.say(
        f"{route.name}: {done.new} with {done.after:,} documents replaces {done.old} "
        f"with {done.before:,}"
    )
    context.rebuild.retire(route, context.clock)
    return True


def _begin_rebuild(
    context: _RebuildContext, route: Route
) -> tuple[int, "RebuildStart"]:
    """
    Begin or resume a rebuild; return the number of earlier dead letters, and the start.

    That number is stored before the index is created, so that a resumed rebuild also
    notices dead letters that were written before its interruption.
    """
    count = _count_dead_letters(context)
    # If the sink's progress was lost, the stored number is higher than the current one.
    # The two numbers then differ as well, so nothing is replaced.
    before = _counts_file(context).read().get(route.name, count)
    _store_count(context, route, before)
    begun = context.rebuild.begin(route, f"rebuild-{uuid.uuid4().hex[:12]}")
    if not begun.is_resumed:
        # The stored number may belong to an index that has since been deleted.
        before = count
        _store_count(context, route, before)
    return before, begun


def _store_count(context: _RebuildContext, route: Route, count: int) -> None:
    file = _counts_file(context)
    file.keep({**file.read(), route.name: count})


def _counts_file(context: _RebuildContext) -> JsonFile[int]:
    """Return the file with the number of dead letters before each route's rebuild."""
    folder = sink_folder(context.settings.state_folder, context.sink.name)
    return JsonFile(folder / REBUILDS_FILE)


def _fill_route(context: _RebuildContext, route: Route, snapshot: str) -> bool:
    """Request the snapshot, unless it was requested before, and watch it to its end."""
    collections = filling.collections_of(context.settings, context.sink, route.name)
    fill = filling.SinkFill(snapshot, tuple(collections))
    source = context.settings.database
    with context.report.watching() as show:
        answer = filling.carry_out_fill(source, context.sink, fill, context.clock, show)
    if answer.status == "completed":
        return True
    context.report.warn(
        f"{route.name} is unchanged: the snapshot did not complete ({answer})"
    )
    return False


def _count_dead_letters(context: _RebuildContext) -> int:
    return progress_of(context.published, context.sink).dead_letters
