"""
Copies of a sink's state, so that a driver on another machine continues from them.

A sink's folder holds small files: its progress, declaration, pending refetches, sweeps,
known ids and witnesses. Spark's checkpoint is not copied: a query without one continues
at the applied offsets of the progress.

The copies of one moment are stored together, after each batch and between batches. They
match the files that a crash at that moment would leave: records applied later are read
again, and the target's guard rejects them.

**One owner.** Each folder has an id. The folder that stored the newest copies is their
owner, and its running driver stores copies about every ``BEAT_EVERY_S``. Another folder
takes over only after it has seen no new copies for ``SILENT_FOR_S`` by its own clock,
or immediately if the owner has released them. Taking over fences the owner, whose next
copies are refused; its driver then stops writing. An owner that has stored no copy for
``WRITES_FOR_S`` makes no further call to the target (``check``): when another folder
takes over, at most the former owner's calls in flight remain. A folder that is not the
owner, or is older than the copies (a machine that comes back, a restored backup), is
replaced by them.

Nothing here uses Kafka: a ``CopyStore`` stores the records, and fences writers.
"""

import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    suppress,
)
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import orjson
import structlog

from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.failure import TowpathError
from towpath.sinks.errors import SinkRunsElsewhereError
from towpath.sinks.state.files import LOCK_FILE, JsonFile
from towpath.sinks.state.progress import Offsets, replace_file

BEAT_EVERY_S: Final = 10.0
# Three beats, so that a slow broker is not mistaken for a driver that has ended.
SILENT_FOR_S: Final = 30.0

# The owner starts no call to the target once its newest copy is older than this: until
# then no other folder can have waited for long enough.
WRITES_FOR_S: Final = 20.0

# A record holds at most this much of a file, half of Kafka's default limit.
PART_BYTES: Final = 500_000

# The offsets at which a query resumes without a checkpoint, until it commits.
RESUMES_FILE: Final = "resumes.json"
_PROGRESS_FILE: Final = "progress.json"
_COPIES_FILE: Final = ".copies"
# The prefix of the folders of the checkpoint and of a dropped checkpoint.
_CHECKPOINT: Final = "checkpoint"
# The lock belongs to the process.
_NOT_COPIED: Final = frozenset({LOCK_FILE})

_OWNER: Final = "owner"
_FILES: Final = "files"

_log = structlog.get_logger("towpath.sinks")


class CopyStore(Protocol):
    """Stores records by key; one writer at a time."""

    def read(self) -> Mapping[str, bytes]:
        """
        Return all records.

        Raises:
            UnavailableError: The records cannot be read now.
        """

    def end(self) -> int:
        """
        Return a number that grows with each write.

        Raises:
            UnavailableError: The number cannot be read now.
        """

    def fence(self) -> None:
        """
        Become the writer: writes by others are refused from now on.

        Raises:
            UnavailableError: Writes by others may still be accepted.
        """

    def write(self, records: Mapping[str, bytes | None]) -> None:
        """
        Store records together, and delete those that are ``None``.

        Raises:
            SinkTakenOverError: Another writer has fenced this one.
            UnavailableError: The records may not have been stored; call ``fence``
                again.
        """


class Owner(NamedTuple):
    """
    The owner of copies.

    Attributes:
        id: The id of its folder.
        number: Grows with each copy.
        is_running: Whether its driver may still be running.
    """

    id: str = ""
    number: int = 0
    is_running: bool = False


class _Mark(NamedTuple):
    """
    Distinguishes a file from the one that replaces it.

    A file's modification time is too coarse for two replacements in quick succession,
    but their inodes differ.
    """

    inode: int
    size: int
    changed_ns: int


class _Seen(NamedTuple):
    """The end of the copies when it last changed, and the deadline for a change."""

    end: int
    until: Deadline


class StateCopies:
    """
    The copies of one sink's folder; safe to call from any thread.

    Attributes:
        was_running: Whether the previous owner may have had calls in flight when
            the copies were claimed.
    """

    def __init__(self, folder: Path, store: CopyStore, clock: Clock) -> None:
        self._folder = folder
        self._store = store
        self._clock = clock
        self._own = JsonFile[str | int](folder / _COPIES_FILE)
        self._owner: Owner | None = None
        # Why this folder is not the owner.
        self._failure: TowpathError = SinkRunsElsewhereError("not claimed yet")
        self._lock = threading.Lock()
        self._until = Deadline(clock, 0)
        self.was_running = False
        self._seen: _Seen | None = None
        # The mark of each copied file, and the number of its parts.
        self._stored: Mapping[str, _Mark] = {}
        self._parts: Mapping[str, int] = {}
        self._beat = Deadline(clock, 0)

    def claim(self) -> bool:
        """
        Become the owner, unless this folder already is.

        Call it before anything reads the folder.

        Returns:
            Whether the folder was replaced by the copies.

        Raises:
            SinkRunsElsewhereError: The driver of another folder may still be running.
            UnavailableError: The copies cannot be read now.
        """
        with self._lock:
            return self._owner is None and self._claim()

    def _claim(self) -> bool:
        mine = self._own.read()
        id_ = str(mine.get("id") or uuid.uuid4().hex)
        self._require_silence(id_)
        self._store.fence()
        # The fence comes first, so that no other write can follow this read.
        records = self._store.read()
        before = _owner_in(records)
        number = int(mine.get("number", 0))
        is_current = before.id == id_ and before.number <= number
        # Another program may have written records, too.
        is_replaced = _OWNER in records and not is_current
        if is_replaced:
            self._replace(records, before)
        self._stored, self._parts = {}, _parts_in(records)
        self._owner = Owner(id_, before.number, is_running=True)
        self.was_running = before.is_running
        self._store_changes(is_running=True)
        return is_replaced

    def save(self) -> None:
        """
        Store the changed files; if none changed, store a beat when one is due.

        Raises:
            SinkTakenOverError: Another folder has taken over.
            UnavailableError: The state may not have been stored; call ``claim`` again.
        """
        with self._lock:
            if self._owner is None:
                raise self._failure
            self._store_changes(is_running=True)

    def check(self) -> None:
        """
        Check that no other folder can have taken over yet.

        Raises:
            SinkTakenOverError: Another folder has taken over.
            UnavailableError: Another folder may have taken over; call ``claim`` again.
        """
        if self._owner is None:
            raise self._failure
        if self._until.passed():
            message = (
                "no state was stored for too long: another driver may run the sink"
            )
            raise SinkRunsElsewhereError(message)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Store beats in a thread during the block; then release the sink."""
        stop = threading.Event()
        thread = threading.Thread(
            target=self._beat_until, args=(stop,), name="copies", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            with suppress(TowpathError):
                self.release()

    def beat(self) -> None:
        """
        Store a beat if one is due.

        Raises:
            SinkTakenOverError: Another folder has taken over.
            UnavailableError: The beat may not have been stored.
        """
        with self._lock:
            if self._owner is not None and self._beat.passed():
                self._store_changes(is_running=True)

    def _beat_until(self, stop: threading.Event) -> None:
        while not stop.wait(BEAT_EVERY_S / 10):
            # The next ``check`` or ``save`` reports the failure.
            with suppress(TowpathError, OSError):
                self.beat()

    def release(self) -> None:
        """
        Store a last copy, after which another folder need not wait.

        Raises:
            UnavailableError: The copy may not have been stored.
        """
        with self._lock:
            if self._owner is not None:
                self._store_changes(is_running=False)
                self._owner = None

    def _require_silence(self, id_: str) -> None:
        """Raise an error if the owner's driver may still be running."""
        owner = _owner_in(self._store.read())
        if not owner.is_running or owner.id == id_:
            return
        end = self._store.end()
        if self._seen is None or self._seen.end != end:
            self._seen = _Seen(end, Deadline(self._clock, SILENT_FOR_S))
        if not self._seen.until.passed():
            message = "a driver on another machine ran the sink, and may still run it"
            raise SinkRunsElsewhereError(message)

    def _replace(self, records: Mapping[str, bytes], owner: Owner) -> None:
        """Replace the folder; the query resumes at the offsets that were applied."""
        # Deleted first: after a crash in between, the folder is replaced again.
        (self._folder / _COPIES_FILE).unlink(missing_ok=True)
        for checkpoint in self._folder.glob(f"{_CHECKPOINT}*"):
            shutil.rmtree(checkpoint)
        for name in _marks(self._folder):
            (self._folder / name).unlink()
        files = dict(_files_in(records))
        applied: Offsets = orjson.loads(files.get(_PROGRESS_FILE, b"{}")).get("applied")
        if applied:
            files[RESUMES_FILE] = orjson.dumps(applied)
        for name, content in files.items():
            replace_file(self._folder / name, content, is_durable=True)
        _log.warning(
            "sink state replaced by its copies",
            folder=str(self._folder),
            files=len(files),
            number=owner.number,
        )

    def _store_changes(self, *, is_running: bool) -> None:
        moment = _moment(self._folder, self._stored)
        is_due = self._beat.passed() or not is_running
        gone = self._parts.keys() - moment.marks.keys()
        if self._owner is None or not (moment.changed or gone or is_due):
            return
        parts = {name: n for name, n in self._parts.items() if name not in gone}
        parts |= {name: len(_split(text)) for name, text in moment.changed.items()}
        owner = Owner(self._owner.id, self._owner.number + 1, is_running)
        until = Deadline(self._clock, WRITES_FOR_S)
        try:
            self._store.write(
                {
                    **self._obsolete(parts),
                    **dict(_records_of(moment.changed)),
                    _FILES: orjson.dumps(parts),
                    _OWNER: orjson.dumps(owner._asdict()),
                }
            )
        except TowpathError as error:
            # The next claim finds out whether the records were stored.
            self._owner, self._failure = None, error
            raise
        self._own.keep({"id": owner.id, "number": owner.number})
        self._owner, self._parts, self._stored = owner, parts, moment.marks
        self._beat, self._until = Deadline(self._clock, BEAT_EVERY_S), until

    def _obsolete(self, parts: Mapping[str, int]) -> dict[str, None]:
        """Return the stored parts that no file has anymore."""
        return {
            f"{name}#{number}": None
            for name, count in self._parts.items()
            for number in range(parts.get(name, 0), count)
        }


class NoCopies:
    """The stand-in for ``StateCopies`` where the state is not copied."""

    was_running = False

    def claim(self) -> bool:
        """Return False: nothing was replaced."""
        return False

    def save(self) -> None:
        """Copy nothing."""

    def check(self) -> None:
        """Allow every call to the target."""

    def kept(self) -> AbstractContextManager[None]:
        """Store no beats."""
        return nullcontext()


class _Moment(NamedTuple):
    """
    The files of a folder at one moment.

    Attributes:
        marks: The mark of each file.
        changed: The contents of the files with new marks.
    """

    marks: Mapping[str, _Mark]
    changed: Mapping[str, bytes]


def _moment(folder: Path, before: Mapping[str, _Mark]) -> _Moment:
    """
    Read the files whose marks differ from those in ``before``.

    A crash may occur between the writes of any two files, so their order matters. All
    contents must be from one moment: no file may change while they are read.
    """
    while True:
        marks = _marks(folder)
        names = [name for name, mark in marks.items() if before.get(name) != mark]
        with suppress(FileNotFoundError):
            changed = {name: (folder / name).read_bytes() for name in names}
            if _marks(folder) == marks:
                return _Moment(marks, changed)


def _marks(folder: Path) -> dict[str, _Mark]:
    """Return the mark of each file that is copied."""
    found = {}
    for path in folder.glob("*"):
        is_excluded = path.name.startswith((".", _CHECKPOINT))
        if is_excluded or path.name in _NOT_COPIED:
            continue
        for file in path.glob("*") if path.is_dir() else [path]:
            with suppress(FileNotFoundError):
                stat = file.stat()
                name = str(file.relative_to(folder))
                found[name] = _Mark(stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found


def _split(content: bytes) -> list[bytes]:
    """Return the parts of a file; an empty file has one."""
    begins = range(0, max(len(content), 1), PART_BYTES)
    return [content[begin : begin + PART_BYTES] for begin in begins]


def _records_of(files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    for name, content in files.items():
        for number, part in enumerate(_split(content)):
            yield f"{name}#{number}", part


def _owner_in(records: Mapping[str, bytes]) -> Owner:
    return Owner(**orjson.loads(records[_OWNER])) if _OWNER in records else Owner()


def _parts_in(records: Mapping[str, bytes]) -> dict[str, int]:
    parts: dict[str, int] = orjson.loads(records.get(_FILES, b"{}"))
    return parts


def _files_in(records: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    for name, count in _parts_in(records).items():
        yield name, b"".join(records[f"{name}#{number}"] for number in range(count))
