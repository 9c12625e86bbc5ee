"""The cache's guard in memory: what calls come to, whichever way they were made."""

import orjson

from towpath.sinks.targets.cache import schema, write
from towpath.sinks.targets.cache.schema import route_key_prefix

PREFIX = "é:1"


class GuardModel:
    """
    Rows by their names, as ``guard.lua`` would leave them.

    ``rows`` are a position and the fields, or ``None`` of a deleted row; ``counts``,
    how many were applied and how many were stale.
    """

    def __init__(self):
        self.rows = {}
        self.counts = [0, 0]

    def take(self, taken, route):
        """Apply what was taken of columns."""
        for call in write.calls(taken, route_key_prefix(PREFIX, route)):
            names = words(call.keys)
            assert call.row_count == len(names)
            self.apply_columns(names, call.columns)
        self.counts[1] += taken.below_floor

    def write(self, changes):
        """Apply changes, as the ordinary way calls for them."""
        for call in schema.calls(PREFIX, changes):
            self.apply(call.keys, call.rows)

    def apply_columns(self, names, told):
        """Carry out one call of whole rows."""
        fields, *columns = orjson.loads(told)
        assert (len(fields), "_position") == (len(columns), fields.pop())
        assert len(names) == len(set(names))
        rows = []
        for *texts, position in zip(*columns, strict=True):
            row = {n: v for n, v in zip(fields, texts, strict=True) if v is not None}
            pairs = [word for pair in row.items() for word in pair]
            rows.append((position, "f", pairs, ()))
        self.apply(names, orjson.dumps(rows))

    def apply(self, names, rows):
        """Carry out one call."""
        written = orjson.loads(rows)
        assert len(names) == len(written)
        for name, (position, mode, fields, nulls) in zip(names, written, strict=True):
            stored, row = self.rows.get(name, ("", None))
            if stored > position:
                self.counts[1] += 1
                continue
            if mode == "p" and row is None:
                continue
            told = dict(zip(fields[::2], fields[1::2], strict=True))
            assert len(fields) == 2 * len(told)
            if mode == "p":
                told = {n: v for n, v in row.items() if n not in nulls} | told
            self.rows[name] = position, None if mode == "x" else told
            self.counts[0] += 1


def words(packed):
    """Read words of the server's protocol."""
    found = []
    while packed:
        length, _, rest = packed.partition(b"\r\n")
        size = int(length.removeprefix(b"$"))
        found.append(rest[:size].decode())
        assert rest[size : size + 2] == b"\r\n"
        packed = rest[size + 2 :]
    return found
