"""
Full disks: how one is recognised, and the failure that names it.

Python reports an error number; the engine only a text, which holds the system's own
words for that number.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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
