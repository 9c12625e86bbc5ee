"""
The lock of the Java archives, and the store that holds them.

The lock has one line for each archive::

    <use> <group>:<artifact>:<version>[:<type>[:<classifier>]] <file> <sha256> <bytes>

Archives are in ``<clone>/.towpath/jars/<lock>/<use>/``: each version of ``jars.lock``
has its own folder, which also holds the archives of further locks. Without a clone they
are in ``towpath/jars`` in the user's cache instead. A file is checked against its
sha256 and then put there in one step, so that a name in the store guarantees the right
bytes. Its size is checked before each use, to detect a file that was truncated later.
The one archive that is unpacked has a list of its files' sizes next to it.
"""

import hashlib
import os
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from towpath.sinks.errors import JarsError

# sinks/src/towpath/sinks/jars/store.py -> the clone, unless a wheel was installed.
CLONE: Final = Path(__file__).resolve().parents[5]
LOCK: Final = Path(__file__).with_name("jars.lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One archive for one use, such as ``kafka`` or ``spark``."""

    use: str
    coordinate: str
    file: str
    sha256: str
    size_bytes: int

    @property
    def parts(self) -> tuple[str, str, str, str, str]:
        """Group, artifact, version, type and classifier (empty if none)."""
        steps = self.coordinate.split(":")
        steps += ["jar", ""][len(steps) - 3 :]
        group, artifact, version, kind, classifier = steps
        return group, artifact, version, kind, classifier

    @property
    def repository_path(self) -> Path:
        """The archive's path in a Maven repository."""
        group, artifact, version, kind, classifier = self.parts
        name = f"{artifact}-{version}" + (f"-{classifier}" if classifier else "")
        return Path(*group.split("."), artifact, version, f"{name}.{kind}")


def read_lock(path: Path = LOCK) -> tuple[Jar, ...]:
    """Read the lock file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return tuple(
        Jar(use=use, coordinate=coordinate, file=file, sha256=sha, size_bytes=int(size))
        for use, coordinate, file, sha, size in rows
    )


def lock_digest(path: Path = LOCK) -> str:
    """Return a short digest of the lock's content, which names its folder."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


_PACKED: Final = ".tar.gz"


def folder(environ: Mapping[str, str] | None = None) -> Path:
    """
    Return the folder of this lock; ``TOWPATH_JARS`` names a different one.

    Raises:
        JarsError: It would be in the user's home, but the user has none.
    """
    variables = os.environ if environ is None else environ  # noqa: TID251 - read once, here
    named = variables.get("TOWPATH_JARS")
    if named:
        return Path(named)
    if (CLONE / "deploy" / "setup.py").exists():
        return CLONE / ".towpath" / "jars" / lock_digest()
    try:
        cache = variables.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        message = "this user has no home: name a folder for archives in TOWPATH_JARS"
        raise JarsError(message) from error
    return Path(cache) / "towpath" / "jars" / lock_digest()


def of(use: str) -> Path:
    """
    Return the folder of one use: ``kafka``, ``opensearch``, ``registry``, ``spark``.

    Raises:
        JarsError: An archive in it is missing or truncated.
    """
    store = folder()
    broken = [
        jar for jar in read_lock() if jar.use == use and not is_complete(jar, store)
    ]
    if broken:
        message = f"{broken[0].file} is missing or truncated in {store / use}"
        raise JarsError(message)
    return store / use


def missing(jars: Sequence[Jar], store: Path) -> list[Jar]:
    """Return the archives that are missing from the store, or incomplete."""
    return [jar for jar in jars if not is_complete(jar, store)]


def is_complete(jar: Jar, store: Path) -> bool:
    """Return whether an archive is in the store with its full size."""
    if jar.file.endswith(_PACKED):
        return _is_unpacked_completely(store / jar.use)
    return _size_bytes(store / jar.use / jar.file) == jar.size_bytes


def check(jar: Jar, path: Path) -> bool:
    """Return whether a file holds exactly the bytes that the lock names."""
    if _size_bytes(path) != jar.size_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256


def put(jar: Jar, source: Path, store: Path) -> None:
    """Put a checked file into the store, in one step."""
    target = store / jar.use
    target.parent.mkdir(parents=True, exist_ok=True)
    if jar.file.endswith(_PACKED):
        _unpack(source, target)
        return
    target.mkdir(exist_ok=True)
    scratch = target / f".{jar.file}.new"
    scratch.unlink(missing_ok=True)
    try:
        os.link(source, scratch)
    except OSError:
        shutil.copyfile(source, scratch)
    scratch.replace(target / jar.file)


def refuse_outside_paths(archive: tarfile.TarFile) -> None:
    """Refuse members outside the target; Python before 3.11.4 extracts them."""
    if hasattr(tarfile, "data_filter"):
        archive.extraction_filter = tarfile.data_filter


def _unpack(source: Path, target: Path) -> None:
    scratch = target.with_name(f"{target.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    with tarfile.open(source) as archive:
        refuse_outside_paths(archive)
        archive.extractall(scratch)  # noqa: S202
    shutil.rmtree(target, ignore_errors=True)
    _list_of(target).write_text(_listing(scratch), encoding="utf-8")
    scratch.replace(target)


def _is_unpacked_completely(target: Path) -> bool:
    try:
        wanted = _list_of(target).read_text(encoding="utf-8")
    except OSError:
        return False
    rows = (line.rpartition(" ") for line in wanted.splitlines())
    return all(_size_bytes(target / name) == int(size) for name, _, size in rows)


def _listing(root: Path) -> str:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    lines = (f"{path.relative_to(root)} {path.stat().st_size}\n" for path in files)
    return "".join(lines)


def _list_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.files")


def _size_bytes(path: Path) -> int:
    """Return a file's size, or -1 if there is no such file."""
    try:
        return path.stat().st_size
    except OSError:
        return -1
