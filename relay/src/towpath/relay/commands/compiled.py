"""
The relay's hot modules in compiled form: one written in C, the rest built by mypyc.

``make setup`` compiles them with ``deploy/compile_relay.py``, if there is a C compiler,
into a folder in the environment. The folder's name is a digest of the source, of the
interpreter and of the machine: modules built from other source are never found.
A process imports either all of these modules compiled or none, because compiled modules
use each other's classes directly. The Python source is the reference, and everything
but ``towpath relay run`` runs it.
"""

import hashlib
import importlib
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

from towpath.schemas.failure import ConfigurationError

# The modules on the path of each row, from the frame to the client and back: those that
# mypyc compiles, and those that a C file next to the Python file replaces.
BY_MYPYC: Final = tuple(
    f"towpath.relay.{name}"
    for name in (
        "wal.messages",
        "wal.pgoutput",
        "wal.transactions",
        "encode.record",
        "encode.types.temporal",
        "encode.types.scalar",
        "encode.types.nested",
        "encode.rows",
        "encode.codecs.json_codec",
        "encode.codecs.avro_codec",
        "encode.table",
        "encode.outbox",
        "snapshot.visibility",
        "snapshot.sql",
        "stats",
        "publish.in_flight",
        "publish.sender",
        "publish.publisher",
        "stream.consumer",
        "kafka.producer",
        "loop",
    )
)
FROM_C: Final = ("towpath.relay.publish.hot_path",)
MODULES: Final = (*BY_MYPYC, *FROM_C)
HOME: Final = Path(sys.prefix, "lib", "towpath-compiled")
VARIABLE: Final = "TOWPATH_COMPILED"
_CHOICES: Final = {"on": True, "off": False}
# The compiled modules contain constants from all of these packages.
_SOURCES: Final = ("towpath.relay", "towpath.schemas", "towpath.settings")
_SUFFIXES: Final = frozenset({".py", ".c"})


class Code(StrEnum):
    """The form in which the hot modules run."""

    COMPILED = "compiled"
    PYTHON = "Python"


class _Finder(MetaPathFinder):
    """Finds the modules that were compiled into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the protocol's
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        file = self._folder / (fullname.replace(".", "/") + EXTENSION_SUFFIXES[0])
        return spec_from_file_location(fullname, file) if file.is_file() else None


def folder(home: Path = HOME) -> Path:
    """Return the folder of the modules that were compiled from this source."""
    content = hashlib.sha256(f"{sys.version}\0{sysconfig.get_platform()}".encode())
    for package in _SOURCES:
        spec = find_spec(package)
        root = Path(spec.origin or "").parent if spec else Path()
        paths = (path for path in root.rglob("*.*") if path.suffix in _SUFFIXES)
        for path in sorted(paths):
            content.update(f"\0{package}/{path.relative_to(root)}\0".encode())
            content.update(path.read_bytes())
    return home / content.hexdigest()[:32]


def available(environ: Mapping[str, str], home: Path = HOME) -> Code:
    """
    Return the form in which ``towpath relay run`` runs in an environment.

    Raises:
        ConfigurationError: ``TOWPATH_COMPILED`` is neither on nor off.
    """
    return Code.COMPILED if _chosen_folder(environ, home) else Code.PYTHON


def import_modules(environ: Mapping[str, str], home: Path = HOME) -> None:
    """
    Import the compiled modules, if they exist and no hot module has been imported yet.

    Raises:
        ConfigurationError: ``TOWPATH_COMPILED`` is neither on nor off.
    """
    chosen = _chosen_folder(environ, home)
    if chosen is None or not sys.modules.keys().isdisjoint(MODULES):
        return
    finder = _Finder(chosen)
    sys.meta_path.insert(0, finder)
    try:
        for name in MODULES:
            importlib.import_module(name)
    finally:
        sys.meta_path.remove(finder)


def _chosen_folder(environ: Mapping[str, str], home: Path) -> Path | None:
    """Return the folder of compiled modules; None if it is missing or turned off."""
    chosen = environ.get(VARIABLE, "on")
    if chosen not in _CHOICES:
        raise ConfigurationError([f"{VARIABLE}: must be on or off, not {chosen!r}"])
    place = folder(home) if _CHOICES[chosen] else None
    return place if place is not None and place.is_dir() else None


def running() -> Code:
    """Return the form in which this process has imported the hot modules."""
    files = (getattr(sys.modules.get(name), "__file__", None) or "" for name in MODULES)
    is_compiled = all(file.endswith(EXTENSION_SUFFIXES[0]) for file in files)
    return Code.COMPILED if is_compiled else Code.PYTHON
