"""The databases that ``towpath up`` creates in its own Postgres."""

from contextlib import nullcontext
from types import SimpleNamespace

from towpath.deploy.local import postgres


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
