"""Records as the columns that a batch comes in."""

import pyarrow as pa

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": HEADERS,
    }
)


def table_of(records):
    """Lay records out in the order given."""
    rows = [
        {
            **record.origin._asdict(),
            "key": record.key,
            "value": record.value,
            "headers": [{"key": n, "value": v} for n, v in record.headers.items()],
        }
        for record in records
    ]
    return pa.Table.from_pylist(rows, SCHEMA)
