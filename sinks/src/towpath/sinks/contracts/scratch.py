"""
A migration on a scratch copy of the schema: the catalog before it and after it.

The copy is a database of its own on a server where one may be created, made of the
schema's SQL or of the earlier revisions of Alembic, and dropped at the end. The files
are run as they are; no SQL is parsed. The server itself should be no important one: a
migration may create roles.
"""

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

import psycopg
from psycopg import conninfo, sql

from towpath.schemas.failure import UnavailableError, UsageError
from towpath.sinks.contracts.catalog import Catalog, read_catalog
from towpath.sinks.postgres import connected

_CONNECT_TIMEOUT_S: Final = 10
# Commands of psql that pg_dump writes, and that no server knows.
_PSQL_ONLY: Final = ("\\restrict", "\\unrestrict")
# Run by the application's own Python, in its folder: it has Alembic and the models.
_UPGRADE: Final = """
import os, sys
from alembic import command
from alembic.config import Config
config = Config(sys.argv[1])
url = os.environ[sys.argv[3]].replace("%", "%%")
config.set_main_option("sqlalchemy.url", url)
command.upgrade(config, sys.argv[2])
"""
_BASE: Final = "base"


class MigrationFailedError(UsageError):
    """A migration, or the schema before it, cannot be applied to the scratch copy."""

    remedy = (
        "Correct what the message names: the migration must apply to the schema that "
        "the command is given."
    )


class Catalogs(NamedTuple):
    """The catalog before a migration, and after it."""

    before: Catalog
    after: Catalog


# Applies something to the scratch database, given its address.
Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AlembicRange:
    """
    Revisions of Alembic.

    Attributes:
        start: The revision before the first one; ``base`` for none.
        end: The last revision; ``head`` for the newest.
        config: Alembic's configuration file.
        python: The application's Python.
        variable: The environment variable with the address of its database.
    """

    start: str
    end: str
    config: Path
    python: str
    variable: str

    def before(self, dsn: str) -> None:
        """
        Apply the revisions up to the range.

        Raises:
            MigrationFailedError: A revision fails.
        """
        if self.start != _BASE:
            self._upgrade(dsn, self.start)

    def migrate(self, dsn: str) -> None:
        """
        Apply the range.

        Raises:
            MigrationFailedError: A revision fails.
        """
        self._upgrade(dsn, self.end)

    def _upgrade(self, dsn: str, revision: str) -> None:
        environ = dict(os.environ)  # noqa: TID251 - the application's own
        environ[self.variable] = sqlalchemy_url(dsn, environ.get(self.variable, ""))
        words = [self.python, "-c", _UPGRADE, str(self.config), revision, self.variable]
        try:
            done = subprocess.run(  # noqa: S603 - the user's own application
                words, env=environ, capture_output=True, text=True, check=False
            )
        except OSError as error:
            message = f"{self.python} cannot be run: {error.strerror}"
            raise MigrationFailedError(message) from error
        if done.returncode:
            reason = (done.stderr.strip() or done.stdout.strip()).splitlines()
            message = (
                f"alembic upgrade {revision}: {reason[-1] if reason else 'failed'}"
            )
            raise MigrationFailedError(message)


def sqlalchemy_url(dsn: str, model: str) -> str:
    """
    Write a database's address as a URL, with the scheme of another one.

    Args:
        dsn: An address as libpq takes it.
        model: A URL whose scheme names the driver, such as ``postgresql+psycopg``;
            empty for SQLAlchemy's own choice.
    """
    parts: dict[str, str] = {
        name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items()
    }
    scheme = model.partition("://")[0] if "://" in model else "postgresql"
    user = quote(parts.pop("user", ""), safe="")
    if password := parts.pop("password", ""):
        user += f":{quote(password, safe='')}"
    name = quote(parts.pop("dbname", ""), safe="")
    host = parts.get("host", "")
    place = ""
    if host and not host.startswith("/") and "," not in host:
        port = parts.pop("port", "")
        place = parts.pop("host") + (f":{port}" if port else "")
    login = f"{user}@" if user else ""
    rest = f"?{urlencode(parts)}" if parts else ""
    return f"{scheme}://{login}{place}/{name}{rest}"


def sql_files(paths: Sequence[Path]) -> Step:
    """Return the step that runs SQL files, one after the other."""

    def apply(dsn: str) -> None:
        for path in paths:
            _run_file(dsn, path)

    return apply


def _run_file(dsn: str, path: Path) -> None:
    """Run a file in a session of its own, as its author's tool would."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise MigrationFailedError(message) from error
    lines = text.splitlines(keepends=True)
    kept = "".join(line for line in lines if not line.startswith(_PSQL_ONLY))
    try:
        with closing(psycopg.connect(dsn, autocommit=True)) as connection:
            connection.execute(kept.encode())
    except psycopg.Error as error:
        message = f"{path}: {_first_line(error)}"
        raise MigrationFailedError(message) from error


def compare(dsn: str, before: Step, migrate: Step) -> Catalogs:
    """
    Apply a migration to a scratch database; return the catalogs before and after.

    Args:
        dsn: A server where a database may be created, as libpq takes it.
        before: Makes the schema.
        migrate: Applies the migration.

    Raises:
        MigrationFailedError: Schema or migration fails.
        UnavailableError: The server cannot be reached, or refuses a new database.
    """
    with _scratch(dsn) as scratch:
        before(scratch)
        first = _read(scratch)
        migrate(scratch)
        return Catalogs(first, _read(scratch))


def _read(dsn: str) -> Catalog:
    with closing(connected(dsn, "the scratch database")) as connection:
        return read_catalog(connection)


@contextmanager
def _scratch(dsn: str) -> Iterator[str]:
    """Create an empty database, and drop it at the end."""
    name = f"towpath_contract_{uuid.uuid4().hex[:12]}"
    try:
        connection = psycopg.connect(
            dsn, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S
        )
    except psycopg.Error as error:
        message = f"the server of --dsn cannot be reached: {_first_line(error)}"
        raise UnavailableError(message) from error
    with closing(connection):
        database = sql.Identifier(name)
        try:
            connection.execute(
                sql.SQL("create database {} template template0").format(database)
            )
        except psycopg.Error as error:
            message = f"no scratch database can be created: {_first_line(error)}"
            raise UnavailableError(message) from error
        try:
            yield conninfo.make_conninfo(dsn, dbname=name)
        finally:
            connection.execute(
                sql.SQL("drop database {} with (force)").format(database)
            )


def _first_line(error: psycopg.Error) -> str:
    return (str(error).splitlines() or ["failed"])[0]
