"""
Why a sink cannot be verified.

::

    TowpathError
    ├── UnavailableError
    │   ├── SourceUnavailableError   the database cannot be read
    │   └── NotAtRestError           changes are still on their way
    └── UsageError
        └── UnroutedTableError       a route reads no table or view that is declared
"""

from towpath.schemas.failure import UnavailableError, UsageError


class SourceUnavailableError(UnavailableError):
    """The source's database cannot be read."""

    remedy = "Start the database, or correct source.dsn in towpath.toml."


class NotAtRestError(UnavailableError):
    """What was committed does not reach the sink: a comparison would prove nothing."""

    remedy = "See that relay and sink run and get on, and verify again."


class UnroutedTableError(UsageError):
    """A route reads a topic that no listed table and no declared view has."""

    remedy = "List the table in source.tables, or the view in relay.outbox.view."
