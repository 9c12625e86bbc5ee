"""
A recorded stack: its archive, its folder, and its processes.

Iceberg's metadata names files by absolute paths, so the stack uses the same folder when
it is recorded and when it is restored. A lock reserves the folder for one process.
"""

import fcntl
import lzma
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from support.relay_process import RelayProcess
from towpath.deploy.local import postgres
from towpath.deploy.local.stack import Stack
from towpath.sinks.jars.store import refuse_outside_paths

FOLDER: Final = Path("/tmp/towpath-recording")  # noqa: S108 - the same on every machine
ARCHIVE: Final = Path(__file__).parents[1] / "data/recording/stack.tar.xz"
PARTS: Final = ("postgres", "kafka", "opensearch", "redis")
SINKS: Final = ("cache", "search", "warehouse")
CONFIG: Final = FOLDER / "towpath.toml"
# Configures a relay that never ran, but has had a slot since before the first change.
WITNESS: Final = FOLDER / "witness.toml"

_COMMAND: Final = ("-m", "towpath.cli")
# Files that the next start writes again: programs, logs, process files and locks.
_LEFT_OUT: Final = {
    *("logs", "run", "java", "owner", "lock", "postmaster.opts", "node.lock"),
    *("jars", "modules", "plugins", "bin", "lib", ".lock", "write.lock"),
}


@contextmanager
def held_stack() -> Iterator[Stack]:
    """Lock the folder for the block; remove its contents before and after."""
    with _lock_file().open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        stack = Stack(FOLDER)
        _remove(stack)
        try:
            yield stack
        finally:
            _remove(stack)


def _lock_file() -> Path:
    """Return the lock's file, which another user may have created: it is only read."""
    path = FOLDER.with_name(f"{FOLDER.name}.lock")
    if not path.exists():
        path.touch()
        path.chmod(0o644)
    return path


def pack(stack: Stack) -> None:
    """Write the archive of a stopped stack; the same files give the same bytes."""
    home = postgres.home_of(stack.state)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
    with (
        lzma.open(ARCHIVE, "wb", filters=filters) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for root, name in ((home.folder, "postgres"), (stack.state.root, "state")):
            for path in sorted(root.rglob("*")):
                below = path.relative_to(root)
                if not _LEFT_OUT & set(below.parts) and not path.is_symlink():
                    _add(archive, path, f"{name}/{below}")


def unpack(stack: Stack) -> None:
    """Unpack the archive to the folders of the stack's parts."""
    home = postgres.home_of(stack.state)
    stack.state.create()
    postgres.create_home(home, stack.state)
    with tarfile.open(ARCHIVE) as archive:
        refuse_outside_paths(archive)
        members = archive.getmembers()
        for member in members:
            part, _, member.name = member.name.partition("/")
            root = home.folder if part == "postgres" else stack.state.root
            archive.extract(member, root)
    home.data.chmod(0o700)
    if home.user is not None:
        for path in (home.folder, *home.folder.rglob("*")):
            os.chown(path, home.user.uid, home.user.gid)


class Process(RelayProcess):
    """A process of the stack that one command of ``towpath`` runs."""

    def __init__(self, config: Path, *arguments: str) -> None:
        super().__init__(config, FOLDER / "logs" / f"{config.stem}-{arguments[0]}.log")
        self._command = (*_COMMAND, *arguments, "--config", str(config))

    def begin(self, *command: str) -> None:
        """Start the process with the given command, by default with its own."""
        self.start(*(command or self._command))


def relay(config: Path = CONFIG) -> Process:
    """Return the relay of the stack."""
    return Process(config, "relay", "run")


def driver() -> Process:
    """Return the driver of the stack's sinks."""
    return Process(CONFIG, "sink", "run", "--driver", "sinks")


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file without the metadata that differs between runs."""
    entry = archive.gettarinfo(path, name)
    if not (entry.isdir() or entry.isreg()):
        return
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.type = tarfile.DIRTYPE if entry.isdir() else tarfile.REGTYPE
    if entry.isdir():
        archive.addfile(entry)
        return
    with path.open("rb") as file:
        archive.addfile(entry, file)


def _remove(stack: Stack) -> None:
    stack.purge()
    shutil.rmtree(stack.state.root, ignore_errors=True)
