"""
Rows as the guard takes them: JSON by the row, calls by count, size and slot.

Hot path, once per row. Values are text, because Lua would turn integers into doubles;
one JSON text per call costs a fraction of what a thousand arguments do.

The guard's names on the server carry a digest of its source: two sinks of different
releases each load their own, and neither replaces the other's.
"""

import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

import orjson

from towpath.sinks.cache.place import route_place, slot_of
from towpath.sinks.change import Change
from towpath.sinks.key_text import key_text
from towpath.sinks.values import text_of

# One call blocks the server while it runs: 1-2 ms at this size. Calls are on their way
# while others run, so more rows per call gain nothing; and five times as many cost the
# server a third more per row, because it keeps what it will write to its file until the
# call ends (measured).
ROWS_PER_CALL: Final = 100

# A call of wide rows is cut here, far below the server's limit of 512 MB per argument.
BYTES_PER_CALL: Final = 4 * 1024 * 1024

# On a cluster this many rows are put in order by slot at once. More would find a few
# more rows per slot, and take memory.
_ROWS_PER_ORDERING: Final = 20_000


class Call(NamedTuple):
    """One call of the guard: as many keys as rows, and the changes they came from."""

    keys: list[str]
    rows: bytes
    changes: list[Change]


class Library(NamedTuple):
    """The guard as the server loads it, and its functions' names there."""

    source: str
    apply: str
    apply_columns: str
    sweep: str
    witness: str


class _Laid(NamedTuple):
    place: str
    row: bytes
    change: Change


@cache
def library() -> Library:
    """Return the guard."""
    source = files("towpath.sinks.cache").joinpath("guard.lua").read_text("utf-8")
    digest = hashlib.sha256(source.encode()).hexdigest()[:8]
    named = source.replace("towpath_", f"towpath_{digest}_")
    named = named.replace("name=towpath\n", f"name=towpath_{digest}\n", 1)
    functions = Library._fields[1:]
    return Library(named, *(f"towpath_{digest}_{what}" for what in functions))


def calls(
    prefix: str, changes: Iterable[Change], *, by_slot: bool = False
) -> Iterator[Call]:
    """Cut changes into calls; ``by_slot``, each touches keys of one slot."""
    laid = _lay_out(prefix, changes)
    if not by_slot:
        yield from _cut(laid)
        return
    for some in _portions(laid):
        by: dict[int, list[_Laid]] = {}
        for one in some:
            by.setdefault(slot_of(one.place), []).append(one)
        for group in by.values():
            yield from _cut(group)


def _portions(laid: Iterable[_Laid]) -> Iterator[list[_Laid]]:
    """Take rows together up to a count and a size."""
    taken: list[_Laid] = []
    size_bytes = 0
    for one in laid:
        taken.append(one)
        size_bytes += len(one.row)
        if len(taken) == _ROWS_PER_ORDERING or size_bytes > 4 * BYTES_PER_CALL:
            yield taken
            taken, size_bytes = [], 0
    yield taken


def _lay_out(prefix: str, changes: Iterable[Change]) -> Iterator[_Laid]:
    places: dict[str, str] = {}
    for change in changes:
        route = change.route
        if route not in places:
            places[route] = route_place(prefix, route)
        yield _Laid(places[route] + key_text(change.key), _row(change), change)


def _cut(laid: Iterable[_Laid]) -> Iterator[Call]:
    keys: list[str] = []
    rows: list[bytes] = []
    taken: list[Change] = []
    size_bytes = 0
    for place, row, change in laid:
        if keys and (
            len(keys) == ROWS_PER_CALL or size_bytes + len(row) > BYTES_PER_CALL
        ):
            yield Call(keys, b"[" + b",".join(rows) + b"]", taken)
            keys, rows, taken, size_bytes = [], [], [], 0
        keys.append(place)
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
