"""
The header ``Towpath-Lsn``: an LSN at or behind the end of the request's commit.

Whoever wrote can wait until a sink has applied everything up to it, and so reads the
own write there. It is read after the commit, on the commit's own connection:

- With synchronous commits the commit's record was flushed before the commit returned,
  so the end of what is flushed, read afterwards, lies at its end or behind it. Commits
  of others in between only move it further: an upper bound, never less. The end of what
  was *inserted* would be one too, but what is inserted and not flushed reaches nobody,
  and a wait for it could last until somebody else commits.
- With ``synchronous_commit = off`` nothing says that the commit is flushed: then the
  end of what was inserted is the bound.
- On another connection of the same server, as a pooler may give us, both still hold:
  the ends are the server's, not the session's. On another *server* they would not, so
  after a lost connection there is no header at all rather than a wrong one. A fail-over
  that a pooler hides from us can still answer for the new server, whose log may lack
  the commit: no LSN tells of what a fail-over has lost.
"""

from typing import Final

import structlog
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

HEADER: Final = "Towpath-Lsn"

_END: Final = text(
    "select (case current_setting('synchronous_commit')"
    " when 'off' then pg_current_wal_insert_lsn()"
    " else pg_current_wal_flush_lsn() end)::text"
)

log = structlog.get_logger(__name__)


def written_lsn(connection: Connection) -> str | None:
    """
    Return an LSN behind all that was committed on this connection.

    Returns:
        The LSN as Postgres writes it; None if the connection was lost meanwhile: the
        commit stands all the same.
    """
    try:
        lsn: str = connection.scalar(_END)
    except DBAPIError as error:
        log.warning("no LSN was read after a commit", reason=type(error.orig).__name__)
        return None
    return lsn
