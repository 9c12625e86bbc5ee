"""
Declares a new sink in a running system, without missing a change.

The order of the steps matters. The end offsets of the sink's topics are listed and
stored first. Then the sink's block is added to the configuration, and its driver starts
the query at exactly these offsets. The snapshot is requested last: its rows have
positions above everything committed before. A change between the listing and the
snapshot is read once or twice.
"""

import fcntl
import os
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from towpath.schemas.clock import Clock, Deadline, StallTimeout
from towpath.schemas.failure import ConfigurationError, UnavailableError, UsageError
from towpath.schemas.topics import backfill_topic
from towpath.settings import Route, RouteKind, Settings, Sink, load, read
from towpath.sinks.changes.routing import Routes
from towpath.sinks.errors import SinkExistsError, SinkNotRunningError, UnknownSinkError
from towpath.sinks.ports import Cluster
from towpath.sinks.state.files import TopicIds
from towpath.sinks.state.progress import (
    Offsets,
    Progress,
    State,
    progress_path,
    replace_file,
    sink_folder,
    write_progress,
)
from towpath.sinks.state.published import ProgressSource, ReceivedProgress, not_alive

STARTING_OFFSETS_FILE: Final = "starting_offsets.json"
READY_FILE: Final = "ready"
# The remaining steps of an interrupted drop.
DROPPING_FILE: Final = "dropping.json"

_CHECK_EVERY_S: Final = 0.2
# Longer than the checks of a new sink take, unless several servers do not answer.
_UNLOCKED_WITHIN_S: Final = 60.0


class Broker(Cluster, Protocol):
    """The operations of the broker that a new sink needs."""

    def create(self, name: str, settings: Settings) -> object:
        """
        Create a topic unless it exists.

        Raises:
            UnavailableError: The broker does not answer.
        """


def store_starting_offsets(
    settings: Settings, sink: Sink, broker: Broker, clock: Clock
) -> Offsets:
    """
    List the end offsets of a new sink's topics and store them for its first start.

    Records below them count as applied from now on. The topics of its snapshots are
    created, so that none appears while the query starts.

    Raises:
        SinkExistsError: A sink of that name has run before, or is not fully dropped.
        UnavailableError: The broker does not answer, or the state folder cannot
            be written.
    """
    folder = sink_folder(settings.state_folder, sink.name)
    if (folder / DROPPING_FILE).exists():
        message = f"{sink.name} is not fully dropped: run towpath sink drop {sink.name}"
        raise SinkExistsError(message)
    if (folder / "checkpoint").exists():
        message = f"a sink named {sink.name} has run before: {folder}"
        raise SinkExistsError(message)
    existing = broker.names()
    topics = Routes(sink).matching(existing)
    # The ids are stored before the offsets are read, so that a topic recreated after
    # this point is detected.
    TopicIds(folder).note(broker.topic_ids(topics))
    offsets = broker.end_offsets(topics)
    for topic in sorted(
        {backfill_topic(r.topic, sink.name) for r in fillable_routes(sink)}
    ):
        if topic not in existing:
            broker.create(topic, settings)
    content = orjson.dumps(offsets)
    replace_file(folder / STARTING_OFFSETS_FILE, content, is_durable=True)
    now = clock.now().isoformat()
    progress = Progress(sink=sink.name, applied=offsets, updated_at=now)
    write_progress(progress_path(settings.state_folder, sink.name), progress)
    return offsets


def fillable_routes(sink: Sink) -> list[Route]:
    """Return the routes that a snapshot can fill: all but event logs."""
    return [route for route in sink.route if route.kind is not RouteKind.EVENT_LOG]


def declare_sink(
    config: Path,
    block: str,
    environ: Mapping[str, str],
    broker: Broker,
    clock: Clock,
    check: Callable[[Settings, Sink], None] | None = None,
) -> Sink:
    """
    Add a ``[[sink]]`` block to the configuration; its driver then starts the sink.

    If an earlier attempt added the block, and the sink is not filled yet, the attempt
    is continued.

    Args:
        config: The configuration file.
        block: The block with its routes, as TOML.
        environ: The variables that override the file.
        broker: The broker.
        clock: The time.
        check: Checks that the sink fits its tables and its target; by default that
            is checked when it starts.

    Raises:
        ConfigurationError: The file with the block has mistakes; nothing was changed.
        SinkUnfitError: Tables or target do not fit; nothing was changed.
        SinkExistsError: The block does not declare exactly one sink with a new name, or
            a sink of that name has run before or is not fully dropped.
        UnavailableError: The broker does not answer, or the state folder cannot be
            written; the configuration is unchanged.
        UsageError: The file cannot be replaced, or another command is changing it.
    """
    # Replace the file that a symlink points to; its paths are relative to its folder.
    config = config.resolve()
    # A file that already has the block need not be replaceable.
    if (known := _known_sink(config, block, environ)) is not None:
        return known
    with changing(config, clock):
        if (known := _known_sink(config, block, environ)) is not None:
            return known
        text = config.read_text(encoding="utf-8")
        names = _names_in(text)
        whole = text.rstrip("\n") + "\n\n" + block.strip("\n") + "\n"
        with candidate_of(config, whole) as candidate:
            settings = load(candidate, environ)
            added = [sink for sink in settings.sink if sink.name not in names]
            if len(added) != 1:
                message = "the block must declare one sink with a new name"
                raise SinkExistsError(message)
            if check is not None:
                check(settings, added[0])
            store_starting_offsets(settings, added[0], broker, clock)
            candidate.replace(config)
    return added[0]


@contextmanager
def changing(config: Path, clock: Clock) -> Iterator[None]:
    """
    Keep other commands from changing a configuration while the caller changes it.

    The file must also be read within the ``with`` statement: writing text that was read
    earlier would undo another command's change.

    Args:
        config: The configuration file, not a link to it.
        clock: Waits while another command changes it.

    Raises:
        UsageError: Another command takes too long, or the configuration cannot be
            replaced.
    """
    path = config.with_name(f".{config.name}.lock")
    deadline = Deadline(clock, _UNLOCKED_WITHIN_S)
    try:
        while (lock := _locked(path)) is None:
            if deadline.passed():
                message = f"another command is changing {config}; try again"
                raise UsageError(message)
            clock.wait(_CHECK_EVERY_S)
    except OSError as error:
        reason = f"{path}: {error.strerror or error}"
        message = f"{config} cannot be replaced: {reason}"
        raise UsageError(message) from error
    with lock:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(path: Path) -> FileIO | None:
    """Create a file and lock it; ``None`` if another process has locked it."""
    file = FileIO(path, "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process that had locked it may have deleted it.
        is_ours = path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except (BlockingIOError, FileNotFoundError):
        is_ours = False
    except OSError:
        file.close()
        raise
    if is_ours:
        return file
    file.close()
    return None


@contextmanager
def candidate_of(config: Path, text: str) -> Iterator[Path]:
    """
    Provide a file with different text, next to a configuration that it may replace.

    It has the mode and, if permitted, the owner of the configuration, which may hold a
    password. At the end it is deleted, unless it has replaced the configuration.

    Args:
        config: The configuration file, not a link to it.
        text: The text of the candidate.

    Raises:
        UsageError: The configuration cannot be replaced.
    """
    candidate = config.with_name(f".{config.name}.new")
    try:
        status = config.stat()
        candidate.unlink(missing_ok=True)
        candidate.touch(mode=0o600)
        candidate.write_text(text, encoding="utf-8")
        with suppress(PermissionError):
            os.chown(candidate, status.st_uid, status.st_gid)
        candidate.chmod(stat.S_IMODE(status.st_mode))
        yield candidate
    except OSError as error:
        message = f"{config} cannot be replaced: {error.strerror or error}"
        raise UsageError(message) from error
    finally:
        candidate.unlink(missing_ok=True)


def _names_in(text: str) -> set[str]:
    """Return the names of the sinks in TOML text; ``load`` reports its mistakes."""
    try:
        return {str(one.get("name")) for one in _blocks(text)}
    except ConfigurationError:
        return set()


def _known_sink(config: Path, block: str, environ: Mapping[str, str]) -> Sink | None:
    """
    Return the file's sink with the block's name; ``None`` for a new name.

    Raises:
        ConfigurationError: The block is not TOML or has keys before its tables, or it
            or the file has mistakes.
        SinkExistsError: The sink has a different block, or is already filled.
    """
    wanted = {str(one.get("name")) for one in _blocks(block)}
    _refuse_loose_keys(block)
    text = config.read_text(encoding="utf-8")
    # Environment variables of the new sink are valid only with its block.
    if not wanted & _names_in(text):
        return None
    return _declared_before(load(config, environ), text, block, environ, config)


def _declared_before(
    settings: Settings, text: str, block: str, environ: Mapping[str, str], config: Path
) -> Sink | None:
    """
    Return the sink that an earlier attempt has declared; ``None`` for a new name.

    Raises:
        ConfigurationError: The block is not TOML, or has mistakes.
        SinkExistsError: The sink has a different block, or is already filled.
    """
    blocks = _blocks(block)
    names = [one.get("name") for one in blocks]
    declared = settings.sink_named(str(names[0])) if len(names) == 1 else None
    if declared is None:
        return None
    document = tomllib.loads(text)
    rest = [one for one in document["sink"] if one["name"] != declared.name]
    document["sink"] = [*rest, *blocks]
    expected = read(document, environ, config.resolve().parent).sink_named(
        declared.name
    )
    if expected != declared:
        message = f"a sink named {declared.name} is declared with a different block"
        raise SinkExistsError(message)
    if (sink_folder(settings.state_folder, declared.name) / READY_FILE).exists():
        message = f"the sink {declared.name} is already declared and filled"
        raise SinkExistsError(message)
    return declared


def _refuse_loose_keys(block: str) -> None:
    """Refuse keys before the first header: the file's last table would get them."""
    # Like the file's last table, one without a name gets them.
    loose, *_ = _parsed(f'[[""]]\n{block}')[""]
    if loose:
        message = f"the block: {', '.join(loose)} must follow [[sink]]"
        raise ConfigurationError([message])


def _blocks(block: str) -> list[dict[str, Any]]:
    found = _parsed(block).get("sink", [])
    is_tables = isinstance(found, list) and all(isinstance(one, dict) for one in found)
    return found if is_tables else []


def _parsed(block: str) -> dict[str, Any]:
    try:
        return tomllib.loads(block)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError([f"the block: not TOML: {error}"]) from error


def wait_running(
    settings: Settings,
    name: str,
    source: ProgressSource,
    clock: Clock,
    timeout_s: float,
) -> None:
    """
    Wait until a sink's query is running, so that a snapshot may be requested.

    Raises:
        SinkNotRunningError: The sink is not running in time; the message has its error.
        UnreadableProgressError: A driver of a different version runs the sink.
        UnavailableError: The broker does not answer.
    """
    deadline = Deadline(clock, timeout_s)
    while True:
        received = source.read(name)
        if _state_of(received) in {State.RUNNING, State.READY}:
            return
        if deadline.passed():
            why = _why_not(settings, name, received)
            message = f"the sink {name} is not running after {timeout_s:g} s: {why}"
            raise SinkNotRunningError(message)
        clock.wait(_CHECK_EVERY_S)


def _state_of(received: ReceivedProgress | None) -> State | None:
    """Return the state of a sink; ``None`` if no driver is running it."""
    if received is None or not received.is_alive:
        return None
    return received.record.progress.state


def _why_not(settings: Settings, name: str, received: ReceivedProgress | None) -> str:
    """Return the reason why a sink is not running."""
    if received is not None and received.is_alive:
        return received.record.progress.error or "it is starting"
    driver = sink_named(settings, name).driver
    return f"no driver runs it: run towpath sink run --driver {driver}"


def wait_applied(
    name: str,
    offsets: Offsets,
    source: ProgressSource,
    clock: Clock,
    stuck_after_s: float,
) -> None:
    """
    Wait until a sink has applied everything below the given offsets.

    The timeout applies to the time between two batches; it does not run while a batch
    is being written. A broker that does not answer for a while is not a failure.

    Raises:
        SinkNotRunningError: The sink makes no progress; the message has its error.
        UnreadableProgressError: A driver of a different version runs the sink.
    """
    stall = StallTimeout(clock, stuck_after_s)
    left, count = records_between({}, offsets), "an unknown number of"
    while True:
        received: ReceivedProgress | None = None
        try:
            received = source.read(name)
        except UnavailableError as error:
            why_not: str | None = str(error)
        else:
            why_not = _why_stalled(received, name)
            applied = {} if received is None else received.certain
            left = records_between(applied, offsets)
            count = str(left)
        if not left:
            return
        if received is not None and received.is_alive and received.record.is_writing:
            stall = StallTimeout(clock, stuck_after_s)
        if stall.is_over(left):
            why = why_not or f"it has applied no record for {stuck_after_s:g} s"
            message = f"the sink {name} is {count} records behind: {why}"
            raise SinkNotRunningError(message)
        clock.wait(_CHECK_EVERY_S)


def _why_stalled(received: ReceivedProgress | None, name: str) -> str | None:
    """Return why a sink makes no progress, if known."""
    own = None if received is None else received.record.progress.error
    return not_alive(received, name) or own


def mark_ready(settings: Settings, name: str) -> None:
    """Mark a new sink as filled: its snapshot has ended and is applied."""
    replace_file(sink_folder(settings.state_folder, name) / READY_FILE, b"")


def sink_ends(settings: Settings, name: str, cluster: Cluster) -> Offsets:
    """
    Return the current end offsets of a sink's topics.

    Raises:
        UnknownSinkError: There is no such sink.
        UnavailableError: The broker does not answer.
    """
    routes = Routes(sink_named(settings, name))
    return cluster.end_offsets(routes.matching(cluster.names()))


def records_between(applied: Offsets, ends: Offsets) -> int:
    """Count the records below ``ends`` that are not below ``applied``."""
    return sum(
        max(0, end - applied.get(topic, {}).get(partition, 0))
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )


def sink_named(settings: Settings, name: str) -> Sink:
    """
    Find a sink.

    Raises:
        UnknownSinkError: There is no such sink.
    """
    sink = settings.sink_named(name)
    if sink is None:
        known = ", ".join(s.name for s in settings.sink) or "none"
        message = f"no sink is named {name}; the declared sinks: {known}"
        raise UnknownSinkError(message)
    return sink
