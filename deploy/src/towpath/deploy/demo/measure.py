"""Facts that the demo asks the source for, by SQL."""

from typing import Any, Final

import psycopg

from towpath.deploy.errors import SourceUnreachableError
from towpath.sinks.source_session import connected

# Orders inside the snapshot's key range whose row changed while it ran: by the clocks
# of the service and the relay, which are one machine's.
_CHANGED: Final = """
select count(*)
from towpath.snapshot s
join shop.orders o
  on o.id <= (s.maximum_key ->> 0)::bigint
 and o.updated_at between s.started_at and coalesce(s.completed_at, now())
where s.snapshot_id = %s and s.collection = %s
"""
_END_OF_LOG: Final = "select pg_current_wal_lsn()::text"
_CONFIRMED: Final = """
select confirmed_flush_lsn >= %s::pg_lsn
from pg_replication_slots where slot_name = %s
"""


def count_changed(dsn: str, snapshot_id: str, collection: str) -> int:
    """Count the orders in a snapshot's key range that changed while it ran."""
    return int(_value(dsn, _CHANGED, snapshot_id, collection))


def count_orders(dsn: str) -> int:
    """Count the orders of the shop."""
    return int(_value(dsn, "select count(*) from shop.orders"))


def end_of_log(dsn: str) -> str:
    """Return the LSN behind everything that is committed."""
    return str(_value(dsn, _END_OF_LOG))


def has_confirmed(dsn: str, slot: str, lsn: str) -> bool:
    """Tell whether the slot's confirmed position has reached an LSN."""
    return bool(_value(dsn, _CONFIRMED, lsn, slot))


def _value(dsn: str, query: str, *arguments: object) -> Any:  # noqa: ANN401 - any column
    try:
        with connected(dsn) as connection:
            row = connection.execute(query, arguments).fetchone()
    except psycopg.OperationalError as error:
        message = f"the source does not answer: {str(error).strip()}"
        raise SourceUnreachableError(message) from error
    return row[0] if row else None
