"""
Why a sink cannot be verified.

::

    TowpathError
    ├── UnavailableError
    │   ├── SourceUnavailableError   the database cannot be read
    │   ├── IncomparableError        the rows of a table cannot be told apart
    │   ├── NoOutboxError            there is no outbox to compare a log of events with
    │   ├── UnfitViewError           a view does not give what documents are made of
    │   └── NotAtRestError           changes are still on their way
    └── UsageError
        └── UnroutedTableError       a route reads no table or view that is declared
"""

from towpath.schemas.failure import UnavailableError, UsageError


class SourceUnavailableError(UnavailableError):
    """The source's database cannot be read."""

    remedy = "Start the database, or correct source.dsn in towpath.toml."


class IncomparableError(UnavailableError):
    """The rows of a table cannot be told apart by what is published of them."""

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
    """A view gives no aggregates that documents could be compared with."""

    remedy = (
        "Have the view give the columns aggregate_id, type and payload, and each "
        "payload as JSON."
    )


class NotAtRestError(UnavailableError):
    """What was committed does not reach the sink: a comparison would prove nothing."""

    remedy = "See that relay and sink run and get on, and verify again."


class UnroutedTableError(UsageError):
    """A route reads a topic that no listed table and no declared view has."""

    remedy = "List the table in source.tables, or the view in relay.outbox.view."
