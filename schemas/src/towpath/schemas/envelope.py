"""
The envelope: the value of a row change, in Debezium's format.

``{"before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns", "transaction"}``;
``source`` also contains ``commit_lsn``. Columns that the stream left out of an update
(unchanged TOAST) are absent from ``after``, or have the value of
``relay.rows.placeholder``, and are listed in the header ``unchanged``: absent is not
null.
"""

import enum
from typing import Final, TypeAlias

# A column's value: numbers and booleans as such, everything else as text.
Value: TypeAlias = str | int | float | bool | None


class Operation(enum.StrEnum):
    """The kind of a change, as Debezium's letter for it."""

    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    READ = "r"
    TRUNCATE = "t"


CONNECTOR: Final = "postgresql"
SOURCE_VERSION: Final = "0.1.0"
# Values of ``source.snapshot``.
STREAMED: Final = "false"
INCREMENTAL: Final = "incremental"
