"""Rows with the columns of a Kafka source, as the engine passes them to a batch."""

import orjson
import pyarrow as pa

from towpath.sinks.changes.decode import RECORDS
from towpath.sinks.engine.query import BatchRows

TOPIC = "towpath.shop.orders"
BACKFILL = f"{TOPIC}.backfill.cache"
COLUMNS = tuple(RECORDS.names)


def row(offset, operation, *, order=7, topic=TOPIC, unchanged=None, **after):
    """Make one row with the columns of a Kafka source."""
    image = None if operation == "d" else {"order_id": order, **after}
    value = orjson.dumps({"op": operation, "after": image})
    headers = [("position", f"{offset * 8:016x}.0000000000".encode())]
    if unchanged:
        headers.append(("unchanged", orjson.dumps(unchanged)))
    return (topic, 0, offset, orjson.dumps({"order_id": order}), value, headers)


def table(*rows):
    """Make the table that the engine passes to a batch."""
    listed = [
        (*row[:-1], [{"key": name, "value": text} for name, text in row[-1]])
        for row in rows
    ]
    named = [dict(zip(COLUMNS, one, strict=True)) for one in listed]
    return pa.Table.from_pylist(named, RECORDS)


def batch_of(read, count, tasks=None, check=lambda: None):
    """Make a batch of ``count`` records from a function that reads them."""
    return BatchRows(read=read, most=count, tasks=tasks, check=check)


def rows_of(rows, tasks=None, slice_=100):
    """Make a batch as the driver reads it, in slices of a given number of records."""

    def read():
        for begin in range(0, len(rows), slice_):
            yield table(*rows[begin : begin + slice_])

    return batch_of(read, len(rows), tasks)


def history(rng, unreadable=0.01):
    """Make the records of two topics, each in its own order."""
    notes = {}
    streamed, read = [], []
    for offset in range(1, rng.randint(5, 40)):
        order = rng.randint(1, 5)
        kind = rng.choice("cudpr" if order in notes else "cc")
        after = {"v": offset}
        if kind in "cu":
            notes[order] = str(offset)
        if kind in "cur":
            after["note"] = notes[order]
        if kind == "d":
            del notes[order]
        if rng.random() < unreadable:
            kind = "z"
        missing = ["note"] if kind == "p" else None
        operation = "u" if kind == "p" else kind
        topic = BACKFILL if kind == "r" else TOPIC
        made = row(
            offset, operation, order=order, topic=topic, unchanged=missing, **after
        )
        (read if kind == "r" else streamed).append(made)
    return _merged(rng, streamed, read)


def _merged(rng, *topics):
    remaining = [list(topic) for topic in topics if topic]
    merged = []
    while remaining:
        topic = rng.choice(remaining)
        merged.append(topic.pop(0))
        remaining = [one for one in remaining if one]
    return merged
