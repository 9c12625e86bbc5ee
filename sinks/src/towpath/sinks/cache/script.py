"""
Rows as the guard takes them: JSON by the row, calls by count and size.

Hot path, once per row. Values are text, because Lua would turn integers into doubles;
one JSON text per call costs a fraction of what a thousand arguments do.
"""

from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Final, NamedTuple

import orjson

from towpath.sinks.cache.place import route_place
from towpath.sinks.change import Change
from towpath.sinks.key_text import key_text
from towpath.sinks.values import text_of

FUNCTION: Final = "towpath_apply"
SWEEP_FUNCTION: Final = "towpath_sweep"

# One call blocks the server while it runs: some 5 ms at this size. Fewer rows per call
# cost a round trip each; more make every other client wait longer.
ROWS_PER_CALL: Final = 500

# A call of wide rows is cut here, far below the server's limit of 512 MB per argument.
BYTES_PER_CALL: Final = 4 * 1024 * 1024


class Call(NamedTuple):
    """One call of the guard: as many keys as rows, and the changes they came from."""

    keys: list[str]
    rows: bytes
    changes: list[Change]


def library() -> str:
    """Return the guard's source, as the server loads it."""
    return files("towpath.sinks.cache").joinpath("guard.lua").read_text("utf-8")


def calls(prefix: str, changes: Iterable[Change]) -> Iterator[Call]:
    """Cut changes into calls."""
    places: dict[str, str] = {}
    keys: list[str] = []
    rows: list[bytes] = []
    taken: list[Change] = []
    size_bytes = 0
    for change in changes:
        route = change.route
        if route not in places:
            places[route] = route_place(prefix, route)
        row = _row(change)
        if keys and (
            len(keys) == ROWS_PER_CALL or size_bytes + len(row) > BYTES_PER_CALL
        ):
            yield Call(keys, b"[" + b",".join(rows) + b"]", taken)
            keys, rows, taken, size_bytes = [], [], [], 0
        keys.append(places[route] + key_text(change.key))
        rows.append(row)
        taken.append(change)
        size_bytes += len(row)
    if keys:
        yield Call(keys, b"[" + b",".join(rows) + b"]", taken)


def _row(change: Change) -> bytes:
    if change.row is None:
        return orjson.dumps((change.position, "x", ("_x", "1"), ()))
    fields: list[str] = []
    nulls: list[str] = []
    for name, value in change.row.items():
        if value is None:
            nulls.append(name)
        else:
            fields.append(name)
            fields.append(value if type(value) is str else text_of(value))
    mode = "p" if change.unchanged else "f"
    return orjson.dumps((change.position, mode, fields, nulls))
