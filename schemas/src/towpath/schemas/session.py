"""
The settings of every session with a Postgres: one place decides them.

They are set after connecting, since nothing else beats all of: ``PGTZ``,
``PGDATESTYLE`` and ``PGOPTIONS`` of the environment, a service file, and the settings
of a role or a database (``ALTER ROLE ... SET``). What only says how to connect (host,
password, TLS) stays with the address and the environment.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # First, so that no bound of a role ends this statement.
        "statement_timeout": "0",
        "lock_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        "idle_session_timeout": "0",
        # How values are written: the same in stream, chunk, catalog and verifier.
        "client_encoding": "UTF8",
        "timezone": "UTC",
        "datestyle": "ISO, MDY",
        "intervalstyle": "postgres",
        "extra_float_digits": "3",
        "bytea_output": "hex",
        "lc_monetary": "C",
        "xmloption": "content",
        "xmlbinary": "base64",
        "quote_all_identifiers": "off",
        # How statements are read.
        "search_path": "pg_catalog",
        "standard_conforming_strings": "on",
        "array_nulls": "on",
        "transform_null_equals": "off",
        # How transactions behave.
        "default_transaction_isolation": "read committed",
        "default_transaction_read_only": "off",
        "default_transaction_deferrable": "off",
        # Flushed here, so that nothing durable is claimed too early; a standby that is
        # away holds up nobody's bookkeeping.
        "synchronous_commit": "local",
        "exit_on_error": "off",
        "client_min_messages": "warning",
        # Rows that a policy hides are an error, not a gap.
        "row_security": "off",
    }
)
_NEWER: Final = ((170000, "transaction_timeout", "0"),)


def statement(version: int, **other: str) -> str:
    """
    Return what sets up a session.

    Args:
        version: The server's, as a number.
        other: Settings in place of these, or beside them.
    """
    newer = {name: value for since, name, value in _NEWER if version >= since}
    chosen = {**SETTINGS, **newer, **other}
    return "; ".join(f"set {name} = '{value}'" for name, value in chosen.items())
