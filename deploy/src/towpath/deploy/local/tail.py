"""The end of a log file, and what is added to it."""

import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from towpath.schemas.clock import Clock, SystemClock

_LOOK_AGAIN_S: Final = 0.2


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a file."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return [line.rstrip("\n") for line in collections.deque(file, maxlen=count)]


def follow(path: Path, clock: Clock | None = None) -> Iterator[str]:
    """Yield what is added to a file from now on, for ever, a new file's text too."""
    wait = (clock or SystemClock()).wait
    place = path.stat().st_size
    while True:
        size_bytes = path.stat().st_size if path.exists() else 0
        if size_bytes < place:
            place = 0
        if size_bytes > place:
            with path.open("rb") as file:
                file.seek(place)
                added = file.read()
            place += len(added)
            yield added.decode("utf-8", errors="replace")
        else:
            wait(_LOOK_AGAIN_S)
