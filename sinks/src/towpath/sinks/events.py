"""
Events of the outbox, as a log keeps them and as the state of their aggregates.

An event of an aggregate is a whole row: its payload is the document, its key the
aggregate's id. A deleting event, and one without a value, deletes the document; an
event of a type that does not carry the state says nothing.

Hot path, once per record.
"""

from typing import Final

import orjson

from towpath.schemas import headers as names
from towpath.settings import Route
from towpath.sinks.change import ALL_PRESENT, Change, EventRow, Record
from towpath.sinks.record import (
    RESERVED_COLUMNS,
    object_in,
    position_in,
    refuse,
    text_in,
)

_EVENT_COLUMNS: Final = frozenset(
    {
        names.EVENT_ID,
        names.EVENT_TYPE,
        names.AGGREGATE_TYPE,
        names.OCCURRED_AT,
        names.POSITION,
    }
)


def logged_event(record: Record, route: Route) -> EventRow:
    """Read an event as a log keeps it."""
    headers = record.headers
    others = {
        name: value.decode("utf-8", "replace")
        for name, value in headers.items()
        if name not in _EVENT_COLUMNS
    }
    return EventRow(
        route.name,
        text_in(headers.get(names.EVENT_ID), "header id"),
        text_in(headers.get(names.AGGREGATE_TYPE), "header aggregate_type"),
        text_in(record.key, "key"),
        text_in(headers.get(names.EVENT_TYPE), "header type"),
        None if record.value is None else text_in(record.value, "value"),
        orjson.dumps(others).decode(),
        position_in(headers),
        text_in(headers.get(names.OCCURRED_AT), "header occurred_at"),
        record.origin,
    )


def aggregate_change(record: Record, route: Route) -> Change | None:
    """Read an event as a change of its aggregate; ``None`` if it says no state."""
    headers, text = record.headers, record.value
    # A missing value may be all that is left of a delete: it need not have a type.
    is_typed = text is not None or names.EVENT_TYPE in headers
    if is_typed and (route.state_types or route.delete_types):
        kind = text_in(headers.get(names.EVENT_TYPE), "header type")
        if kind in route.delete_types:
            text = None
        elif route.state_types and kind not in route.state_types:
            return None
    row = None if text is None else object_in(text, "value")
    if row is not None and not RESERVED_COLUMNS.isdisjoint(row):
        refuse("the document has a field whose name sinks keep for themselves")
    return Change(
        route.name,
        (text_in(record.key, "key"),),
        (),
        position_in(headers),
        row,
        ALL_PRESENT,
        names.SNAPSHOT in headers,
        record.origin,
        text,
    )
