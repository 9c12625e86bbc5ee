"""
Drop a sink: its block, its state, its topics and, if requested, its data.

The plan is recorded first, so that the same command completes an interrupted drop. Then
the block is removed from the configuration, and the driver releases the sink. Data is
deleted only while the lock of the sink's folder is held.

- The block is removed from the file's text. The rest is unchanged, except that each run
  of blank lines becomes one blank line, unless a value contains such a run. The result
  must parse to the same document as the old text without that sink.
- The topics of a sink contain its dead letters, copies of its state, and the rows that
  snapshots read for it. Snapshots that are still reading rows for the sink are stopped
  first, because the relay would otherwise wait for a deleted topic.
- Other sinks continue.
"""

import json
import re
import shutil
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from towpath.deploy.errors import (
    SignalRefusedError,
    SinkHeldError,
    SourceUnreachableError,
)
from towpath.deploy.snapshots import signals
from towpath.deploy.snapshots.signals import wait_answer
from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.failure import UsageError
from towpath.schemas.topics import (
    BACKFILL,
    backfill_topic,
    dead_letter_topic,
    sink_state_topic,
    table_of,
)
from towpath.settings import Settings, Sink, Source, load
from towpath.settings.section import NAME
from towpath.sinks.errors import UnknownSinkError
from towpath.sinks.state.declare import (
    DROPPING_FILE,
    candidate_of,
    changing,
    fillable_routes,
    sink_named,
)
from towpath.sinks.state.files import LOCK_FILE, FolderLock, lock_sink
from towpath.sinks.state.progress import replace_file, sink_folder

_ANSWERED_WITHIN_S: Final = 30.0
_OPEN: Final = frozenset({"queued", "running", "paused"})


class Broker(Protocol):
    """The operations of the broker that a drop needs."""

    def names(self) -> list[str]:
        """
        List every topic.

        Raises:
            UnavailableError: The broker does not answer.
        """

    def delete(self, names: Collection[str]) -> dict[str, str]:
        """
        Delete topics; return those that remain, each with the broker's reason.

        Raises:
            UnavailableError: The broker does not answer.
        """


def own_topics(
    settings: Settings, name: str, sink: Sink | None, existing: Collection[str]
) -> list[str]:
    """
    List the topics that belong to one sink only.

    They include the backfill topics of tables that the sink's routes once read, but not
    the topics of a sink with the same name that reads a different source.
    """
    prefix = settings.database.prefix
    own = {dead_letter_topic(prefix, name), sink_state_topic(prefix, name)}
    own |= (
        {backfill_topic(r.topic, name) for r in fillable_routes(sink)}
        if sink
        else set()
    )
    own |= {
        topic
        for topic in existing
        if topic.endswith(f"{BACKFILL}{name}")
        and table_of(prefix, topic.removesuffix(f"{BACKFILL}{name}")) is not None
    }
    return sorted(own & set(existing))


def delete_own(
    settings: Settings, name: str, sink: Sink | None, broker: Broker, clock: Clock
) -> Iterator[str]:
    """
    Delete a sink's own topics and yield a line for each; safe to repeat.

    Raises:
        UnavailableError: The broker, the source or the relay does not answer.
        SignalRefusedError: The source refuses a signal.
        SourceRefusedError: The source refuses a statement.
        UsageError: A signal was deleted before the relay answered it.
    """
    topics = own_topics(settings, name, sink, broker.names())
    if any(BACKFILL in topic for topic in topics):
        yield from _stop_snapshots(settings.database, name, clock)
    remaining = broker.delete(topics)
    for topic in topics:
        reason = remaining.get(topic)
        yield f"kept: topic {topic}: {reason}" if reason else f"deleted: topic {topic}"


def _stop_snapshots(source: Source, sink: str, clock: Clock) -> Iterator[str]:
    """Stop snapshots that are still reading for a sink, including the relay's own."""
    try:
        found = signals.progress(source, own=True)
    except (SourceUnreachableError, SignalRefusedError) as error:
        # Without the source or its signal table, the relay reads no snapshot.
        yield f"snapshots for {sink} could not be listed: {error}"
        return
    running = {one.snapshot_id for one in found if _reads_for(one, sink)}
    for snapshot_id in sorted(running):
        signal_id = signals.send(source, "stop-snapshot", {"snapshot-id": snapshot_id})
        answer = wait_answer(source, signal_id, clock, _ANSWERED_WITHIN_S)
        if answer.is_good:
            yield f"stopped: snapshot {snapshot_id}"
        else:
            yield f"not stopped: snapshot {snapshot_id}: {answer.reason}"


def _reads_for(one: signals.TableProgress, sink: str) -> bool:
    return one.target == sink and one.state in _OPEN


_HEADER: Final = re.compile(r"\s*\[\[?\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?$")
_SINK: Final = "sink"


def without_sink(text: str, name: str) -> str:
    """
    Return the file's text without a sink's block.

    Raises:
        UsageError: The block cannot be removed safely: remove it by hand.
    """
    document = tomllib.loads(text)
    sinks = document[_SINK]
    number = next(at for at, sink in enumerate(sinks) if sink["name"] == name)
    lines = text.splitlines(keepends=True)
    kept = "".join(
        line
        for line, block in zip(lines, _blocks(lines), strict=True)
        if block != number or not line.strip()
    )
    document[_SINK] = [sink for sink in sinks if sink["name"] != name]
    if not document[_SINK]:
        del document[_SINK]
    # Blank lines may be part of a string value, which must not change.
    for candidate in (re.sub(r"\n{3,}", "\n\n", kept), kept):
        if _parses_as(candidate, document):
            return candidate
    message = f"the block of {name} cannot be separated from the rest of the file"
    raise UsageError(message)


def _parses_as(text: str, document: object) -> bool:
    try:
        return tomllib.loads(text) == document
    except tomllib.TOMLDecodeError:
        return False


def _blocks(lines: list[str]) -> list[int | None]:
    """
    Return, for each line, the index of the sink whose block it is in, or ``None``.

    A comment belongs to the block below it.
    """
    found: list[int | None] = []
    block: int | None = None
    count = 0
    for at, line in enumerate(lines):
        header = _HEADER.match(line)
        found.append(block)
        if header is None:
            continue
        if header[1].split(".")[0].strip() != _SINK:
            block = None
        elif header[1].strip() == _SINK:
            block, count = count, count + 1
        above = at
        while above and lines[above - 1].lstrip().startswith("#"):
            above -= 1
        found[above:] = [block] * (at + 1 - above)
    return found


# Longer than a driver waits for its current batch.
RELEASED_WITHIN_S: Final = 60.0
_POLL_EVERY_S: Final = 0.2
_DELETED_LAST: Final = frozenset({DROPPING_FILE, LOCK_FILE})

Erase = Callable[[Sink, str], None]


@dataclass(frozen=True, slots=True)
class DropPlan:
    """
    A sink to be dropped.

    Attributes:
        sink: The sink's block; ``None`` if only the sink's state remains.
        deletes_data: Whether the drop also deletes the sink's data.
    """

    name: str
    sink: Sink | None
    deletes_data: bool


@dataclass(frozen=True, slots=True)
class DropServices:
    """
    The services of a drop.

    Attributes:
        erase: Deletes the data of a sink; ``None`` to keep it.
        forget: Deletes the published progress of a sink.
        report: Prints a line for each deletion.
    """

    erase: Erase | None
    forget: Callable[[str], None]
    broker: Broker
    clock: Clock
    report: Callable[[str], None]


def plan_drop(settings: Settings, name: str, *, deletes_data: bool) -> DropPlan:
    """
    Return the plan of a new drop, or of one that was interrupted.

    Raises:
        UnknownSinkError: There is no such sink, and no drop of it has begun.
        UsageError: Another sink writes to the same data.
    """
    if re.fullmatch(NAME, name) is None:
        # Such a name could lead outside the sinks' folder, or to that folder itself.
        message = f"no sink can be named {name!r}"
        raise UnknownSinkError(message)
    begun = _begun(settings, name)
    if begun is not None:
        deletes_data = deletes_data or begun.deletes_data
    sink = settings.sink_named(name) or (begun.sink if begun else None)
    is_left = sink_folder(settings.state_folder, name).is_dir()
    if sink is None and (deletes_data or not is_left):
        sink = sink_named(settings, name)
    if sink is not None and deletes_data:
        _refuse_shared(settings, sink)
    return DropPlan(name, sink, deletes_data)


def carry_out_drop(
    config: Path, environ: Mapping[str, str], plan: DropPlan, services: DropServices
) -> None:
    """
    Drop a sink; safe to repeat.

    Args:
        config: The configuration file.
        environ: Environment variables that override the file.
        plan: The result of ``plan_drop``.
        services: The services that the drop needs.

    Raises:
        ConfigurationError: The file would be invalid without the block; it is
            unchanged.
        UsageError: The block must be removed by hand, or the file cannot be replaced;
            in both cases nothing was changed. Or a signal was deleted before the relay
            answered it.
        SinkHeldError: The driver does not release the sink.
        UnavailableError: The sink's target, the broker, the source or the relay does
            not answer.
        SignalRefusedError: The source refuses a signal.
        SourceRefusedError: The source refuses a statement.
    """
    name, sink, report = plan.name, plan.sink, services.report
    settings = load(config, environ)
    folder = sink_folder(settings.state_folder, name)
    if (
        sink is not None
        and settings.sink_named(name) is not None
        and _remove_block(config, environ, plan, sink, services.clock)
    ):
        report(f"deleted: the block of {name} in {config}")
    held = _hold(settings, name, services.clock)
    try:
        # Delete progress first: no reader may assume that deleted rows still exist.
        services.forget(name)
        if sink is not None and services.erase is not None:
            services.erase(sink, settings.database.prefix)
            for route in sink.route:
                report(f"deleted: all data of {route.name} ({sink.kind})")
        for line in delete_own(settings, name, sink, services.broker, services.clock):
            report(line)
        _clear(folder)
        report(f"deleted: {folder}")
    finally:
        held.release()


def _remove_block(
    config: Path,
    environ: Mapping[str, str],
    plan: DropPlan,
    sink: Sink,
    clock: Clock,
) -> bool:
    """Record the plan, and remove the block; False if another drop has done so."""
    config = config.resolve()
    with changing(config, clock):
        settings = load(config, environ)
        if settings.sink_named(sink.name) is None:
            return False
        folder = sink_folder(settings.state_folder, sink.name)
        text = without_sink(config.read_text(encoding="utf-8"), sink.name)
        with candidate_of(config, text) as candidate:
            load(candidate, environ)
            _write(folder / DROPPING_FILE, sink, deletes_data=plan.deletes_data)
            candidate.replace(config)
    return True


def _refuse_shared(settings: Settings, sink: Sink) -> None:
    names = {route.name for route in sink.route}
    for other in settings.sink:
        shared = sorted(names & {route.name for route in other.route})
        if other.name != sink.name and other.target == sink.target and shared:
            message = f"{other.name} also writes to {shared[0]}: drop without --data"
            raise UsageError(message)


def _hold(settings: Settings, name: str, clock: Clock) -> FolderLock:
    deadline = Deadline(clock, RELEASED_WITHIN_S)
    while (held := lock_sink(settings.state_folder, name)) is None:
        if deadline.passed():
            message = (
                f"the driver did not release {name} within {RELEASED_WITHIN_S:g} s"
            )
            raise SinkHeldError(message)
        clock.wait(_POLL_EVERY_S)
    return held


def _begun(settings: Settings, name: str) -> DropPlan | None:
    path = sink_folder(settings.state_folder, name) / DROPPING_FILE
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    sink = Sink.model_validate(document["sink"])
    return DropPlan(name, sink, document["has_data"])


def _write(path: Path, sink: Sink, *, deletes_data: bool) -> None:
    # The salts are secret, and a drop computes no hashes.
    block = sink.model_dump(mode="json", exclude_unset=True, exclude={"hash_salts"})
    content = json.dumps({"sink": block, "has_data": deletes_data}).encode()
    # A URL may contain a password, so only the owner of the file may read it.
    replace_file(path, content, mode=0o600)


def _clear(folder: Path) -> None:
    """Delete the state: the record of the drop is second to last, and the lock last."""
    for one in folder.iterdir():
        if one.name in _DELETED_LAST:
            continue
        if one.is_dir():
            shutil.rmtree(one)
        else:
            one.unlink()
    (folder / DROPPING_FILE).unlink(missing_ok=True)
    shutil.rmtree(folder)
