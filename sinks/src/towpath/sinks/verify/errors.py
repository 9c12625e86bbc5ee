"""
Errors of verifying a sink.

::

    TowpathError
    ├── UnavailableError
    │   ├── IncomparableError        the rows of a table cannot be distinguished
    │   ├── NoOutboxError            no outbox exists to compare an event log with
    │   ├── UnfitViewError           a view lacks the contents of documents
    │   └── NotAtRestError           changes are still in flight
    └── UsageError
        └── UnroutedTableError       a route reads no declared table or view
"""

from towpath.schemas.failure import UnavailableError, UsageError


class IncomparableError(UnavailableError):
    """The rows of a table cannot be distinguished by their published columns."""

    remedy = (
        "Give the table a primary key of single values, or name in "
        "relay.rows.key_columns those of a unique index that are all NOT NULL."
    )


class NoOutboxError(UnavailableError):
    """An event log has no outbox to be compared with, or one without its columns."""

    remedy = (
        "Correct relay.outbox.table and relay.outbox.columns; a log of events that "
        "never had a row cannot be verified: name the other routes."
    )


class UnfitViewError(UnavailableError):
    """A view returns no aggregates to compare documents with."""

    remedy = (
        "Have the view give the columns aggregate_id, type and payload, and each "
        "payload as JSON."
    )


class NotAtRestError(UnavailableError):
    """Commits do not reach the sink: a comparison would prove nothing."""

    remedy = "See that relay and sink run and get on, and verify again."


class UnroutedTableError(UsageError):
    """A route reads a topic of no listed table and no declared view."""

    remedy = "List the table in source.tables, or the view in relay.outbox.view."
