"""
The failure tree: each failure's disposition, exit code and remedy.

::

    TowpathError
    ├── UsageError               2  the command line or configuration is wrong
    │   └── ConfigurationError      all mistakes in towpath.toml
    │       └── ConfigurationMissingError  there is no such file
    ├── UnavailableError         3  a part cannot be reached: retry
    │   ├── BusyError               the part names the pause before the next attempt
    │   ├── TooManyFilesError       the process cannot open another file
    │   └── RegistryUnavailableError  the schema registry cannot be reached
    ├── DataError                1  one record or row cannot be handled: dead letter
    └── HaltError                3  continuing would lose or corrupt data: halt
        ├── RegistryRefusedError    the registry refuses a login, or cannot be used
        └── SchemaRefusedError      the schema registry refuses a schema

Each class has the disposition that a loop acts on (``RETRY``, ``DEAD_LETTER`` or
``HALT``) and a ``remedy``: one imperative sentence for the operator.
"""

import enum
import errno
import os
from collections.abc import Sequence
from typing import Any, ClassVar, Final

_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
# File descriptors that one connection takes.
_HEADROOM: Final = 3


class Disposition(enum.Enum):
    """The reaction of a loop to a failure."""

    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    HALT = "halt"


class TowpathError(Exception):
    """The root of every failure that the platform names."""

    disposition: ClassVar[Disposition] = Disposition.HALT
    remedy: ClassVar[str] = "Read the message above; the log names the part."
    exit_code: ClassVar[int] = 3


def with_remedy(message: str, remedy: str) -> str:
    """Return a failure's message and its remedy as sentences."""
    return f"{message.rstrip('.')}. {remedy}"


def first_line(error: object) -> str:
    """Return the first line of an error's text, or the error's class if it is empty."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def log_failure(log: Any, event: str, error: Exception, **fields: object) -> None:  # noqa: ANN401 - any logger
    """
    Log an error, with its traceback unless it is one of the platform's failures.

    Such a failure has a reason that an operator can act on.
    """
    if isinstance(error, TowpathError):
        log.warning(event, reason=str(error), **fields)
    else:
        log.error(event, exc_info=error, **fields)


class UsageError(TowpathError):
    """The command cannot be carried out as given."""

    remedy = "Correct the command; --help shows what it takes."
    exit_code = 2


class ConfigurationError(UsageError):
    """The configuration has mistakes; all of them are listed."""

    remedy = "Correct every key of towpath.toml and every variable that is named above."

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


class ConfigurationMissingError(ConfigurationError):
    """The configuration file does not exist."""

    remedy = (
        "Write towpath.toml in this folder, as docs/how-to/own-servers.md shows, or "
        "name the file with --config or TOWPATH_CONFIG."
    )


class UnavailableError(TowpathError):
    """A part cannot be reached now; a retry may succeed."""

    disposition = Disposition.RETRY
    remedy = "Check that the part is running and can be reached: towpath status."


class BusyError(UnavailableError):
    """A part asks for a pause before the next attempt."""

    remedy = "Wait, or give the part more resources."

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DataError(TowpathError):
    """One record or row cannot be handled; the rest can."""

    disposition = Disposition.DEAD_LETTER
    remedy = (
        "Find the dead letter and its reason, correct the cause and replay the dead "
        "letter."
    )
    exit_code = 1


class TooManyFilesError(UnavailableError):
    """The process cannot open another file or connection."""

    remedy = "Raise the open file limit: ulimit -n, or LimitNOFILE in the systemd unit."

    def __init__(self, doing: str) -> None:
        super().__init__(f"{doing}: this process cannot open another file")


def has_no_descriptor(error: BaseException) -> bool:
    """
    Return whether a driver or the system failed for lack of a file descriptor.

    Not every driver reports the cause. If the error names none, a few files are opened
    as a test.
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
    """Continuing would lose or corrupt data."""


class RegistryUnavailableError(UnavailableError):
    """The schema registry cannot be reached, or responds with an error."""

    remedy = (
        "Check that the schema registry is running and that [registry] url, or "
        "--registry, points to it."
    )


class RegistryRefusedError(HaltError):
    """The login, URL or certificate file is wrong, or the registry denies access."""

    remedy = (
        "Correct [registry] url, or --registry, or grant the rights that the message "
        "names."
    )


class SchemaRefusedError(HaltError):
    """The schema registry refuses a table's new schema."""

    remedy = (
        "Relax the compatibility of the subject that the message names and start "
        'again, or set relay.rows.on_refused_schema = "park".'
    )
