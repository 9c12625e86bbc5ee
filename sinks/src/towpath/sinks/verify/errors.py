"""
Errors of verifying a sink.

::

    TowpathError
    ├── UnavailableError
    │   ├── IncomparableError        rows cannot be distinguished or filtered
    │   ├── NoOutboxError            an event log has no outbox table to compare with
    │   ├── UnfitViewError           a view cannot be compared with documents
    │   └── NotAtRestError           changes are still in flight
    └── UsageError
        └── UnroutedTableError       a route reads no declared table or view
"""

from towpath.schemas.failure import UnavailableError, UsageError


class IncomparableError(UnavailableError):
    """Rows cannot be distinguished, or filtered, by the columns that are compared."""

    remedy = (
        "Give the table a primary key of scalar columns, or set "
        "relay.rows.key_columns to the columns of a unique index, all NOT NULL; a "
        "route that filters by a masked column cannot be verified."
    )


class NoOutboxError(UnavailableError):
    """The outbox table of an event log does not exist, or lacks a column."""

    remedy = (
        "Correct relay.outbox.table and relay.outbox.columns; if the events never have "
        "outbox rows, their log cannot be verified: name the other routes."
    )


class UnfitViewError(UnavailableError):
    """A view lacks a column, or returns a payload that is not JSON."""

    remedy = (
        "Change the view to return the columns aggregate_id, type and payload, with "
        "each payload as JSON."
    )


class NotAtRestError(UnavailableError):
    """Commits do not reach the sink: a comparison would prove nothing."""

    remedy = (
        "Check that the relay and the sink run and make progress, then verify again."
    )


class UnroutedTableError(UsageError):
    """A route reads a topic that belongs to no listed table or declared view."""

    remedy = "List the table in source.tables, or the view in relay.outbox.view."
