"""
What a sink keeps by name over its restarts: a small JSON file in its folder.

The file is replaced as a whole, so that a crash leaves what was kept before. One that
cannot be read is no reason to stop: whoever kept it begins anew, and a warning tells.

The ids of what a sink writes to, route by route, kept in a file of the sink's own.

Who finds another id than the known one finds another thing under the same name: made
anew, or put there by somebody else. What the old one held need not be there.

Which topics a sink reads, by the ids that the broker gave them.

A topic that was deleted and made again has the old name and another id. Its offsets
tell only as long as it is shorter than what was read of the old one, so the ids are
kept beside the checkpoint: that of a topic is noted when it is first met, and whatever
has the name and another id is not that topic. A broker that gives no ids tells nothing.

Who runs a sink holds its folder, so that nobody runs it twice or drops it meanwhile.

The system lets go of what a process held when it ends, however it ends.
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
    """One such file; it is read whenever it is asked, and held nowhere else."""

    def __init__(self, path: Path) -> None:
        """Describe where it is; nothing is read yet."""
        self._path = path

    def read(self) -> dict[str, Stored]:
        """Return what was kept last; nothing, if there is none or it cannot be read."""
        try:
            kept: dict[str, Stored] = orjson.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except orjson.JSONDecodeError:
            _log.warning(
                "what a sink kept cannot be read: beginning anew", file=str(self._path)
            )
            return {}
        return kept

    def keep(self, content: Mapping[str, Stored]) -> None:
        """Keep this in place of what was kept before; the same is not written again."""
        told = orjson.dumps(content)
        if not self._path.exists() or self._path.read_bytes() != told:
            replace_file(self._path, told)


class KnownIds:
    """What one sink knows; without a file, for as long as it runs."""

    def __init__(self, file: Path | None) -> None:
        """Describe where the ids are kept; nothing is read yet."""
        self._file = JsonFile[str](file) if file is not None else None
        self._ids: Mapping[str, str] = {}

    def recall(self) -> None:
        """Read what was known."""
        if self._file is not None:
            self._ids = self._file.read()

    def of(self, route: str) -> str | None:
        """Return the id that was known last, if any was."""
        return self._ids.get(route)

    def learn(self, route: str, id_: str) -> None:
        """Know an id from now on."""
        if self._ids.get(route) != id_:
            self._keep({**self._ids, route: id_})

    def forget(self, route: str) -> None:
        """Know none from now on."""
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

    def others(self, found: Mapping[str, str]) -> frozenset[str]:
        """Return which topics are others than those that were noted."""
        noted = self._file.read()
        return frozenset(n for n, one in found.items() if noted.get(n, one) != one)

    def note(self, found: Mapping[str, str], gone: Collection[str] = ()) -> None:
        """Note the ids that were found beside the others, and forget what is gone."""
        known = {**self._file.read(), **found}
        self._file.keep({t: one for t, one in known.items() if t not in gone})


LOCK_FILE: Final = ".held"


class SinkLock:
    """A sink's folder, while this process has it."""

    def __init__(self, file: FileIO) -> None:
        self._file = file

    def release(self) -> None:
        """Let go of the folder."""
        self._file.close()


def lock_sink(state_folder: Path, sink: str) -> SinkLock | None:
    """
    Take a sink's folder; ``None`` if another process, or another part, has it.

    Raises:
        StateNotWrittenError: The folder or its lock cannot be made.
    """
    folder = sink_folder(state_folder, sink)
    with progress.writing(folder / LOCK_FILE):
        folder.mkdir(parents=True, exist_ok=True)
        file = FileIO(folder / LOCK_FILE, "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return SinkLock(file)
