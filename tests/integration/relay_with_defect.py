"""
The real relay with a defect that a test must find: ``CONFIG FOLDER DEFECT...``.

``pause plan`` and ``pause chunk`` are no defects: each plan, or chunk, stops between
its view of the database and its query until the folder holds the file ``go``, and says
so with the file ``paused``.
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

_LOOK_EVERY_S: Final = 0.02


def _textbook(_folder: Path) -> None:
    """Drop what changed between the watermarks, and trust every commit to be seen."""
    XidSnapshot.sees_streamed = lambda *_: True  # type: ignore[method-assign]


def _unawaited(_folder: Path) -> None:
    """Read at once, whatever was streamed before."""
    InvisibleTransactions.are_visible_until = lambda *_: True  # type: ignore[method-assign]


def _unheld(_folder: Path) -> None:
    """Confirm what nobody may see yet: a restart does not stream it again."""
    InvisibleTransactions.confirmable = lambda _, lsn: lsn  # type: ignore[method-assign]


def _oldest(_folder: Path) -> None:
    """Take a transaction for visible only when all older ones have ended."""
    XidSnapshot.sees = lambda self, xid64: xid64 < self.xmin  # type: ignore[method-assign]


def _deaf(_folder: Path) -> None:
    """Drop nothing."""
    ChangedKeys.outcome = lambda *_: None  # type: ignore[method-assign]


def _unlocked(_folder: Path) -> None:
    """Take the view of the database without holding the table."""
    chunk_reader.sql.lock_statement = lambda *_: "set local jit = off"  # type: ignore[attr-defined]


def _pause(name: str, folder: Path) -> None:
    """Stop before the first query in the middle of what a method does."""
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
            threading.Event().wait(_LOOK_EVERY_S)
        return copy(*args)

    setattr(ChunkReader, name, reading)


DEFECTS: Final = MappingProxyType[str, Callable[[Path], None]](
    {
        "textbook": _textbook,
        "unawaited": _unawaited,
        "unheld": _unheld,
        "oldest": _oldest,
        "deaf": _deaf,
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
