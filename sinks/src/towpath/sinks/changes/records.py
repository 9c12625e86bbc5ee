"""
Kafka's records as Arrow tables, and as values.

Every batch is a table of ``RECORDS``, in the driver and on executors. Records that need
Python values are converted at once: column by column, not row by row. Pure.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from towpath.sinks.change import Origin, Record

# The columns of a table of records.
RECORDS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        (
            "headers",
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    ]
)

# Bounds the records held as Python objects at once.
RECORDS_AT_ONCE: Final = 125_000


def records_of(table: pa.Table) -> list[Record]:
    """
    Convert Kafka's columns into records.

    The last value of a repeated header counts.
    """
    table = table.combine_chunks()
    if not len(table):
        return []
    headers = _headers(table.column("headers"))
    columns = (
        table.column(name).to_pylist()
        for name in ("topic", "partition", "offset", "key", "value")
    )
    return [
        Record(Origin(topic, partition, offset), key, value, given)
        for topic, partition, offset, key, value, given in zip(
            *columns, headers, strict=True
        )
    ]


def _headers(column: pa.ChunkedArray) -> list[dict[str, bytes]]:
    """Read all headers in three passes over flat columns, not row by row."""
    array = pa.concat_arrays(column.chunks)
    flat = array.flatten()
    names = flat.field("key").to_pylist()
    values = flat.field("value").to_pylist()
    rows = []
    end = 0
    for length in pc.list_value_length(array).to_pylist():
        begin, end = end, end + (length or 0)
        rows.append(
            {
                name: value
                for name, value in zip(names[begin:end], values[begin:end], strict=True)
                if value is not None
            }
        )
    return rows
