"""
Small files in a sink's folder: JSON objects, known ids, topic ids, and the lock.

A JSON file is replaced as a whole, so that a crash leaves the old content or the new. A
file that is not JSON is logged and counts as empty.

``KnownIds`` holds the ids of a sink's tables or indexes by route. A different id under
the same name means that the table was recreated or replaced, and may lack rows.

``TopicIds`` does the same for topics. A topic that was deleted and recreated has its
old name and a new id. Its offsets reveal that only while it is shorter than the old
one, so the ids are kept next to the checkpoint. A broker without topic ids reveals
nothing.

A driver holds the lock of a sink's folder while it runs the sink, so that no other
driver runs it and no command drops it. The system releases the lock of a process that
ends.
"""

import fcntl
from collections.abc import Collection, Mapping
from io import FileIO
from pathlib import Path
from typing import Final, Generic, TypeVar

import orjson
import structlog

from towpath.sinks.state import progress
from towpath.sinks.state.progress import replace_file, sink_folder

Stored = TypeVar("Stored")

_log = structlog.get_logger("towpath.sinks")


class JsonFile(Generic[Stored]):
    """A JSON object in a file; each call reads the file."""

    def __init__(self, path: Path) -> None:
        """Store the path; nothing is read yet."""
        self._path = path

    def read(self) -> dict[str, Stored]:
        """Return the content; empty if there is no file or it is not JSON."""
        try:
            kept: dict[str, Stored] = orjson.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except orjson.JSONDecodeError:
            _log.warning(
                "sink state cannot be read: it counts as empty", file=str(self._path)
            )
            return {}
        return kept

    def keep(self, content: Mapping[str, Stored]) -> None:
        """Replace the content; equal content is not written again."""
        encoded = orjson.dumps(content)
        if not self._path.exists() or self._path.read_bytes() != encoded:
            replace_file(self._path, encoded)


class KnownIds:
    """The known ids of one sink; without a file, kept only while it runs."""

    def __init__(self, file: Path | None) -> None:
        """Store the path; nothing is read yet."""
        self._file = JsonFile[str](file) if file is not None else None
        self._ids: Mapping[str, str] = {}

    def restore(self) -> None:
        """Load the known ids."""
        if self._file is not None:
            self._ids = self._file.read()

    def of(self, route: str) -> str | None:
        """Return the id of a route, if one is known."""
        return self._ids.get(route)

    def learn(self, route: str, id_: str) -> None:
        """Store the id of a route."""
        if self._ids.get(route) != id_:
            self._keep({**self._ids, route: id_})

    def forget(self, route: str) -> None:
        """Delete the id of a route."""
        self._keep({name: id_ for name, id_ in self._ids.items() if name != route})

    def _keep(self, ids: Mapping[str, str]) -> None:
        if self._file is not None:
            self._file.keep(ids)
        self._ids = ids


TOPIC_IDS_FILE: Final = "topic_ids.json"


class TopicIds:
    """The ids of one sink's topics, in a file of its folder."""

    def __init__(self, folder: Path) -> None:
        self._file = JsonFile[str](folder / TOPIC_IDS_FILE)

    def recreated(self, found: Mapping[str, str]) -> frozenset[str]:
        """Return the topics whose id differs from the stored one."""
        noted = self._file.read()
        return frozenset(n for n, one in found.items() if noted.get(n, one) != one)

    def note(self, found: Mapping[str, str], gone: Collection[str] = ()) -> None:
        """Add the found ids to the stored ones, and delete those of deleted topics."""
        known = {**self._file.read(), **found}
        self._file.keep({t: one for t, one in known.items() if t not in gone})


LOCK_FILE: Final = ".held"


class FolderLock:
    """The lock of a folder, such as a sink's; it is released when the process exits."""

    def __init__(self, file: FileIO) -> None:
        self._file = file

    def release(self) -> None:
        """Release the folder."""
        self._file.close()


def lock_sink(state_folder: Path, sink: str) -> FolderLock | None:
    """Lock a sink's folder, as ``lock_folder`` does."""
    return lock_folder(sink_folder(state_folder, sink))


def lock_folder(folder: Path) -> FolderLock | None:
    """
    Lock a folder, and create it if it is missing; ``None`` if it is already locked.

    Raises:
        StateNotWrittenError: The folder or its lock cannot be created, or its file
            system has no locks.
    """
    with progress.writing(folder / LOCK_FILE):
        folder.mkdir(parents=True, exist_ok=True)
        file = FileIO(folder / LOCK_FILE, "w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError:
            file.close()
            raise
    return FolderLock(file)
