"""
Read ``towpath.toml``, lay the environment over it, and report every mistake at once.

``TOWPATH_<SECTION>__<KEY>`` overrides a key; ``TOWPATH_CONFIG`` and ``TOWPATH_STATE``
belong to the command line and are left alone.
A long-lived process reads the file again when it has changed.
"""

import copy
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import ValidationError

from towpath.schemas.failure import ConfigurationError
from towpath.settings.checks import contradictions
from towpath.settings.environment import lay_over
from towpath.settings.mistakes import tell_all
from towpath.settings.model import Settings
from towpath.settings.shape import Place


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """
    Read and check the configuration.

    A relative ``state_folder`` or warehouse ``folder`` is taken from the file's folder.

    Raises:
        ConfigurationError: The file is missing or has mistakes; all are listed.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise ConfigurationError([f"{path}: {reason}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError([f"{path}: not TOML: {error}"]) from error
    return read(document, environ, path.resolve().parent)


def read(
    document: Mapping[str, Any], environ: Mapping[str, str], folder: Path
) -> Settings:
    """
    Check a document, with the environment laid over it.

    Args:
        document: What the file says; it stays as it is.
        environ: The overrides, among other variables.
        folder: Where relative folders are taken from.

    Raises:
        ConfigurationError: It has mistakes; all are listed.
    """
    whole = copy.deepcopy(dict(document))
    overlay = lay_over(whole, environ)
    _anchor(whole, folder)
    mistakes = overlay.mistakes
    try:
        settings = Settings.model_validate(whole)
    except ValidationError as error:
        details = error.errors()
        mistakes += tell_all(details, overlay.variables)
        mistakes += _among_the_rest(whole, [detail["loc"] for detail in details])
        raise ConfigurationError(mistakes) from error
    mistakes += contradictions(settings)
    if mistakes:
        raise ConfigurationError(mistakes)
    return settings


def _among_the_rest(document: dict[str, Any], wrong: list[Place]) -> list[str]:
    """List the contradictions among what is right; nothing if too little is."""
    pruned = copy.deepcopy(document)
    places = list(wrong)
    # What was removed may be required: the second round puts stand-ins there.
    for _ in range(3):
        for place in places:
            _prune(pruned, place)
        try:
            return contradictions(Settings.model_validate(pruned), wrong)
        except ValidationError as error:
            places = [detail["loc"] for detail in error.errors()]
            wrong = [*wrong, *places]
    return []


# What stands for a required value that is wrong or missing.
_STAND_INS: Final[Mapping[str, object]] = {"version": 1, "kafka": {}}


def _prune(document: dict[str, Any], place: Place) -> None:
    """Remove a wrong value, or put a stand-in where one is missing."""
    if place[:1] == ("sink",):
        document.pop("sink", None)
        return
    here: Any = document
    for step in place[:-1]:
        try:
            here = here[step]
        except (KeyError, IndexError, TypeError):
            return
    last = place[-1] if place else ""
    if not isinstance(here, dict):
        return
    if last in here:
        del here[last]
    else:
        here[last] = copy.copy(_STAND_INS.get(str(last), ""))


def _anchor(document: dict[str, Any], folder: Path) -> None:
    state = document.get("state_folder", ".towpath")
    if isinstance(state, str):
        document["state_folder"] = str(folder / state)
    sinks = document.get("sink")
    for sink in sinks if isinstance(sinks, list) else []:
        if isinstance(sink, dict) and isinstance(sink.get("folder"), str):
            sink["folder"] = str(folder / sink["folder"])


# What tells one state of a file from another: a replaced file has another inode.
_Stamp: TypeAlias = tuple[int, int, int]


class WatchedFile:
    """One configuration file; looking at it costs a call unless it has changed."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        """Name the file and the overrides; nothing is read yet."""
        self._path = path
        self._environ = environ
        self._seen: _Stamp | None = None

    def changed(self) -> Settings | None:
        """
        Read the file if it is not as it was at the last look.

        Raises:
            ConfigurationError: It has mistakes; they are told once for each change.
        """
        stamp = self._stamp()
        if stamp is not None and stamp == self._seen:
            return None
        self._seen = stamp
        return load(self._path, self._environ)

    def _stamp(self) -> _Stamp | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size
