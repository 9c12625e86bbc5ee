"""The databases that ``towpath up`` creates in its own Postgres."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from towpath.deploy.cli import stack
from towpath.deploy.local import postgres
from towpath.schemas.failure import UsageError


class Server:
    """A server that refuses a database which exists."""

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


def test_a_database_that_is_named_twice_is_created_once(monkeypatch):
    """
    One that exists is left alone.
    """
    server = Server("shop")
    monkeypatch.setattr(
        postgres.psycopg, "connect", lambda *_, **__: nullcontext(server)
    )
    postgres.create_databases(5432, ("blog", "shop", "blog"))

    assert ["shop", "blog"] == server.names


@pytest.mark.parametrize("name", ["", "x" * 64, "\u00fc" * 32])
def test_a_name_that_postgres_does_not_accept_is_refused_first(
    name, tmp_path, monkeypatch
):
    """
    Postgres cuts a longer one, and the next call would create the same database.
    """
    monkeypatch.setattr(stack.fetch, "ensure", lambda *_: pytest.fail("it begins"))

    with pytest.raises(UsageError, match="cannot be the name of a database"):
        stack.up(database=("x" * 63, name), state=tmp_path)
