"""The cache's guard in memory, for calls with rows and calls with columns."""

import orjson

from towpath.sinks.targets.cache import schema, write
from towpath.sinks.targets.cache.schema import route_key_prefix

PREFIX = "é:1"


class GuardModel:
    """
    Rows by their Redis keys, as ``guard.lua`` would write them.

    A row of ``rows`` is a position and the fields, or ``None`` if it is deleted;
    ``counts`` has the numbers of applied and of stale changes.
    """

    def __init__(self):
        self.rows = {}
        self.counts = [0, 0]

    def take(self, taken, route):
        """Apply rows that were taken from columns."""
        for call in write.calls(taken, route_key_prefix(PREFIX, route)):
            names = bulk_strings(call.keys)
            assert call.row_count == len(names)
            self.apply_columns(names, call.columns)
        self.counts[1] += taken.below_floor

    def write(self, changes):
        """Apply changes with calls that contain rows."""
        for call in schema.calls(PREFIX, changes):
            self.apply(call.keys, call.rows)

    def apply_columns(self, names, packed):
        """Apply one call of whole rows, in columns."""
        fields, *columns = orjson.loads(packed)
        assert (len(fields), "_position") == (len(columns), fields.pop())
        assert len(names) == len(set(names))
        rows = []
        for *texts, position in zip(*columns, strict=True):
            row = {n: v for n, v in zip(fields, texts, strict=True) if v is not None}
            pairs = [text for pair in row.items() for text in pair]
            rows.append((position, "f", pairs, ()))
        self.apply(names, orjson.dumps(rows))

    def apply(self, names, rows):
        """Apply one call of rows."""
        written = orjson.loads(rows)
        assert len(names) == len(written)
        for name, (position, mode, fields, nulls) in zip(names, written, strict=True):
            stored, row = self.rows.get(name, ("", None))
            if stored > position:
                self.counts[1] += 1
                continue
            if mode == "p" and row is None:
                continue
            values = dict(zip(fields[::2], fields[1::2], strict=True))
            assert len(fields) == 2 * len(values)
            if mode == "p":
                values = {n: v for n, v in row.items() if n not in nulls} | values
            self.rows[name] = position, None if mode == "x" else values
            self.counts[0] += 1


def bulk_strings(packed):
    """Parse bulk strings of the Redis protocol."""
    found = []
    while packed:
        length, _, rest = packed.partition(b"\r\n")
        size = int(length.removeprefix(b"$"))
        found.append(rest[:size].decode())
        assert rest[size : size + 2] == b"\r\n"
        packed = rest[size + 2 :]
    return found
