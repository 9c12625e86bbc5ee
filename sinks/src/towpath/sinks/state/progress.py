"""
The progress of a sink, as a small file that anyone may read.

``<state>/sinks/<sink>/progress.json`` is replaced as a whole after each batch, so a
reader never sees half of it. ``applied`` is the next offset to apply, per topic and
partition. Counters continue across restarts.

A driver with a full disk cannot replace the file. Its heartbeat, ``driver.json``, then
grows old, and readers ask the driver itself at its metrics port. A full disk is
recognized in Python's errors by their number, and in the engine's by the system's text.
"""

import dataclasses
import enum
import errno
import http.client
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import orjson

from towpath.schemas.clock import SystemClock
from towpath.sinks.errors import StateNotWrittenError

_FULL_DISK_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_DISK_TEXTS: Final = tuple(map(os.strerror, _FULL_DISK_ERRNOS))


def full_disk(error: BaseException) -> StateNotWrittenError | None:
    """Return the failure that stands for a full disk, if an error reports one."""
    if isinstance(error, OSError):
        return _failure(error) if error.errno in _FULL_DISK_ERRNOS else None
    for line in str(error).splitlines():
        if any(text in line for text in _FULL_DISK_TEXTS):
            return StateNotWrittenError(f"disk full: {line.strip()}")
    return None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """
    Translate errors of writing below the state folder.

    Raises:
        StateNotWrittenError: The file cannot be written, for whatever reason.
    """
    try:
        yield
    except OSError as error:
        raise _failure(error, path) from error


def _failure(error: OSError, path: Path | None = None) -> StateNotWrittenError:
    is_full = error.errno in _FULL_DISK_ERRNOS
    what = "disk full" if is_full else "the state folder cannot be written"
    place = path or error.filename
    reason = error.strerror or str(error)
    return StateNotWrittenError(
        f"{what}: {place}: {reason}" if place else f"{what}: {reason}"
    )


Offsets: TypeAlias = Mapping[str, Mapping[str, int]]

# A topic and a partition, and per partition the offsets between which a batch reads.
Place: TypeAlias = tuple[str, int]
Span: TypeAlias = dict[Place, tuple[int, int]]


_ALIVE_FILE: Final = "driver.json"

# A heartbeat is written every two seconds; a broker that does not answer delays it by
# ten seconds.
ALIVE_WITHIN_S: Final = 30.0
# After three missed heartbeats a reader asks the driver itself.
_ASKED_AFTER_S: Final = 6.0
_ANSWER_WITHIN_S: Final = 2.0
# The path at which a driver serves the progress of a sink.
PROGRESS_PAGE: Final = "/sinks/"


class State(enum.StrEnum):
    """The state of a sink's query."""

    STARTING = "starting"
    RUNNING = "running"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """
    The progress and the counters of a sink.

    Attributes:
        applied: Per topic and partition (as text) the next offset.
        rows: Changes and events written.
        stale: Changes that the target already had, or had newer.
        dead_letters: Records written to the dead letters.
        skipped: Events left out: snapshot rows of a log, and events without the state
            of their aggregate.
        left: Records of large batches that the driver wrote after their slices.
        records: Records read.
        tombstones: Deletes among the rows.
        asked: Keys whose rows were requested because the target lacks them.
        nulled: Values that were made null because the target has no room for them.
        parked: Keys that are parked behind a dead letter.
        owed: Rows whose refetch is pending.
        retries: Failures after which a batch or the query was retried.
        position: The highest position that was applied; empty before the first.
        last_stages_ms: The duration of each stage of the last batch.
        updated_at: RFC 3339, UTC.
        error: Why the query does not run, in a sentence.
        refused: Why the sink runs with its previous block although it has changed.
    """

    sink: str
    state: State = State.STARTING
    applied: Offsets = field(default_factory=dict)
    batches: int = 0
    rows: int = 0
    stale: int = 0
    dead_letters: int = 0
    skipped: int = 0
    left: int = 0
    records: int = 0
    tombstones: int = 0
    asked: int = 0
    nulled: int = 0
    parked: int = 0
    owed: int = 0
    retries: int = 0
    position: str = ""
    last_batch_ms: int = 0
    last_stages_ms: Mapping[str, int] = field(default_factory=dict)
    updated_at: str = ""
    error: str | None = None
    refused: str | None = None


_FIELDS: Final = frozenset(each.name for each in dataclasses.fields(Progress))


def sink_folder(state_folder: Path, sink: str) -> Path:
    """Return the folder that holds a sink's checkpoint and progress."""
    return state_folder / "sinks" / sink


def progress_path(state_folder: Path, sink: str) -> Path:
    """Return the file that holds a sink's progress."""
    return sink_folder(state_folder, sink) / "progress.json"


def read_progress(path: Path, sink: str) -> Progress:
    """
    Return a sink's progress; a sink that never ran has an empty one.

    Unknown fields of a different version are ignored, missing ones have their defaults.
    """
    served = _ask_driver(path.parent, sink)
    return stored_progress(path, sink) if served is None else served


def stored_progress(path: Path, sink: str) -> Progress:
    """Return a sink's progress as its file has it; empty without one."""
    try:
        document = orjson.loads(path.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return Progress(sink=sink)
    return _progress_of(document)


def _progress_of(document: Mapping[str, Any]) -> Progress:
    known = {name: document[name] for name in _FIELDS & document.keys()}
    known["state"] = State(known["state"])
    return Progress(**known)


class DriverHeartbeat(NamedTuple):
    """
    A driver's note about a sink that it runs.

    Attributes:
        metrics_host: The host of its metrics.
        metrics_port: The port of its metrics; ``None``: not yet open.
        is_writing: Whether a batch is being written that has not failed.
    """

    metrics_host: str
    metrics_port: int | None
    is_writing: bool = False


def write_heartbeat(
    state_folder: Path, sink: str, heartbeat: DriverHeartbeat, now: datetime
) -> None:
    """
    Write the heartbeat of a sink's driver; repeated while the driver lives.

    Raises:
        StateNotWrittenError: The file cannot be written.
    """
    if not sink_folder(state_folder, sink).exists():
        return
    document = {"at": now.isoformat(), "pid": os.getpid(), **heartbeat._asdict()}
    replace_file(sink_folder(state_folder, sink) / _ALIVE_FILE, orjson.dumps(document))


def progress_page(progress: Progress) -> bytes:
    """Return a progress as the driver's metrics port serves it."""
    document = {"pid": os.getpid(), "progress": dataclasses.asdict(progress)}
    return orjson.dumps(document)


def _ask_driver(folder: Path, sink: str) -> Progress | None:
    """
    Read the progress from a driver without a recent heartbeat.

    Its disk may be full.
    """
    try:
        heartbeat = orjson.loads((folder / _ALIVE_FILE).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    port, host = heartbeat.get("metrics_port"), heartbeat.get("metrics_host")
    silent_s = SystemClock().now() - datetime.fromisoformat(heartbeat["at"])
    if not (port and host) or silent_s.total_seconds() < _ASKED_AFTER_S:
        return None
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_WITHIN_S)
    try:
        connection.request("GET", PROGRESS_PAGE + quote(sink, safe=""))
        page = orjson.loads(connection.getresponse().read())
        # Another process may use the port by now.
        return (
            _progress_of(page["progress"]) if page["pid"] == heartbeat["pid"] else None
        )
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()


def remove_heartbeat(state_folder: Path, sink: str) -> None:
    """Remove the heartbeat of a driver that ends; one that remains grows old."""
    with suppress(OSError):
        (sink_folder(state_folder, sink) / _ALIVE_FILE).unlink(missing_ok=True)


def is_alive(state_folder: Path, sink: str, now: datetime) -> bool:
    """Return whether the driver of a sink has a recent heartbeat, or answers."""
    folder = sink_folder(state_folder, sink)
    return bool(_recent_heartbeat(folder, now)) or _ask_driver(folder, sink) is not None


def is_writing(state_folder: Path, sink: str, now: datetime) -> bool:
    """
    Return whether a batch is being written; it counts only once it is durable.

    A batch that failed and is retried does not count.
    """
    heartbeat = _recent_heartbeat(sink_folder(state_folder, sink), now)
    return bool(heartbeat.get("is_writing"))


def _recent_heartbeat(folder: Path, now: datetime) -> Mapping[str, Any]:
    """Return the heartbeat of a driver; empty if it is not recent."""
    try:
        heartbeat: dict[str, Any] = orjson.loads((folder / _ALIVE_FILE).read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return {}
    silent_s = (now - datetime.fromisoformat(heartbeat["at"])).total_seconds()
    return heartbeat if silent_s < ALIVE_WITHIN_S else {}


def write_progress(path: Path, progress: Progress, now: datetime) -> None:
    """
    Replace the file in one step.

    Raises:
        StateNotWrittenError: It cannot be written.
    """
    stamped = dataclasses.replace(progress, updated_at=now.isoformat())
    replace_file(path, orjson.dumps(stamped, option=orjson.OPT_INDENT_2))


def replace_file(path: Path, content: bytes, *, is_durable: bool = False) -> None:
    """
    Write a file so that a reader sees the old content or the new, never half.

    Args:
        path: The file.
        content: The new content.
        is_durable: Whether it must survive a crash of the machine.

    Raises:
        StateNotWrittenError: It cannot be written; the old content stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                if is_durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def records_in(wanted: Span) -> int:
    """Return the highest number of records that a batch may have."""
    return sum(end - begin for begin, end in wanted.values())
