"""
The settings of every Postgres session.

They are set after connecting, because only then do they override all others:
``PGTZ``, ``PGDATESTYLE`` and ``PGOPTIONS`` in the environment, a service file, and the
settings of a role or a database (``ALTER ROLE ... SET``). Host, password and TLS
settings still come from the DSN and the environment.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # First, so that no role's limit cancels this statement.
        "statement_timeout": "0",
        "lock_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        "idle_session_timeout": "0",
        # The text form of values: the same in stream, chunk, catalog and verifier.
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
        # Parsing of statements.
        "search_path": "pg_catalog",
        "standard_conforming_strings": "on",
        "array_nulls": "on",
        "transform_null_equals": "off",
        # Transactions.
        "default_transaction_isolation": "read committed",
        "default_transaction_read_only": "off",
        "default_transaction_deferrable": "off",
        # A commit is flushed on this server before it counts as durable, and waits for
        # no standby, which may be unreachable.
        "synchronous_commit": "local",
        "exit_on_error": "off",
        "client_min_messages": "warning",
        # A policy that hides rows causes an error, not a gap.
        "row_security": "off",
    }
)
_NEWER: Final = ((170000, "transaction_timeout", "0"),)


def statement(version: int, **other: str) -> str:
    """
    Return the statement that sets up a session.

    Args:
        version: The server's version as a number.
        other: Settings that replace or extend these.
    """
    newer = {name: value for since, name, value in _NEWER if version >= since}
    chosen = {**SETTINGS, **newer, **other}
    return "; ".join(f"set {name} = '{value}'" for name, value in chosen.items())
