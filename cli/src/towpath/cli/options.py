"""Options that several commands share, and the configuration that they read."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

if TYPE_CHECKING:
    from towpath.settings import Settings

# The exit code that a shell reports for a command that Ctrl-C interrupted.
INTERRUPTED: Final = 130

Flag = Parameter(negative="")
StateOption = Annotated[
    Path | None,
    Parameter(name="--state", help="State folder [TOWPATH_STATE, else .towpath]."),
]
ConfigOption = Annotated[
    Path | None,
    Parameter(
        name="--config", help="Configuration [TOWPATH_CONFIG, else towpath.toml]."
    ),
]
JsonOption = Annotated[
    bool, Parameter(name="--json", negative="", help="Print one JSON document.")
]


def state_folder(named: Path | None, environ: Mapping[str, str] | None = None) -> Path:
    """
    Return the state folder: ``named``, else ``TOWPATH_STATE``, else ``.towpath``.

    The folder need not exist.

    Raises:
        UsageError: The path cannot be used; for instance, a name in it is too long.
    """
    from towpath.schemas.failure import UsageError  # noqa: PLC0415 - keeps --help fast

    folder = named or Path(_environ(environ).get("TOWPATH_STATE") or ".towpath")
    try:
        # Check a file in the folder, because the folder itself may not be searchable.
        (folder / "towpath.toml").stat()
    except (FileNotFoundError, NotADirectoryError):
        return folder
    except OSError as error:
        message = f"the state folder {folder}: {error.strerror}"
        raise UsageError(message) from error
    return folder


def config_file(named: Path | None, environ: Mapping[str, str] | None = None) -> Path:
    """
    Return the configuration file.

    The first that applies: ``named``; ``TOWPATH_CONFIG``; ``towpath.toml`` in the
    current folder, if it exists; the file that ``towpath up`` writes into the state
    folder.

    Raises:
        UsageError: The path of the state folder cannot be used.
    """
    variables = _environ(environ)
    if named is not None:
        return named
    if variables.get("TOWPATH_CONFIG"):
        return Path(variables["TOWPATH_CONFIG"])
    here = Path("towpath.toml")
    return here if here.exists() else state_folder(None, variables) / "towpath.toml"


def read_settings(named: Path | None) -> "Settings":
    """Read the configuration file; environment variables override it."""
    from towpath.settings import load  # noqa: PLC0415 - keeps --help fast

    return load(config_file(named), _environ(None))


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """
    Raise a usage error if the block cannot read a file named on the command line.

    Raises:
        UsageError: The file cannot be read, or is not UTF-8 text.
    """
    from towpath.schemas.failure import UsageError  # noqa: PLC0415 - keeps --help fast

    try:
        yield
    except OSError as error:
        message = f"{file}: {error.strerror or 'cannot be read'}"
        raise UsageError(message) from error
    except UnicodeDecodeError as error:
        message = f"{file} is not UTF-8 text"
        raise UsageError(message) from error


def check_output(option: str, file: Path | None) -> None:
    """
    Check, before a long run, that an option names a file in an existing folder.

    Raises:
        UsageError: The file's folder does not exist, or the path names a folder or
            cannot be used.
    """
    from towpath.schemas.failure import UsageError  # noqa: PLC0415 - keeps --help fast

    if file is None:
        return
    try:
        has_folder, is_folder = file.parent.is_dir(), file.is_dir()
    except OSError as error:
        message = f"{option}: {file}: {error.strerror}"
        raise UsageError(message) from error
    if not has_folder:
        message = f"{option}: there is no folder {file.parent}"
        raise UsageError(message)
    if is_folder:
        message = f"{option}: {file} is a folder; name a file"
        raise UsageError(message)


def _environ(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if environ is None else environ  # noqa: TID251 - a root
