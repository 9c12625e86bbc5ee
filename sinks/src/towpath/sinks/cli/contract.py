"""
``towpath schema contract``: what a migration does to row topics and sinks.

The schema before the migration is created in a scratch database, from SQL files or from
earlier Alembic revisions; the migration is applied there, and the catalogs before and
after are compared. The files are run as they are: no SQL is parsed. Do not use a
production server: a migration may create roles, which outlive the scratch database.
"""

import json as json_text
import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from urllib.parse import quote, urlencode

import psycopg
from cyclopts import Parameter
from psycopg import conninfo, sql

from towpath.cli.options import ConfigOption, JsonOption, read_settings
from towpath.schemas.failure import UnavailableError, UsageError, first_line
from towpath.sinks.contracts import evaluate, row_findings
from towpath.sinks.contracts.catalog import (
    Catalog,
    RowStatement,
    read_catalog,
    record_statements,
    recorded_statements,
)
from towpath.sinks.contracts.findings import ContractFinding, Level, accepted
from towpath.sinks.postgres import Connection, connected

_CONNECT_TIMEOUT_S: Final = 10
# Commands of psql that pg_dump writes, and that no server understands.
_PSQL_ONLY: Final = ("\\restrict", "\\unrestrict")
# Run by the application's own Python, which has Alembic and the models.
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
    """The migration or the schema before it cannot be applied to a scratch database."""

    remedy = (
        "Correct the cause that the message names: the migration must apply to the "
        "schema that the command is given."
    )


# Applies a schema or a migration to the scratch database, given its address.
Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AlembicRange:
    """
    A range of Alembic revisions.

    Attributes:
        start: The revision before the first one; ``base`` for none.
        end: The last revision; ``head`` for the newest.
        config: Alembic's configuration file.
        python: The application's Python.
        variable: The environment variable in which the application expects the address
            of its database.
    """

    start: str
    end: str
    config: Path
    python: str
    variable: str

    def before(self, dsn: str) -> None:
        """
        Apply the revisions before the range.

        Raises:
            MigrationFailedError: A revision fails, or Python cannot be run.
        """
        if self.start != _BASE:
            self._upgrade(dsn, self.start)

    def migrate(self, dsn: str) -> None:
        """
        Apply the range.

        Raises:
            MigrationFailedError: A revision fails, or Python cannot be run.
        """
        self._upgrade(dsn, self.end)

    def _upgrade(self, dsn: str, revision: str) -> None:
        environ = dict(os.environ)  # noqa: TID251 - the application's own
        environ[self.variable] = sqlalchemy_url(dsn, environ.get(self.variable, ""))
        args = [self.python, "-c", _UPGRADE, str(self.config), revision, self.variable]
        try:
            done = subprocess.run(  # noqa: S603 - the user's own application
                args, env=environ, capture_output=True, check=False
            )
        except OSError as error:
            message = f"{self.python} cannot be run: {error.strerror}"
            raise MigrationFailedError(message) from error
        if done.returncode:
            # The application may write in any encoding.
            output = done.stderr.strip() or done.stdout.strip()
            reason = output.decode("utf-8", "replace").splitlines()
            message = (
                f"alembic upgrade {revision}: {reason[-1] if reason else 'failed'}"
            )
            raise MigrationFailedError(message)


def sqlalchemy_url(dsn: str, model: str) -> str:
    """
    Return a database's address as a URL, with the scheme of a model.

    Args:
        dsn: An address that libpq accepts.
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
    address = ""
    if host and not host.startswith("/") and "," not in host:
        port = parts.pop("port", "")
        host = f"[{host}]" if ":" in parts.pop("host") else host
        address = host + (f":{port}" if port else "")
    login = f"{user}@" if user else ""
    rest = f"?{urlencode(parts)}" if parts else ""
    return f"{scheme}://{login}{address}/{name}{rest}"


def sql_files(paths: Sequence[Path]) -> Step:
    """Return the step that runs SQL files, one after another."""

    def apply(dsn: str) -> None:
        for path in paths:
            _run_file(dsn, path)

    return apply


def _run_file(dsn: str, path: Path) -> None:
    """Run a file in its own session, as one transaction unless the file commits."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise MigrationFailedError(message) from error
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8: {error.reason} at byte {error.start}"
        raise MigrationFailedError(message) from error
    lines = text.splitlines(keepends=True)
    kept = "".join(line for line in lines if not line.startswith(_PSQL_ONLY))
    try:
        with closing(psycopg.connect(dsn, autocommit=True)) as connection:
            connection.execute(kept.encode())
    except psycopg.Error as error:
        message = f"{path}: {first_line(error)}"
        raise MigrationFailedError(message) from error


class MigratedSchema(NamedTuple):
    """The catalogs before and after a migration, and its statements on rows."""

    before: Catalog
    after: Catalog
    statements: Sequence[RowStatement]


def compare(dsn: str, before: Step, migrate: Step) -> MigratedSchema:
    """
    Apply a migration to a scratch database; return both catalogs and row statements.

    Args:
        dsn: The address, for libpq, of a server where a database may be created.
        before: Creates the schema before the migration.
        migrate: Applies the migration.

    Raises:
        MigrationFailedError: The schema or the migration cannot be applied.
        UnavailableError: The server cannot be reached, or refuses to create, read or
            drop the database.
    """
    with _scratch(dsn) as scratch:
        before(scratch)
        with _opened(scratch) as connection:
            first = read_catalog(connection)
            record_statements(connection, first)
        migrate(scratch)
        with _opened(scratch) as connection:
            statements = recorded_statements(connection)
            return MigratedSchema(first, read_catalog(connection), statements)


@contextmanager
def _opened(dsn: str) -> Iterator[Connection]:
    try:
        with closing(connected(dsn, "the scratch database")) as connection:
            yield connection
    except psycopg.Error as error:
        message = f"the scratch database cannot be read: {first_line(error)}"
        raise UnavailableError(message) from error


@contextmanager
def _scratch(dsn: str) -> Iterator[str]:
    """
    Create an empty database, and drop it at the end.

    If the block has failed, its error is raised even if the database is left behind.
    """
    name = f"towpath_contract_{uuid.uuid4().hex[:12]}"
    try:
        connection = psycopg.connect(
            dsn, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S
        )
    except psycopg.Error as error:
        message = f"the server given by --dsn cannot be reached: {first_line(error)}"
        raise UnavailableError(message) from error
    create = sql.SQL("create database {} template template0")
    with closing(connection):
        try:
            connection.execute(create.format(sql.Identifier(name)))
        except psycopg.Error as error:
            message = f"no scratch database can be created: {first_line(error)}"
            raise UnavailableError(message) from error
    try:
        yield conninfo.make_conninfo(dsn, dbname=name)
    except BaseException:
        try:
            _drop(dsn, name)
        except UnavailableError as error:
            print(f"warning: {error}", file=sys.stderr)
        raise
    _drop(dsn, name)


def _drop(dsn: str, name: str) -> None:
    """
    Drop a database.

    Raises:
        UnavailableError: The server cannot be reached, or refuses; the database is
            left behind.
    """
    drop = sql.SQL("drop database {} with (force)").format(sql.Identifier(name))
    try:
        with closing(psycopg.connect(dsn, autocommit=True)) as connection:
            connection.execute(drop)
    except psycopg.Error as error:
        message = f"the scratch database {name} was not dropped: {first_line(error)}"
        raise UnavailableError(message) from error


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class _ScratchOptions:
    """
    The scratch database, and the sources of its schema.

    Attributes:
        dsn: A Postgres server where a scratch database may be created.
        schema: An SQL file with the schema before the migration. May be given several
            times; the files run before the Alembic revisions.
        alembic: The range of revisions START:END, such as 0007:0008 or base:head.
        alembic_config: Alembic's configuration file.
        url_variable: The environment variable in which Alembic's env.py expects the
            database's URL.
        python: The application's Python, which runs Alembic; by default, that of
            this command.
    """

    dsn: Annotated[str, Parameter(env_var="TOWPATH_SCRATCH_DSN")]
    schema: Annotated[tuple[Path, ...], Parameter(negative="")] = ()
    alembic: str | None = None
    alembic_config: Path = Path("alembic.ini")
    url_variable: str = "DATABASE_URL"
    python: str | None = None

    def steps(self, migrations: Sequence[Path]) -> tuple[Step, Step]:
        """
        Return the step that creates the schema, and the step that migrates it.

        Raises:
            UsageError: No migration is named, or ``--alembic`` is used incorrectly.
        """
        files = sql_files(self.schema)
        if self.alembic is None:
            if not migrations:
                message = "name the migration: SQL files, or --alembic START:END"
                raise UsageError(message)
            return files, sql_files(migrations)
        start, _, end = self.alembic.partition(":")
        if migrations or not start or not end:
            message = "--alembic takes a range START:END, without migration files"
            raise UsageError(message)
        revisions = AlembicRange(
            *(start, end, self.alembic_config),
            *(self.python or sys.executable, self.url_variable),
        )

        def before(dsn: str) -> None:
            files(dsn)
            revisions.before(dsn)

        return before, revisions.migrate


def contract(
    *migrations: Path,
    scratch: _ScratchOptions,
    accept: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Check a migration against row topics and sinks; exit 1 if it is refused.

    The schema before the migration is created in a scratch database, the migration is
    applied there, and the catalogs before and after are compared. No sink is contacted.

    Args:
        migrations: The migration's SQL files, in order.
        scratch: The scratch database.
        accept: A table (shop.orders) or a column (shop.orders.note) whose refused
            change is accepted. May be given several times.
        json: Print one JSON document.
        config: Configuration file.
    """
    settings = read_settings(config)
    migrated = compare(scratch.dsn, *scratch.steps(migrations))
    found = evaluate(migrated.before, migrated.after, settings)
    found += row_findings(migrated.statements, migrated.before, settings)
    refused = {one.name for one in found if one.level is Level.REFUSED}
    unknown = sorted(set(accept) - refused)
    if unknown:
        message = f"no change to {', '.join(unknown)} is refused: omit this --accept"
        raise UsageError(message)
    found = accepted(found, accept)
    is_refused = bool(refused.difference(accept))
    if json:
        document = {"refused": is_refused, "findings": [asdict(one) for one in found]}
        print(json_text.dumps(document, indent=1, ensure_ascii=False))
    else:
        _print(found)
    return int(is_refused)


def _print(found: Sequence[ContractFinding]) -> None:
    for one in found:
        print(f"{one.level}: {one.name}: {one.change} ({one.place})")
        print(f"  {one.sentence}")
        for number, step in enumerate(one.steps, start=1):
            print(f"  {number}. {step}")
    counted = Counter(one.level for one in found)
    summary = ", ".join(
        f"{counted[level]} {level}" for level in Level if counted[level]
    )
    print(summary or "no captured table is changed")
