"""
A kind of sink: how it is made, read back and checked; and where kinds are found.

Every kind is found in the same way, by an entry point of the group ``towpath.sinks``
whose value is a ``Kind``. Those that come with the platform need no installation: their
entry points stand here. A kind's module is imported only when a sink of it is declared.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

from towpath.schemas.clock import Clock
from towpath.schemas.failure import ConfigurationError, UsageError
from towpath.settings import RouteKind, Settings, SinkKind, WriteFrom
from towpath.settings import Sink as SinkSettings
from towpath.settings.kinds import KINDS_GROUP
from towpath.sinks.errors import KindBrokenError
from towpath.sinks.ports import RelationSource, Repairs, Sink, SinkReader, SqlSession
from towpath.sinks.routed import UnfitName, any_name

# Serving queries stay below 1 GB in all.
_SERVING_MEMORY: Final = "1g"


@dataclass(frozen=True, slots=True)
class SinkParts:
    """
    What a sink may be made of; take what is needed.

    Attributes:
        prefix: What all topics begin with.
        replay_window_s: How long an older change may still come: tombstones outlive it.
        folder: Where the sink may keep files of its own; it lives as long as the sink.
        relations: The shapes of the routes' tables, as the routes leave them.
        clock: The time.
        repairs: Has rows of this sink read anew.
        sql: The engine that runs the sink.
    """

    prefix: str
    replay_window_s: int
    folder: Path
    relations: RelationSource
    clock: Clock
    repairs: Repairs
    sql: SqlSession


@dataclass(frozen=True, slots=True)
class ExecutorParts:
    """
    What a sink may be made of on an executor; as of ``SinkParts``, what is there.

    It keeps no files and asks for nothing: whatever is no plain write is left to the
    driver's own sink.
    """

    prefix: str
    replay_window_s: int
    relations: RelationSource
    clock: Clock


def _no_mistakes(_: SinkSettings) -> Iterable[str]:
    return ()


def _no_settings(_: SinkSettings) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Kind:
    """
    One kind of sink.

    Attributes:
        make: Makes a sink that nothing is opened of yet.
        read: Makes what ``towpath verify`` reads it back with, from its settings and
            what all topics begin with; ``None`` if nobody can.
        erase: Takes away all that a sink wrote, given what all topics begin with; it
            is safe to repeat. ``None`` if that is nobody's to do.
        mistakes: Checks ``[sink.options]``; yields ``key: what is wrong with it``.
        engine: Further settings of the engine that runs the sink.
        memory: The heap that the engine needs at least, as Java takes it.
        routes: The kinds of route that it can write.
        rights: Lists what the target refuses to the sink's user, all of it, given what
            all topics begin with; nothing is written. ``None``: nobody can ask.
        unfit_name: Says why a column's name cannot be written, as the end of a sentence
            that begins with the name; empty: it can.
        spread: Makes the sink on an executor, where it writes a part of a batch: each
            key there once, beside other executors, and perhaps once more after it was
            given up. ``None``: it is written from the driver only.
        has_types: Whether the target's own columns have types, so that a column of
            another type is not simply written again.
    """

    make: Callable[[SinkSettings, SinkParts], Sink]
    read: Callable[[SinkSettings, str], SinkReader] | None = None
    erase: Callable[[SinkSettings, str], None] | None = None
    mistakes: Callable[[SinkSettings], Iterable[str]] = _no_mistakes
    engine: Callable[[SinkSettings], Mapping[str, str]] = _no_settings
    memory: str = _SERVING_MEMORY
    routes: frozenset[RouteKind] = frozenset({RouteKind.TABLE})
    rights: Callable[[SinkSettings, str], Iterable[str]] | None = None
    unfit_name: UnfitName = any_name
    spread: Callable[[SinkSettings, ExecutorParts], Sink] | None = None
    has_types: bool = False


_BUILT_IN: Final = {
    kind.value: EntryPoint(
        kind.value, f"towpath.sinks.built_in:{kind.name}", KINDS_GROUP
    )
    for kind in SinkKind
}


def kind_of(sink: SinkSettings) -> Kind:
    """
    Find the kind of a sink, and import it.

    Raises:
        KindBrokenError: The package that adds the kind gives none.
    """
    point = _BUILT_IN.get(sink.kind)
    if point is None:
        (point, *_) = entry_points(group=KINDS_GROUP, name=sink.kind)
    try:
        found = point.load()
    except Exception as error:
        message = f"the kind {sink.kind} ({point.value}) cannot be imported: {error}"
        raise KindBrokenError(message) from error
    if not isinstance(found, Kind):
        message = f"the kind {sink.kind} ({point.value}) is no towpath.sinks.kinds.Kind"
        raise KindBrokenError(message)
    return found


def check_kinds(sinks: Iterable[SinkSettings]) -> None:
    """
    Check what only a kind itself can check of its sinks.

    Raises:
        ConfigurationError: There are mistakes; all are listed.
        KindBrokenError: The package that adds a kind gives none.
    """
    mistakes = [mistake for sink in sinks for mistake in _mistakes(sink)]
    if mistakes:
        raise ConfigurationError(mistakes)


def _mistakes(sink: SinkSettings) -> Iterator[str]:
    kind = kind_of(sink)
    for route in sink.route:
        if route.kind not in kind.routes:
            yield (
                f"sink.{sink.name}.route.{route.name}.kind: the kind {sink.kind} "
                f"does not write a route of the kind {route.kind}"
            )
    if sink.write_from is WriteFrom.EXECUTORS and kind.spread is None:
        yield (
            f"sink.{sink.name}.write_from: the kind {sink.kind} is written from the "
            "driver only"
        )
    for mistake in kind.mistakes(sink):
        yield f"sink.{sink.name}.options.{mistake}"


def engine_settings(sinks: Iterable[SinkSettings]) -> dict[str, str]:
    """
    Return what the engine of a driver must be told for its sinks.

    Raises:
        UsageError: Two sinks want different things of it.
    """
    told: dict[str, tuple[str, str]] = {}
    for sink in sinks:
        for name, value in kind_of(sink).engine(sink).items():
            other, known = told.setdefault(name, (sink.name, value))
            if known != value:
                message = (
                    f"the sinks {other} and {sink.name} need different engines "
                    f"({name}): give each a driver of its own"
                )
                raise UsageError(message)
    return {name: value for name, (_, value) in told.items()}


def engine_memory(sinks: Iterable[SinkSettings]) -> str:
    """Return the heap that the sinks of a driver need."""
    needed = [kind_of(sink).memory for sink in sinks]
    return max(needed, key=_size_bytes, default=_SERVING_MEMORY)


def reader_of(sink: SinkSettings, settings: Settings) -> SinkReader:
    """
    Return the reader of a sink; nothing is opened yet.

    Raises:
        UsageError: The sink's address is not one, or nobody can read the sink back.
    """
    read = kind_of(sink).read
    if read is None:
        message = f"the sink {sink.name} cannot be read back: nothing to compare"
        raise UsageError(message)
    return read(sink, settings.database.prefix)


def eraser_of(sink: SinkSettings) -> Callable[[SinkSettings, str], None]:
    """
    Return what takes away all that a sink wrote; nobody may write meanwhile.

    Raises:
        UsageError: What this kind of sink wrote is not ours to take away.
    """
    found = kind_of(sink).erase
    if found is None:
        message = f"what {sink.name} wrote cannot be taken away: drop without --data"
        raise UsageError(message)
    return found


def _size_bytes(memory: str) -> int:
    """Read a size as Java takes it."""
    units = {"k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
    unit = memory[-1].lower()
    return int(memory[:-1]) * units[unit] if unit in units else int(memory)
