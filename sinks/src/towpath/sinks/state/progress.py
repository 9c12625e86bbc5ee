"""
How far a sink has come, as a small file that anyone may read.

``<state>/sinks/<sink>/progress.json`` is replaced as a whole after each batch, so that
a reader never sees half of it. ``applied`` names, per topic and partition, the next
offset that the sink has not applied. Counters go on over restarts.

A driver whose disk is full cannot replace the file. Its ``driver.json`` grows old then,
and a reader asks the driver itself, at its metrics port.

Full disks: how one is recognised, and the failure that names it.

Python reports an error number; the engine only a text, which holds the system's own
words for that number.
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

_NUMBERS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WORDS: Final = tuple(map(os.strerror, _NUMBERS))


def full_disk(error: BaseException) -> StateNotWrittenError | None:
    """Return the failure that stands for a full disk, if an error reports one."""
    if isinstance(error, OSError):
        return _failure(error) if error.errno in _NUMBERS else None
    for line in str(error).splitlines():
        if any(words in line for words in _WORDS):
            return StateNotWrittenError(f"disk full: {line.strip()}")
    return None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """
    Write below the state folder.

    Raises:
        StateNotWrittenError: The file cannot be written, for whatever reason.
    """
    try:
        yield
    except OSError as error:
        raise _failure(error, path) from error


def _failure(error: OSError, path: Path | None = None) -> StateNotWrittenError:
    is_full = error.errno in _NUMBERS
    what = "disk full" if is_full else "the state folder cannot be written"
    place = path or error.filename
    reason = error.strerror or str(error)
    return StateNotWrittenError(
        f"{what}: {place}: {reason}" if place else f"{what}: {reason}"
    )


Offsets: TypeAlias = Mapping[str, Mapping[str, int]]

# A topic and a partition; and where a batch begins and ends in each.
Place: TypeAlias = tuple[str, int]
Span: TypeAlias = dict[Place, tuple[int, int]]


_ALIVE_FILE: Final = "driver.json"

# A driver says every two seconds that it lives; a broker that does not answer holds it
# up for ten.
ALIVE_WITHIN_S: Final = 30.0
# After three times without a word a reader asks the driver itself.
_ASKED_AFTER_S: Final = 6.0
_ANSWER_WITHIN_S: Final = 2.0
# Where a driver gives the progress of a sink.
PROGRESS_PAGE: Final = "/sinks/"


class State(enum.StrEnum):
    """What a sink's query is doing."""

    STARTING = "starting"
    RUNNING = "running"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """
    What a sink has done.

    Attributes:
        applied: Per topic and partition (as text) the next offset.
        rows: Changes and events written.
        stale: Those that the target already had, or had newer.
        dead_letters: Records set aside.
        skipped: Events left out: a log keeps none that a snapshot made, and a document
            is not made of those that do not carry its state.
        records: Records read.
        tombstones: Deletes among the rows.
        asked: Keys whose rows were asked for, because the target lacks them.
        nulled: Values that were made null because the target has no room for them.
        parked: Keys whose changes wait behind a dead letter, by now.
        owed: Rows that were asked for and have not come yet, by now.
        retries: Failures after which a batch or the query was tried again.
        position: The highest position that was applied; empty before the first.
        last_stages_ms: How long each stage of the last batch took.
        updated_at: RFC 3339, UTC.
        error: Why the query does not run, in a sentence.
        refused: Why the sink goes on as it was although its block has changed.
    """

    sink: str
    state: State = State.STARTING
    applied: Offsets = field(default_factory=dict)
    batches: int = 0
    rows: int = 0
    stale: int = 0
    dead_letters: int = 0
    skipped: int = 0
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
    """Name the folder that holds a sink's checkpoint and progress."""
    return state_folder / "sinks" / sink


def progress_path(state_folder: Path, sink: str) -> Path:
    """Name the file that holds a sink's progress."""
    return sink_folder(state_folder, sink) / "progress.json"


def read_progress(path: Path, sink: str) -> Progress:
    """
    Read a sink's progress; a sink that never ran has none yet.

    What another version wrote beside it is left out, what it did not write is nothing.
    """
    asked = _ask_driver(path.parent, sink)
    if asked is not None:
        return asked
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
    What a driver notes of a sink that it runs.

    Attributes:
        metrics_host: Where it serves its metrics.
        metrics_port: Likewise; ``None``: nowhere yet.
        is_writing: Whether a batch is being written that has not failed.
    """

    metrics_host: str
    metrics_port: int | None
    is_writing: bool = False


def write_heartbeat(
    state_folder: Path, sink: str, note: DriverHeartbeat, now: datetime
) -> None:
    """
    Say that the driver of a sink lives; to be repeated while it does.

    Raises:
        StateNotWrittenError: The file cannot be written.
    """
    if not sink_folder(state_folder, sink).exists():
        return
    told = {"at": now.isoformat(), "pid": os.getpid(), **note._asdict()}
    replace_file(sink_folder(state_folder, sink) / _ALIVE_FILE, orjson.dumps(told))


def progress_page(progress: Progress) -> bytes:
    """Write a progress as the driver's metrics port gives it."""
    told = {"pid": os.getpid(), "progress": dataclasses.asdict(progress)}
    return orjson.dumps(told)


def _ask_driver(folder: Path, sink: str) -> Progress | None:
    """Ask a driver that has not said lately that it lives: it may lack disk space."""
    try:
        said = orjson.loads((folder / _ALIVE_FILE).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    port, host = said.get("metrics_port"), said.get("metrics_host")
    silent_s = SystemClock().now() - datetime.fromisoformat(said["at"])
    if not (port and host) or silent_s.total_seconds() < _ASKED_AFTER_S:
        return None
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_WITHIN_S)
    try:
        connection.request("GET", PROGRESS_PAGE + quote(sink, safe=""))
        told = orjson.loads(connection.getresponse().read())
        # Another process may have the port by now.
        return _progress_of(told["progress"]) if told["pid"] == said["pid"] else None
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()


def remove_heartbeat(state_folder: Path, sink: str) -> None:
    """Say that the driver of a sink has ended; what cannot be said grows old."""
    with suppress(OSError):
        (sink_folder(state_folder, sink) / _ALIVE_FILE).unlink(missing_ok=True)


def is_alive(state_folder: Path, sink: str, now: datetime) -> bool:
    """Tell whether the driver of a sink has said lately that it lives."""
    folder = sink_folder(state_folder, sink)
    return bool(_said(folder, now)) or _ask_driver(folder, sink) is not None


def is_writing(state_folder: Path, sink: str, now: datetime) -> bool:
    """
    Tell whether a batch is being written: it counts only once it is durable.

    One that has failed and is tried again is not taken for one that gets on.
    """
    said = _said(sink_folder(state_folder, sink), now)
    return bool(said.get("is_writing"))


def _said(folder: Path, now: datetime) -> Mapping[str, Any]:
    """Return what a driver has noted lately; nothing, if it has not."""
    try:
        said: dict[str, Any] = orjson.loads((folder / _ALIVE_FILE).read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return {}
    silent_s = (now - datetime.fromisoformat(said["at"])).total_seconds()
    return said if silent_s < ALIVE_WITHIN_S else {}


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
        content: All of it.
        is_durable: Whether it must hold even if the machine goes down.

    Raises:
        StateNotWrittenError: It cannot be written; the old content stands.
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
    """Return how many records a batch has at most."""
    return sum(end - begin for begin, end in wanted.values())
