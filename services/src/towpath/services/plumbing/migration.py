"""
Bringing a service's tables to the newest version, also when two of it start at once.

The whole run is one transaction under one advisory lock: the second to come waits,
finds nothing to do, and goes on.
"""

import zlib
from importlib import resources
from typing import Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text

from towpath.services.plumbing.database import translated

# How long the second to come waits for the first; migrations take seconds.
_WAIT_MS: Final = 60_000


def migrate(engine: Engine, *, package: str, schema: str) -> None:
    """
    Apply what is missing.

    Args:
        engine: The database.
        package: The package that holds ``env.py`` and ``versions``.
        schema: The service's schema; made first, because alembic keeps its own table
            there.

    Raises:
        UnavailableError: The database cannot be reached.
    """
    key = zlib.crc32(f"towpath:migrate:{schema}".encode())
    with translated(), engine.begin() as connection:
        connection.execute(text(f"set local lock_timeout = {_WAIT_MS}"))
        connection.execute(text(f"set local statement_timeout = {_WAIT_MS}"))
        connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": key})
        there = text("select to_regnamespace(:schema) is not null")
        if not connection.scalar(there, {"schema": schema}):
            connection.execute(text(f'create schema "{schema}"'))
        folder = resources.files(package)
        config = Config()
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
