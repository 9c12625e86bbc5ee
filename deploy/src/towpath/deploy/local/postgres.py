"""
Postgres with ``wal_level=logical``, made and started by its own programs.

What a server that was killed leaves behind, a stale ``postmaster.pid`` and backends
that have not noticed yet, is cleared away before the next start.
"""

import signal
import subprocess
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

from towpath.deploy.errors import NotReadyError, PartError
from towpath.deploy.local import postgres_home, postgres_remains
from towpath.deploy.local.folders import StateFolder
from towpath.deploy.local.part import RECOVERS_WITHIN_S, Part
from towpath.deploy.local.ports import LOOPBACK
from towpath.deploy.local.postgres_home import Home
from towpath.deploy.local.probe import ANSWER_WITHIN_S

USER: Final = "postgres"
DATABASES: Final = ("shop", "warehouse")
_SETTINGS: Final = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_prepared_transactions": "20",
    "max_connections": "200",
    "listen_addresses": LOOPBACK,
    # A socket's path is at most 107 bytes long, which a state folder may exceed.
    "unix_socket_directories": "",
    "log_line_prefix": "%m [%p] ",
}


def part(state: StateFolder, port: int, programs: Path | None = None) -> Part:
    """Describe the Postgres part; ``programs`` names another than the packaged one."""
    home = postgres_home.of(state, programs)
    settings = {**_SETTINGS, "port": str(port)}
    flags = (w for name, text in settings.items() for w in ("-c", f"{name}={text}"))
    return Part(
        name="postgres",
        command=(str(home.programs / "bin" / "postgres"), "-D", str(home.data), *flags),
        folder=Path("/"),
        env=_ENV,
        port=port,
        prepare=lambda: _prepare(home, state),
        probe=lambda: ask(port),
        recovers_within_s=RECOVERS_WITHIN_S,
        # Fast: clients are told to go, then the server writes its last checkpoint.
        stop_signal=signal.SIGINT,
        user=home.user,
    )


_ENV: Final = {"LC_ALL": "C.UTF-8", "TZ": "UTC"}


def dsn(port: int, database: str) -> str:
    """Return the address of a database."""
    return f"postgresql://{USER}@{LOOPBACK}:{port}/{database}"


def ask(port: int) -> None:
    """
    Ask ``select 1``.

    Raises:
        NotReadyError: No answer, for instance because the server still recovers.
    """
    try:
        with psycopg.connect(
            dsn(port, "postgres"), connect_timeout=int(ANSWER_WITHIN_S)
        ) as connection:
            connection.execute("select 1")
    except psycopg.OperationalError as error:
        message = str(error).strip()
        raise NotReadyError(message) from error


def create_databases(port: int, names: tuple[str, ...] = DATABASES) -> None:
    """Create the databases that are missing."""
    with psycopg.connect(dsn(port, "postgres"), autocommit=True) as connection:
        rows = connection.execute("select datname from pg_database").fetchall()
        for name in names:
            if (name,) not in rows:
                statement = sql.SQL("create database {}").format(sql.Identifier(name))
                connection.execute(statement)


def _prepare(home: Home, state: StateFolder) -> None:
    postgres_home.create(home, state)
    postgres_remains.clear(home.data)
    if (home.data / "PG_VERSION").exists() and (home.folder / "made").exists():
        return
    # A data folder without the file "made" is what an interrupted initdb left.
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
