"""
Sessions with Postgres, and the text of its values in records.

Verification, waiting and the command line read the source; a target may be another
Postgres.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, LiteralString, TypeAlias

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from towpath.schemas import session
from towpath.schemas.failure import (
    ConfigurationError,
    TooManyFilesError,
    has_no_descriptor,
)

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_CONNECT_TIMEOUT_S = 10


def connected(dsn: str, name: str = "the source", /, **settings: str) -> Connection:
    """
    Open an autocommit session, unaffected by settings of environment, role or database.

    Args:
        dsn: The connection string, as libpq accepts it.
        name: The name of the database in error messages.
        settings: The settings that differ from ``schemas.session``.

    Raises:
        psycopg.Error: The database cannot be reached.
        TooManyFilesError: This process has no file descriptor left.
    """
    try:
        connection = psycopg.connect(
            dsn, connect_timeout=_CONNECT_TIMEOUT_S, autocommit=True
        )
    except psycopg.Error as error:
        if error.sqlstate is None and has_no_descriptor(error):
            doing = f"connecting to {name}"
            raise TooManyFilesError(doing) from error
        raise
    try:
        version = connection.info.server_version
        connection.execute(session.statement(version, **settings).encode())
    except psycopg.Error:
        connection.close()
        raise
    return connection


def parameters_of(dsn: str) -> Mapping[str, Any]:
    """
    Return the parameters of a target's connection string, by libpq's names.

    Raises:
        ConfigurationError: The connection string cannot be read.
    """
    try:
        return conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        message = (
            "the target's url is not postgresql://user@host:port/database, nor pairs "
            "such as host=... dbname=..."
        )
        # Without its cause, which quotes the url with its password.
        raise ConfigurationError([message]) from None


# ``moment`` is the value as a time without a zone, ``zone`` the end of its text.
TIMES: Final[LiteralString] = """
    case when not isfinite({value}) then {value}::text
         else to_char({moment}, 'YYYY-MM-DD"T"HH24:MI:SS.US{zone}')
              || case when extract(year from {moment}) < 0 then ' BC' else '' end
    end
"""
_IN_UTC: Final[LiteralString] = "({value} at time zone 'UTC')"
_INTERVAL: Final[LiteralString] = """
    case when isfinite({value}) then
        'P' || extract(year from {value})::bigint || 'Y'
            || extract(month from {value})::bigint || 'M'
            || extract(day from {value})::bigint || 'DT'
            || extract(hour from {value})::bigint || 'H'
            || extract(minute from {value})::bigint || 'M'
            || trim_scale(extract(second from {value})) || 'S'
         else {value}::text
    end
"""
_AS_PRINTED: Final[LiteralString] = (
    "case when {value} is not null then concat({value}) end"
)
# Expressions for types whose text in records differs from that of a cast.
TEXT_FORMS: Final[Mapping[str, LiteralString]] = MappingProxyType(
    {
        "timestamp with time zone": TIMES.replace("{moment}", _IN_UTC).replace(
            "{zone}", '"Z"'
        ),
        "timestamp without time zone": TIMES.replace("{moment}", "{value}").replace(
            "{zone}", ""
        ),
        # Always in UTC, so that the offset always has three characters.
        "time with time zone": "left(" + _IN_UTC + "::text, -3) || 'Z'",
        "interval": _INTERVAL,
        "money": "{value}::numeric::text",
        # Postgres breaks base64 into lines.
        "bytea": r"translate(encode({value}, 'base64'), E'\n', '')",
        # A cast would remove the padding, which is part of the value's text, would add
        # a netmask to an address without one, and would keep the encoding that a
        # document declares.
        "character": _AS_PRINTED,
        "inet": _AS_PRINTED,
        "xml": _AS_PRINTED,
    }
)


def text_form(type_name: str, value: sql.Composable) -> sql.Composed:
    """Return the expression for a value's text in records."""
    return sql.SQL(TEXT_FORMS.get(type_name, "{value}::text")).format(value=value)
