"""
The progress of a sink, and the file from which its driver continues.

``<state>/sinks/<sink>/progress.json`` is replaced as a whole after each batch, so a
crash never leaves half of it. ``applied`` is the next offset to apply, per topic and
partition. Counters continue across restarts. Other processes read the progress that the
driver publishes (``published.py``), even while a full disk keeps the driver from
writing the file.

A full disk is recognized in Python's errors by their number, and in the engine's by the
system's text.
"""

import dataclasses
import enum
import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import orjson
import structlog

from towpath.sinks.errors import StateNotWrittenError

_log = structlog.get_logger("towpath.sinks")

_FULL_DISK_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_DISK_TEXTS: Final = tuple(map(os.strerror, _FULL_DISK_ERRNOS))


def full_disk(error: BaseException) -> StateNotWrittenError | None:
    """Return the failure that represents a full disk, if an error reports one."""
    if isinstance(error, OSError):
        return _failure(error) if error.errno in _FULL_DISK_ERRNOS else None
    for line in str(error).splitlines():
        if any(text in line for text in _FULL_DISK_TEXTS):
            return StateNotWrittenError(f"disk full: {line.strip()}")
    return None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """
    Translate errors that occur when writing below the state folder.

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
    file = path or error.filename
    reason = error.strerror or str(error)
    return StateNotWrittenError(
        f"{what}: {file}: {reason}" if file else f"{what}: {reason}"
    )


Offsets: TypeAlias = Mapping[str, Mapping[str, int]]

# A topic and a partition, and per partition the offsets between which a batch reads.
PartitionId: TypeAlias = tuple[str, int]
Span: TypeAlias = dict[PartitionId, tuple[int, int]]


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
        stale: Changes that the target already had, or that were older than its rows.
        dead_letters: Records written to the dead letters.
        skipped: Records left out: snapshot rows of a log, events without the state of
            their aggregate, and truncations that a route ignores.
        left: Records that the slices of large batches left to the driver.
        records: Records read.
        tombstones: Deletes among the rows.
        asked: Rows requested because a partial change could not be applied.
        nulled: Values that were made null because the target cannot represent them.
        parked: Keys that are parked behind a dead letter.
        pending_refetches: Rows whose refetch is pending.
        retries: Failures after which a batch or the query was retried.
        position: The highest position that was applied; empty before the first.
        last_stages_ms: The duration of each stage of the last batch.
        updated_at: RFC 3339, UTC.
        error: The reason why the query is not running, as a sentence.
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
    pending_refetches: int = 0
    retries: int = 0
    position: str = ""
    last_batch_ms: int = 0
    last_stages_ms: Mapping[str, int] = field(default_factory=dict)
    updated_at: str = ""
    error: str | None = None
    refused: str | None = None


_FIELDS: Final = frozenset(each.name for each in dataclasses.fields(Progress))
# Names of fields in files and published records of drivers up to version 0.1.0.
_FORMER_NAMES: Final = MappingProxyType({"owed": "pending_refetches"})


def sink_folder(state_folder: Path, sink: str) -> Path:
    """Return the folder that holds a sink's checkpoint and progress."""
    return state_folder / "sinks" / sink


def progress_path(state_folder: Path, sink: str) -> Path:
    """Return the file that holds a sink's progress."""
    return sink_folder(state_folder, sink) / "progress.json"


def stored_progress(path: Path, sink: str) -> Progress:
    """
    Return the progress in a sink's file; empty if it is missing or unreadable.

    Unknown fields of a different version are ignored; missing fields have their
    defaults.
    """
    try:
        return progress_of(orjson.loads(path.read_bytes()))
    except FileNotFoundError:
        return Progress(sink=sink)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # The file may be from a later version; the offsets are in the checkpoint.
        _log.warning("sink progress not readable", path=str(path), reason=str(error))
        return Progress(sink=sink)


def progress_of(document: Mapping[str, Any]) -> Progress:
    """
    Return the progress of a JSON object; unknown fields are ignored.

    A field is also read by its former name, in the records of earlier versions.
    """
    former = {
        name: document[before]
        for before, name in _FORMER_NAMES.items()
        if before in document
    }
    known = former | {name: document[name] for name in _FIELDS & document.keys()}
    known["state"] = State(known["state"])
    return Progress(**known)


def write_progress(path: Path, progress: Progress) -> None:
    """
    Replace the file in one step.

    Raises:
        StateNotWrittenError: The file cannot be written.
    """
    replace_file(path, orjson.dumps(progress, option=orjson.OPT_INDENT_2))


def replace_file(
    path: Path, content: bytes, *, is_durable: bool = False, mode: int = 0o666
) -> None:
    """
    Write a file so that a reader sees the old content or the new, never half.

    Args:
        path: The file.
        content: The new content.
        is_durable: Whether the content must survive a crash of the machine.
        mode: The file's mode, which the process's umask narrows.

    Raises:
        StateNotWrittenError: The file cannot be written. The old content remains, or
            the new one may not survive a crash of the machine.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            opener = partial(os.open, mode=mode)
            with open(temporary, "wb", opener=opener) as file:
                file.write(content)
                if is_durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
            if is_durable:
                _sync_folder(path.parent)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def _sync_folder(folder: Path) -> None:
    """Make the names of a folder's files survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems store names immediately, and refuse the call.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def records_in(wanted: Span) -> int:
    """Return the highest number of records that a batch may have."""
    return sum(end - begin for begin, end in wanted.values())
