"""
Read ``towpath.toml``, apply the environment, and report all mistakes together.

``TOWPATH_CONFIG`` and ``TOWPATH_STATE`` belong to the command line and override nothing
here. A long-lived process reads the file again when it has changed.
"""

import copy
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import ValidationError

from towpath.schemas.failure import ConfigurationError, ConfigurationMissingError
from towpath.settings.checks import contradictions
from towpath.settings.environment import lay_over
from towpath.settings.mistakes import describe_all
from towpath.settings.model import Settings
from towpath.settings.section import KeyPath


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """
    Read and check the configuration.

    A relative ``state_folder``, warehouse ``folder`` or folder of
    ``search.event_schemas`` is relative to the file.

    Raises:
        ConfigurationMissingError: There is no such file.
        ConfigurationError: The file cannot be read, or has mistakes; all are listed.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigurationMissingError([f"{path}: {error.strerror}"]) from error
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise ConfigurationError([f"{path}: {reason}"]) from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError([f"{path}: not TOML: {error}"]) from error
    return read(document, environ, path.resolve().parent)


def read(
    document: Mapping[str, Any], environ: Mapping[str, str], folder: Path
) -> Settings:
    """
    Check a document together with the environment's overrides.

    Args:
        document: The parsed file; it is not modified.
        environ: The overrides, among other variables.
        folder: The base of relative folders.

    Raises:
        ConfigurationError: There are mistakes; all are listed.
    """
    whole = copy.deepcopy(dict(document))
    overlay = lay_over(whole, environ)
    _anchor(whole, folder)
    mistakes = overlay.mistakes
    try:
        settings = Settings.model_validate(whole)
    except ValidationError as error:
        details = error.errors()
        mistakes += describe_all(details, overlay.variables, overlay.sections)
        mistakes += _remaining_contradictions(
            whole, [detail["loc"] for detail in details]
        )
        raise ConfigurationError(mistakes) from error
    mistakes += contradictions(settings)
    if mistakes:
        raise ConfigurationError(mistakes)
    return settings


def _remaining_contradictions(
    document: dict[str, Any], wrong: list[KeyPath]
) -> list[str]:
    """List contradictions between the valid keys, if enough of them are valid."""
    pruned = copy.deepcopy(document)
    places = list(wrong)
    # A removed value may be required: the next round then adds a stand-in.
    for _ in range(3):
        for place in places:
            _prune(pruned, place)
        try:
            return contradictions(Settings.model_validate(pruned), wrong)
        except ValidationError as error:
            places = [detail["loc"] for detail in error.errors()]
            wrong = [*wrong, *places]
    return []


# Stand-ins for required values that are wrong or missing.
_STAND_INS: Final[Mapping[str, object]] = {"version": 1, "kafka": {}}


def _prune(document: dict[str, Any], place: KeyPath) -> None:
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
        if isinstance(sink, dict):
            _anchor_sink(sink, folder)


def _anchor_sink(sink: dict[str, Any], folder: Path) -> None:
    if isinstance(sink.get("folder"), str):
        sink["folder"] = str(folder / sink["folder"])
    search = sink.get("search")
    if isinstance(search, dict) and isinstance(search.get("event_schemas"), list):
        given = search["event_schemas"]
        anchored = [str(folder / one) if isinstance(one, str) else one for one in given]
        sink["search"] = {**search, "event_schemas": anchored}


# Identifies the state of a file: inode (a replaced file has a new one), size, mtime,
# and ctime, which also changes with the file's permissions.
_Stamp: TypeAlias = tuple[int, int, int, int]


class WatchedFile:
    """One configuration file that is read again only when it has changed."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self._path = path
        self._environ = environ
        self._seen: _Stamp | None = None

    def changed(self) -> Settings | None:
        """
        Read the file if it has changed since the last call.

        Raises:
            ConfigurationError: The file has mistakes, which are raised once per change
                of the file, or is missing, which is raised at every call.
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
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
