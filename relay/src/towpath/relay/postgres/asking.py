"""
Signals that the relay leaves for itself: inserted as anybody's are, and read as theirs.

They come back through the log, so that what they start stands in the stream's order and
is answered, stored and resumed like anything that was asked for.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from towpath.relay.first_start import SELECT_SUFFIX
from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.queries import query
from towpath.schemas.table_name import TableName


def ask(
    connection: Connection,
    signal_id: str,
    tables: Sequence[str],
    selects: Mapping[str, str],
    *,
    relay: str,
    sweeps: bool = False,
) -> None:
    """
    Ask for tables, once: a signal that is there is left as it is.

    Args:
        connection: Where to; call it inside a transaction.
        signal_id: Of the tables that are read whole.
        tables: As ``schema.table``.
        selects: What some of them are read by; they have a signal of their own.
        relay: The relay that is to read them.
        sweeps: Let sinks delete what the source has no more.
    """
    whole = [table for table in tables if table not in selects]
    if whole:
        sweep: dict[str, Any] = {"sweep": True} if sweeps else {}
        wishes = {"type": "incremental", **sweep}
        _insert(connection, signal_id, relay, whole, wishes)
    chosen = [table for table in tables if table in selects]
    if chosen:
        conditions = [
            {"data-collection": entry_of(table), "filter": selects[table]}
            for table in chosen
        ]
        wishes = {"type": "blocking", "additional-conditions": conditions}
        _insert(connection, signal_id + SELECT_SUFFIX, relay, chosen, wishes)


def entry_of(table: str) -> str:
    """Name a table as a signal does: quoted, if it would read as an expression."""
    return TableName.parse(table).entry


def _insert(
    connection: Connection,
    signal_id: str,
    relay: str,
    tables: Sequence[str],
    more: Mapping[str, Any],
) -> None:
    data = {"data-collections": [entry_of(table) for table in tables], **more}
    signal = {"id": signal_id, "data": json.dumps(data), "relay": relay}
    connection.execute(query("ask_for_snapshot"), signal)
