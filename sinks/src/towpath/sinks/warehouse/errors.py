"""
What can be wrong with a warehouse.

::

    TowpathError
    ├── UsageError
    │   └── WarehouseAddressError   a url or a name that the warehouse cannot use
    └── HaltError
        ├── ForeignTableError       a table exists whose columns do not fit
        ├── PartitionFieldError     a table cannot be split as it is configured
        └── ReservedColumnError     a column's name is taken by the warehouse
"""

from towpath.schemas.failure import HaltError, UsageError


class WarehouseAddressError(UsageError):
    """The catalog's url or a route's name is not what the warehouse needs."""

    remedy = (
        "Write url as postgresql://user@host:port/database, or http://host:port for a "
        "REST catalog; names as schema.table."
    )


class ForeignTableError(HaltError):
    """A table exists whose columns do not fit the source's, and cannot be widened."""

    remedy = "Drop the warehouse's table, then fill the sink again by a snapshot."


class PartitionFieldError(HaltError):
    """A table has no such column to be split by, or one of another type."""

    remedy = "Correct the sink's warehouse.partition in towpath.toml."


class ReservedColumnError(HaltError):
    """A column of the source has a name that the warehouse needs for itself."""

    remedy = "Rename the column in the source, or take its table out of the sink."
