"""
Drop a sink: its block, its state, its topics and, if asked for, what it wrote.

The others run on.

What is to be done is written down first, so that a drop which was interrupted at any
moment is ended by the same command. Then the block goes, whereupon the driver lets go
of the sink; only who holds the sink's folder takes anything away.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from towpath.deploy.errors import SinkHeldError
from towpath.deploy.own_topics import Broker, delete_own
from towpath.deploy.sink_block import without_sink
from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.failure import UsageError
from towpath.settings import Settings, Sink, load
from towpath.sinks.declare import DROPPING_FILE, sink_named
from towpath.sinks.held import HELD_FILE, Held, hold
from towpath.sinks.progress import replace_file, sink_folder

# Longer than a driver waits for a batch that is under way.
LET_GO_WITHIN_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.2
_KEPT_TO_THE_END: Final = frozenset({DROPPING_FILE, HELD_FILE})

Erase = Callable[[Sink, str], None]


@dataclass(frozen=True, slots=True)
class Dropping:
    """
    A sink to be dropped.

    Attributes:
        sink: How it was declared; ``None`` if only its state is left.
        has_data: Whether what it wrote goes too.
    """

    name: str
    sink: Sink | None
    has_data: bool


@dataclass(frozen=True, slots=True)
class Means:
    """
    What a drop works with.

    Attributes:
        erase: Takes away what a sink wrote; ``None``: that stays.
        broker: Whose topics of the sink's own go.
        clock: The time.
        tell: Is told of each thing that is gone.
    """

    erase: Erase | None
    broker: Broker
    clock: Clock
    tell: Callable[[str], None]


def plan(settings: Settings, name: str, *, has_data: bool) -> Dropping:
    """
    Return what is to be dropped: now, or since an earlier attempt.

    Raises:
        UnknownSinkError: There is no such sink, and none is being dropped.
        UsageError: Another sink writes the same places.
    """
    begun = _begun(settings, name)
    if begun is not None:
        has_data = has_data or begun.has_data
    sink = settings.sink_named(name) or (begun.sink if begun else None)
    is_left = sink_folder(settings.state_folder, name).is_dir()
    if sink is None and (has_data or not is_left):
        sink = sink_named(settings, name)
    if sink is not None and has_data:
        _refuse_shared(settings, sink)
    return Dropping(name, sink, has_data)


def carry_out(
    config: Path, environ: Mapping[str, str], dropping: Dropping, means: Means
) -> None:
    """
    Drop a sink; safe to repeat.

    Args:
        config: The configuration file.
        environ: What overrides it.
        dropping: What ``plan`` returned.
        means: What to work with.

    Raises:
        ConfigurationError: The file without the block has mistakes: it stays.
        UsageError: The block must be cut by hand; nothing was changed.
        SinkHeldError: The sink's driver does not let go of it.
        UnavailableError: What the sink wrote, or the broker, cannot be reached.
    """
    name, sink, tell = dropping.name, dropping.sink, means.tell
    settings = load(config, environ)
    folder = sink_folder(settings.state_folder, name)
    if sink is not None and settings.sink_named(name) is not None:
        _cut(config, environ, dropping, sink, folder)
        tell(f"deleted: the block of {name} in {config}")
    held = _hold(settings, name, means.clock)
    try:
        if sink is not None and means.erase is not None:
            means.erase(sink, settings.database.prefix)
            for route in sink.route:
                tell(f"deleted: all of {route.name} ({sink.kind})")
        for told in delete_own(settings, name, sink, means.broker, means.clock):
            tell(told)
        _clear(folder)
        tell(f"deleted: {folder}")
    finally:
        held.release()


def _cut(
    config: Path,
    environ: Mapping[str, str],
    dropping: Dropping,
    sink: Sink,
    folder: Path,
) -> None:
    """Take the block out of the file, once what is to be done is written down."""
    candidate = config.with_name(f".{config.name}.dropping")
    try:
        text = without_sink(config.read_text(encoding="utf-8"), sink.name)
        candidate.write_text(text, encoding="utf-8")
        load(candidate, environ)
        _write(folder / DROPPING_FILE, sink, has_data=dropping.has_data)
        candidate.replace(config)
    finally:
        candidate.unlink(missing_ok=True)


def _refuse_shared(settings: Settings, sink: Sink) -> None:
    names = {route.name for route in sink.route}
    for other in settings.sink:
        shared = sorted(names & {route.name for route in other.route})
        if other.name != sink.name and other.target == sink.target and shared:
            message = f"{other.name} writes {shared[0]} too: drop without --data"
            raise UsageError(message)


def _hold(settings: Settings, name: str, clock: Clock) -> Held:
    deadline = Deadline(clock, LET_GO_WITHIN_S)
    while (held := hold(settings.state_folder, name)) is None:
        if deadline.passed():
            message = f"the driver of {name} did not let go in {LET_GO_WITHIN_S:g} s"
            raise SinkHeldError(message)
        clock.wait(_LOOK_EVERY_S)
    return held


def _begun(settings: Settings, name: str) -> Dropping | None:
    path = sink_folder(settings.state_folder, name) / DROPPING_FILE
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    sink = Sink.model_validate(document["sink"])
    return Dropping(name, sink, document["has_data"])


def _write(path: Path, sink: Sink, *, has_data: bool) -> None:
    told = sink.model_dump(mode="json", exclude_unset=True)
    replace_file(path, json.dumps({"sink": told, "has_data": has_data}).encode())
    # An address may hold a password: nobody else is to read it.
    path.chmod(0o600)


def _clear(folder: Path) -> None:
    """Take the state away, and last of all what says that something is left to do."""
    for one in folder.iterdir():
        if one.name in _KEPT_TO_THE_END:
            continue
        if one.is_dir():
            shutil.rmtree(one)
        else:
            one.unlink()
    (folder / DROPPING_FILE).unlink(missing_ok=True)
    shutil.rmtree(folder)
