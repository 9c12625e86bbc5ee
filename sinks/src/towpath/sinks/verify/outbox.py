"""
What an event log should hold: the events whose rows the outbox still has.

Rows of an outbox are deleted, often by the transaction that inserted them, and some
events never had one. So an event that only the log has tells nothing; one that only the
outbox has is missing.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from towpath.schemas.table_name import TableName
from towpath.settings import Route, Settings, Sink
from towpath.settings.outbox import EmptyPayload, Outbox
from towpath.settings.syntax import PlacedIn, parse_placement
from towpath.sinks.routes import Routes
from towpath.sinks.verify.errors import NoOutboxError
from towpath.sinks.verify.published import comparable
from towpath.sinks.verify.source import Source
from towpath.sinks.verify.table import (
    TEXT_IN_BYTES,
    UTC_TIMESTAMP,
    Limit,
    SourceColumn,
    SourceTable,
)

# What an event log keeps of an outbox row.
_PARTS: Final = (
    "id",
    "aggregate_type",
    "aggregate_id",
    "type",
    "payload",
    "occurred_at",
)
# Columns that an event carries in another form than rows of tables have.
_OTHER_FORMS: Final = {
    ("aggregate_id", "bytea"): TEXT_IN_BYTES,
    ("payload", "bytea"): TEXT_IN_BYTES,
    ("occurred_at", "timestamp without time zone"): UTC_TIMESTAMP,
}
_PRUNED: Final = (
    "only events whose rows the outbox still has are compared: what only the log has "
    "may have lost its row, or never had one"
)
_ENVELOPED: Final = (
    "not compared, payloads: relay.outbox.placements puts them into an envelope"
)


def outbox_table(
    route: Route, sink: Sink, settings: Settings, source: Source
) -> SourceTable:
    """
    Describe the outbox rows whose events a route reads.

    Raises:
        NoOutboxError: The outbox is not there, or lacks a column.
        IncomparableError: The ids of its events cannot be told apart.
        SourceUnavailableError: The database cannot be read.
    """
    outbox = settings.relay.outbox
    name = TableName.parse(outbox.table)
    if not source.has_table(name):
        message = f"there is no table {outbox.table} to compare a log of events with"
        raise NoOutboxError(message)
    table = source.table(name)
    own = {one.name: one for one in table.columns}
    columns = tuple(_columns(outbox, own))
    routed_by = outbox.route_by or outbox.columns.aggregate_type
    if lacking := ({one.name for one in columns} | {routed_by}) - own.keys():
        listed = ", ".join(sorted(lacking))
        message = f"the outbox {outbox.table} has no column {listed}"
        raise NoOutboxError(message)
    values = source.values_of(name, routed_by)
    events = SourceTable(
        *(name.schema, name.table, columns, (outbox.columns.id,)),
        is_partitioned=table.is_partitioned,
        only=Limit(routed_by, tuple(_read(route, sink, outbox, values))),
        is_pruned=True,
        notes=(_PRUNED, *([_ENVELOPED] if _is_enveloped(outbox) else [])),
    )
    return comparable(events)


def _columns(outbox: Outbox, own: Mapping[str, SourceColumn]) -> Iterator[SourceColumn]:
    is_entombed = outbox.on_empty_payload is EmptyPayload.TOMBSTONE
    for part in _PARTS:
        name = getattr(outbox.columns, part)
        if not name:
            continue
        column = own.get(name) or SourceColumn(name, "text")
        yield SourceColumn(
            name,
            _OTHER_FORMS.get((part, column.type), column.type),
            kept_as=part,
            has_plain_order=column.has_plain_order,
            is_compared=part != "payload" or not _is_enveloped(outbox),
            is_blank_null=part == "payload" and is_entombed,
        )


def _is_enveloped(outbox: Outbox) -> bool:
    placements = map(parse_placement, outbox.placements)
    return any(one.place is PlacedIn.ENVELOPE for one in placements)


def _read(route: Route, sink: Sink, outbox: Outbox, values: list[str]) -> Iterator[str]:
    """List the values that make the name of a topic which the route reads."""
    routes = Routes(sink)
    for value in values:
        reading = routes.reading(outbox.topic_of(value))
        if any(one.route is route for one in reading):
            yield value
