"""
Fill a sink with the existing rows, requested by one signal whose id is stored first.

Before a new sink is declared, the relay is checked: it must follow its slot and be able
to read every table and view that the sink's routes need.

The signal is recorded in ``<state>/sinks/<sink>/filling.json`` until the sink has
applied its snapshot. An interrupted command can be run again: it finds the id, sends
the signal if it was not sent, and waits again. No second snapshot is requested. A route
that is being refilled is noted as ``incomplete`` until the fill is applied. The fill
then removes the route's earlier notes, because its rows complete the route. A note that
is made during the fill is kept, because the rows that it reports may still be missing.
"""

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from towpath.deploy.errors import RelaySilentError, SignalRefusedError
from towpath.deploy.snapshots import signals
from towpath.deploy.snapshots.signals import (
    INCOMPLETE,
    SignalAnswer,
    TableProgress,
    wait_answer,
    watch,
)
from towpath.relay.errors import SourceRefusedError
from towpath.relay.postgres.catalog import PostgresCatalog
from towpath.relay.postgres.connect import Connection, connect, translated_errors
from towpath.relay.postgres.tables import TableRefusedError
from towpath.relay.postgres.views import CollectionCatalog
from towpath.schemas.clock import Clock
from towpath.schemas.failure import UsageError
from towpath.settings import Route, RouteKind, Settings, Sink, Source
from towpath.sinks.errors import SinkUnfitError
from towpath.sinks.kafka.repairs import announced_name, collection_of
from towpath.sinks.state import incomplete
from towpath.sinks.state.declare import fillable_routes
from towpath.sinks.state.progress import replace_file, sink_folder

FILLING_FILE: Final = "filling.json"

# A running relay answers within a second; a starting relay takes a few seconds.
_ANSWERED_WITHIN_S: Final = 30.0
_ID_CHARACTERS: Final = 12
_POLL_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class SinkFill:
    """
    One snapshot for one sink.

    Attributes:
        signal_id: The id of the signal and of the snapshot.
        collections: The tables and aggregates to read.
        has_sweep: Whether the sink deletes rows that the source lacks.
        noted: Earlier notes of missing rows, as pairs of route and snapshot.
    """

    signal_id: str
    collections: tuple[str, ...]
    has_sweep: bool = False
    noted: tuple[tuple[str, str], ...] = ()


def begin_fill(
    settings: Settings,
    sink: Sink,
    collections: Sequence[str],
    *,
    has_sweep: bool,
    signal_id: str | None = None,
) -> tuple[SinkFill, bool]:
    """
    Record a fill durably; return it, and whether it had already begun.

    Args:
        settings: The configuration.
        sink: The sink.
        collections: The tables and aggregates to read.
        has_sweep: Whether the sink deletes rows that the source lacks.
        signal_id: The signal's id; generated if omitted.

    Raises:
        UsageError: Another fill of the sink has not ended.
    """
    path = _path(settings, sink.name)
    routes = _filled_routes(settings, sink, collections) if has_sweep else []
    wanted = SinkFill(
        signal_id or f"{sink.name[:40]}-{uuid.uuid4().hex[:_ID_CHARACTERS]}",
        tuple(collections),
        has_sweep,
        incomplete.noted(settings.state_folder, sink.name, routes),
    )
    found = _stored(path)
    if found is None:
        replace_file(path, json.dumps(asdict(wanted)).encode())
        _note(settings, sink, wanted, routes)
        return wanted, False
    if (found.collections, found.has_sweep) != (wanted.collections, has_sweep):
        listed = ", ".join(found.collections)
        message = (
            f"{sink.name} is being filled from {listed}: complete that "
            "fill first, with the command that began it"
        )
        raise UsageError(message)
    _note(settings, sink, found, routes)
    return found, True


def check_new_signal(source: Source, signal_id: str) -> None:
    """
    Check the id of a signal that the user will insert.

    The answer to an earlier signal with this id would be mistaken for the fill's.

    Raises:
        UsageError: The id is empty or too long.
        SignalRefusedError: The signal exists already, or there is no signal table.
        SourceUnreachableError: The source does not answer.
        SourceRefusedError: The source refuses the statement.
    """
    if not 0 < len(signal_id) <= signals.LONGEST_ID:
        message = (
            f"the signal's id {signal_id!r} must have 1 to {signals.LONGEST_ID} "
            "characters"
        )
        raise UsageError(message)
    if signals.state(source, signal_id) is not None:
        message = f"signal {signal_id} already exists"
        raise SignalRefusedError(message)


def await_signal(source: Source, filling: SinkFill, clock: Clock) -> None:
    """
    Wait until the signal's row has been inserted.

    Raises:
        SourceUnreachableError: The source does not answer; run the command again.
    """
    while signals.state(source, filling.signal_id) is None:
        clock.wait(_POLL_EVERY_S)


def carry_out_fill(
    source: Source,
    sink: Sink,
    filling: SinkFill,
    clock: Clock,
    show: Callable[[Sequence[TableProgress]], None],
    max_rows_per_second: int | None = None,
) -> SignalAnswer:
    """
    Send the signal unless it was already sent, and watch the snapshot to its end.

    A snapshot that ended incomplete is resumed: it reads only the undelivered rows.

    Raises:
        SourceUnreachableError: The source does not answer; run the command again.
        RelaySilentError: No relay answers; run the command again.
    """
    known = signals.state(source, filling.signal_id)
    if known is not None and known[0] == INCOMPLETE:
        resume_id = signals.send(
            source, "resume-snapshot", {"snapshot-id": filling.signal_id}
        )
        wait_answer(source, resume_id, clock, _ANSWERED_WITHIN_S)
    if known is None:
        signals.request_snapshot(
            source,
            filling.collections,
            target=sink.name,
            max_rows_per_second=max_rows_per_second,
            signal_id=filling.signal_id,
            more_fields={"sweep": True} if filling.has_sweep else None,
        )
    answer = wait_answer(source, filling.signal_id, clock, _ANSWERED_WITHIN_S)
    return watch(source, filling.signal_id, clock, show) if answer.is_good else answer


def end_fill(
    settings: Settings, sink: Sink, filling: SinkFill, *, is_applied: bool
) -> None:
    """Delete the record and the notes of a fill that was applied or has failed."""
    routes = _filled_routes(settings, sink, filling.collections)
    own = [(route, filling.signal_id) for route in routes]
    for route, snapshot_id in (*own, *(filling.noted if is_applied else ())):
        incomplete.end(settings.state_folder, sink.name, route, snapshot_id)
    _path(settings, sink.name).unlink(missing_ok=True)


def _note(
    settings: Settings, sink: Sink, filling: SinkFill, routes: Iterable[str]
) -> None:
    """Note that routes lack rows, before the signal is sent."""
    for route in routes:
        incomplete.note(settings.state_folder, sink.name, route, filling.signal_id)


def _filled_routes(
    settings: Settings, sink: Sink, collections: Collection[str]
) -> list[str]:
    """Return the routes that read any of the collections."""
    return [
        route.name
        for route in fillable_routes(sink)
        if _found_collection(settings, route) in collections
    ]


def collections_of(
    settings: Settings, sink: Sink, route: str | None = None
) -> list[str]:
    """
    Return the distinct collections of a sink's routes, or of one route.

    An event log has none, because events cannot be read again.

    Raises:
        UsageError: There is no such route, or no view provides its rows.
    """
    chosen = [one for one in fillable_routes(sink) if route in {None, one.name}]
    if route is not None and not chosen:
        known = ", ".join(one.name for one in fillable_routes(sink))
        message = f"{sink.name} has no route {route} that can be filled: {known}"
        raise UsageError(message)
    return list(dict.fromkeys(_collection(settings, sink, one) for one in chosen))


def _collection(settings: Settings, sink: Sink, route: Route) -> str:
    found = _found_collection(settings, route)
    if found is not None:
        return found
    message = (
        f"{sink.name} cannot be filled: no view in relay.outbox.view "
        f"provides {route.topic}"
    )
    raise UsageError(message)


def _found_collection(settings: Settings, route: Route) -> str | None:
    """Return the collection of a route; None if no view provides its rows."""
    # An aggregate has one name, which stands for all views of its type.
    named = collection_of(settings, route, announced_name(settings, route))
    if named is None and route.kind is RouteKind.TABLE:
        return route.topic.removeprefix(f"{settings.database.prefix}.")
    return named


def _path(settings: Settings, sink: str) -> Path:
    return sink_folder(settings.state_folder, sink) / FILLING_FILE


def _stored(path: Path) -> SinkFill | None:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return SinkFill(
        document["signal_id"],
        tuple(document["collections"]),
        document["has_sweep"],
        tuple((route, snapshot_id) for route, snapshot_id in document["noted"]),
    )


def check_fillable(settings: Settings, sink: str, collections: Sequence[str]) -> None:
    """
    Check that the relay can read every collection from which a sink must be filled.

    Raises:
        SinkUnfitError: The relay would refuse some collections; the error lists them.
        RelaySilentError: No relay is consuming the slot.
        SourceUnavailableError: The source does not answer.
        SourceRefusedError: The source refuses the login.
    """
    if not collections:
        return
    with connect(settings.database.dsn) as connection:
        found = list(_refusals(connection, settings, collections))
        slot = (
            None if found else PostgresCatalog(connection).slot(settings.database.slot)
        )
    if found:
        raise SinkUnfitError("\n".join(f"{sink}: {reason}" for reason in found))
    if slot is None or not slot.is_active:
        message = (
            f"no relay is consuming the slot {settings.database.slot}: {sink} could "
            "not be filled, so it is not declared"
        )
        raise RelaySilentError(message)


def _refusals(
    connection: Connection, settings: Settings, collections: Sequence[str]
) -> Iterator[str]:
    """Yield the reason for each collection that the relay would refuse."""
    views = {view.collection: view for view in settings.relay.outbox.view}
    readable = CollectionCatalog(settings.database.publication, views)
    for collection in collections:
        try:
            with translated_errors(f"looking up {collection}"):
                readable.describe(connection, collection)
        except (TableRefusedError, SourceRefusedError) as error:
            yield f"{collection} cannot be read: {error}"
