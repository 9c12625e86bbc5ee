"""
The real relay with a defect that a test must detect: ``CONFIG FOLDER DEFECT...``.

``pause plan`` and ``pause chunk`` are not defects: each read of a plan, or of a chunk,
pauses between taking its database snapshot and running its query. It creates the file
``paused`` in the folder, and waits until the file ``go`` exists there.
"""

import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from towpath.relay.__main__ import run
from towpath.relay.postgres import chunk_reader
from towpath.relay.postgres.chunk_reader import ChunkReader
from towpath.relay.snapshot.changed_keys import ChangedKeys
from towpath.relay.snapshot.visibility import InvisibleTransactions, XidSnapshot

_POLL_S: Final = 0.02


def _textbook(_folder: Path) -> None:
    """Evict only keys changed between watermarks; treat every commit as visible."""
    XidSnapshot.sees_streamed = lambda *_: True  # type: ignore[method-assign]


def _reads_early(_folder: Path) -> None:
    """Read immediately, even if the query cannot see all streamed transactions yet."""
    InvisibleTransactions.are_visible_until = lambda *_: True  # type: ignore[method-assign]


def _confirms_early(_folder: Path) -> None:
    """Confirm transactions that are not visible yet: a restart skips them."""
    InvisibleTransactions.confirmable = lambda _, lsn: lsn  # type: ignore[method-assign]


def _oldest(_folder: Path) -> None:
    """Treat a transaction as visible only once all older ones have ended."""
    XidSnapshot.sees = lambda self, xid64: xid64 < self.xmin  # type: ignore[method-assign]


def _evicts_nothing(_folder: Path) -> None:
    """Evict no rows."""
    ChangedKeys.outcome = lambda *_: None  # type: ignore[method-assign]


def _unlocked(_folder: Path) -> None:
    """Take the database snapshot without locking the table."""
    chunk_reader.sql.lock_statement = lambda *_: "set local jit = off"  # type: ignore[attr-defined]


def _pause(name: str, folder: Path) -> None:
    """Pause a method of the chunk reader before its first query."""
    read, copy = getattr(ChunkReader, name), ChunkReader._copy

    def reading(self: ChunkReader, *args: Any) -> Any:
        self._copy = functools.partial(stopping, self)  # type: ignore[method-assign]
        try:
            return read(self, *args)
        finally:
            del self._copy

    def stopping(*args: Any) -> Any:
        (folder / "paused").touch()
        while not (folder / "go").exists():
            threading.Event().wait(_POLL_S)
        return copy(*args)

    setattr(ChunkReader, name, reading)


DEFECTS: Final = MappingProxyType[str, Callable[[Path], None]](
    {
        "textbook": _textbook,
        "reads early": _reads_early,
        "confirms early": _confirms_early,
        "oldest": _oldest,
        "evicts nothing": _evicts_nothing,
        "unlocked": _unlocked,
        "pause plan": functools.partial(_pause, "read_plan"),
        "pause chunk": functools.partial(_pause, "read_chunk"),
    }
)


def main() -> int:
    """Run the relay with the defects that the command line names."""
    config, folder, *names = sys.argv[1:]
    for name in names:
        DEFECTS[name](Path(folder))
    return run(Path(config))


if __name__ == "__main__":
    sys.exit(main())
