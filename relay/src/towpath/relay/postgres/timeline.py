"""
How the server's timeline came to be: the history file, over the replication protocol.

A line per fork: the timeline that was left, where, and why.
"""

from collections.abc import Iterator

import psycopg
import structlog

from towpath.relay.lineage import Fork
from towpath.relay.postgres.connect import Connection
from towpath.schemas.position import parse_lsn

_LOG = structlog.get_logger("towpath.relay")


def read_forks(connection: Connection, timeline: int) -> tuple[Fork, ...]:
    """
    Return the forks that led to a timeline, the oldest first.

    A history file that is gone tells nothing: then no fork is known.

    Args:
        connection: In replication mode.
        timeline: The one that the server writes.
    """
    if timeline == 1:
        return ()
    try:
        row = connection.execute(f"TIMELINE_HISTORY {timeline}".encode()).fetchone()
    except psycopg.DatabaseError as error:
        if connection.broken:
            raise
        _LOG.warning("the timeline's history cannot be read", reason=str(error))
        return ()
    if row is None:
        return ()
    content = row[1]
    text = content.decode() if isinstance(content, bytes) else str(content)
    return tuple(_forks(text))


def _forks(text: str) -> Iterator[Fork]:
    """Read a history file; comments begin with a number sign."""
    for line in text.splitlines():
        fields = line.partition("#")[0].split()
        if fields:
            yield Fork(int(fields[0]), parse_lsn(fields[1]))
