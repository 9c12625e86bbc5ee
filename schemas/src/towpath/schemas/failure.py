"""
The failure tree: what went wrong, what a loop does with it, what a person does.

::

    TowpathError
    ├── UsageError               2  the command line or configuration is wrong
    │   └── ConfigurationError      every mistake of towpath.toml at once
    ├── UnavailableError         3  a part cannot be reached: try again
    │   └── BusyError               it asks for a pause and says how long
    ├── DataError                1  one record or row cannot be handled: set it aside
    └── HaltError                3  going on would lose or corrupt: stop

The class says what to do, and the loop reads it: ``RETRY``, ``DEAD_LETTER`` or
``HALT``. ``remedy`` is one imperative sentence for the operator.
"""

import enum
import errno
import os
from collections.abc import Sequence
from typing import ClassVar, Final

_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
# What one connection takes.
_HEADROOM: Final = 3


class Disposition(enum.Enum):
    """What a loop does with a failure."""

    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    HALT = "halt"


class TowpathError(Exception):
    """The root of every failure that the platform names."""

    disposition: ClassVar[Disposition] = Disposition.HALT
    remedy: ClassVar[str] = "Read the message above; the log names the part."
    exit_code: ClassVar[int] = 3


class UsageError(TowpathError):
    """The command cannot be carried out as it was asked."""

    remedy = "Correct the command; --help shows what it takes."
    exit_code = 2


class ConfigurationError(UsageError):
    """The configuration has mistakes; all of them are listed."""

    remedy = "Correct every line named above in towpath.toml."

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


class UnavailableError(TowpathError):
    """A part cannot be reached now; trying again may help."""

    disposition = Disposition.RETRY
    remedy = "Check that the part runs and can be reached: towpath status."


class BusyError(UnavailableError):
    """A part asks for a pause before the next attempt."""

    remedy = "Wait, or give the part more room."

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DataError(TowpathError):
    """One record or row cannot be handled; the rest can."""

    disposition = Disposition.DEAD_LETTER
    remedy = "Find it in the dead letters with its reason, mend it and replay it."
    exit_code = 1


class TooManyFilesError(UnavailableError):
    """The process may open no further file or connection."""

    remedy = "Raise the limit of open files: ulimit -n, or LimitNOFILE of its service."

    def __init__(self, doing: str) -> None:
        super().__init__(f"{doing}: this process may open no further file")


def has_no_descriptor(error: BaseException) -> bool:
    """
    Tell whether a driver or the system failed for lack of a file descriptor.

    Drivers do not always say so: then it is tried whether some can be opened.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _NO_DESCRIPTOR
    if any(os.strerror(number) in str(error) for number in _NO_DESCRIPTOR):
        return True
    opened: list[int] = []
    try:
        opened.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_HEADROOM))
    except OSError as lacking:
        return lacking.errno in _NO_DESCRIPTOR
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return False


class HaltError(TowpathError):
    """Going on would lose or corrupt something."""
