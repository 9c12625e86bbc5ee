"""``towpath sink rebuild``: a new search index in the place of the old one."""

import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from cyclopts import Parameter
from rich.console import Console

from towpath.deploy import filling
from towpath.deploy.cli.places import ConfigOption, config_file
from towpath.deploy.snapshot_view import open_bars
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.events import event_schemas
from towpath.settings import Route, Settings, Sink, SinkKind, load
from towpath.sinks import declare
from towpath.sinks.errors import NothingToRebuildError
from towpath.sinks.kafka import KafkaRelations, Topics
from towpath.sinks.progress import progress_path, read_progress
from towpath.sinks.routed import RoutedRelations

if TYPE_CHECKING:
    from towpath.sinks.search.rebuild import Rebuild

_RUNNING_WITHIN_S: Final = 60.0
_STUCK_AFTER_S: Final = 300.0


class _Work(NamedTuple):
    """What a rebuild works with."""

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

    The sink must be running. A new index is made as the tables and the configuration
    are now, written beside the old one, filled by a snapshot and put into its place in
    one step. Said again after a crash, it goes on where it stood. Exit 1 if the
    snapshot fails, or if records were set aside meanwhile: then nothing is replaced.

    Args:
        sink: The sink.
        route: Only this route's index; left out, all of them, one after the other.
        config: Configuration file.
    """
    settings = load(config_file(config), os.environ)  # noqa: TID251 - a root
    declared = declare.sink_named(settings, sink)
    routes = _chosen(declared, route)
    for chosen in routes:
        # What cannot be filled is told before anything is made.
        filling.collections_of(settings, declared, chosen.name)
    clock = SystemClock()
    declare.wait_running(settings, sink, clock, _RUNNING_WITHIN_S)
    with _rebuild(settings, declared) as opened:
        work = _Work(settings, declared, opened, clock)
        # One after the other, so that there is never more than one index too many.
        return max(_rebuilt(work, chosen) for chosen in routes)


def _chosen(sink: Sink, route: str | None) -> list[Route]:
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
def _rebuild(settings: Settings, sink: Sink) -> Iterator["Rebuild"]:
    from towpath.sinks.search.fields import RouteFields  # noqa: PLC0415 - keeps --help fast
    from towpath.sinks.search.rebuild import Rebuild  # noqa: PLC0415 - keeps --help fast

    kafka, prefix = settings.kafka, settings.database.prefix
    announced = KafkaRelations(kafka, prefix)
    relations = RoutedRelations(announced, sink.route)
    fields = RouteFields(relations, event_schemas())
    opened = Rebuild(sink.url, sink.search, fields)
    try:
        yield opened
    finally:
        opened.close()
        announced.close()


def _rebuilt(work: _Work, route: Route) -> int:
    """Rebuild one route; tell whether it has come to its end, as an exit code."""
    aside = _dead_letters(work)
    # What a rebuild has left that was cut off at its very end.
    work.rebuild.retire(route, work.clock)
    begun = work.rebuild.begin(route, f"rebuild-{uuid.uuid4().hex[:12]}")
    word = "goes on with" if begun.is_resumed else "fills"
    print(f"{route.name}: snapshot {begun.snapshot} {word} {begun.new}", flush=True)
    if not _filled(work, route, begun.snapshot):
        work.rebuild.give_up(route)
        return 1
    cluster = Topics(work.settings.kafka)
    ends = declare.sink_ends(work.settings, work.sink.name, cluster)
    declare.wait_applied(
        work.settings, work.sink.name, ends, work.clock, _STUCK_AFTER_S
    )
    if more := _dead_letters(work) - aside:
        print(
            f"{more} records were set aside meanwhile: {begun.new} may lack them and "
            "replaces nothing yet. Look at them, then say this again: it goes on."
        )
        return 1
    done = work.rebuild.swap(route)
    print(
        f"{route.name}: {done.new} with {done.after:,} documents replaces {done.old} "
        f"with {done.before:,}",
        flush=True,
    )
    work.rebuild.retire(route, work.clock)
    return 0


def _filled(work: _Work, route: Route, snapshot: str) -> bool:
    """Ask for the snapshot, unless that was done before, and watch it to its end."""
    collections = filling.collections_of(work.settings, work.sink, route.name)
    asked = filling.Filling(snapshot, tuple(collections))
    source = work.settings.database
    with open_bars(Console(stderr=True)) as bars:
        answer = filling.carry_out(source, work.sink, asked, work.clock, bars.show)
    if answer.status == "completed":
        return True
    told = f"{answer.status}: {answer.reason}" if answer.reason else answer.status
    print(f"{route.name} stays as it is: the snapshot was {told}", file=sys.stderr)
    return False


def _dead_letters(work: _Work) -> int:
    path = progress_path(work.settings.state_folder, work.sink.name)
    return read_progress(path, work.sink.name).dead_letters
