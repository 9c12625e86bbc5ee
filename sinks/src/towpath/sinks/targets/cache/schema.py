"""
The keys and rows of Redis, and the guard's calls that write them.

A row's key is ``<prefix>:<route>:<key>``. Each part is escaped so that no colon in it
looks like a separator: no two rows share a key, and no two routes share a key prefix.
Keys have the same form on a cluster; there, all keys of a call are in the same slot.

The guard takes rows as JSON, in calls bounded by count, size and slot. Values are text,
because Lua would turn integers into doubles; one JSON text per call costs a fraction of
what a thousand arguments would. Hot path, once per row.

The guard's names on the server carry a digest of its source: two sinks of different
releases each load their own, and neither replaces the other's.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

import orjson
from redis.crc import key_slot

from towpath.sinks.change import Change
from towpath.sinks.key_text import key_text, text_of

_GLOB: Final = re.compile(r"([*?\[\]\\])")
# The characters that only the keys of other programs contain, and their text forms: a
# byte that is not UTF-8, as the client decodes it, and a percent sign that ``key_text``
# would not write.
_FOREIGN_CHARACTER: Final = re.compile(r"[\udc80-\udcff]|%(?!25|3A|00)")
_FOREIGN_TEXT: Final = re.compile(r"%(%|[89A-F][0-9A-F])")
_FIRST_STRAY: Final = 0xDC00

POSITION_FIELD: Final = "_position"
TOMBSTONE_FIELD: Final = "_x"

SLOTS: Final = 16_384

# On a cluster there is a witness in every 256th slot, so that each server has some, and
# they move with their slots. Each further witness would cost a call per batch.
_WITNESS_STEP: Final = 256


def floors_key(prefix: str) -> str:
    """Return the key of the hash of floors; no row has this key."""
    return f"{key_text((prefix,))}:_floors"


def slot_keys(prefix: str) -> dict[int, str]:
    """Return a key for each slot; none of them is ever written."""
    base = f"{key_text((prefix,))}:_slot"
    return {slot: f"{base}.{{{tag}}}" for slot, tag in _tags(1).items()}


def witness_keys(prefix: str, sink: str, *, is_cluster: bool) -> tuple[str, ...]:
    """Return the keys of a sink's witnesses; no row has these keys (``losses``)."""
    base = f"{key_text((prefix,))}:_witness.{sink}"
    if not is_cluster:
        return (base,)
    return tuple(f"{base}.{{{tag}}}" for tag in _tags(_WITNESS_STEP).values())


def route_key_prefix(prefix: str, route: str) -> str:
    """Return the prefix of the keys of all rows of a route."""
    return f"{key_text((prefix,))}:{key_text((route,))}:"


def scan_pattern(prefix: str, route: str) -> str:
    """Return the glob that matches all keys of a route, and no others."""
    return _GLOB.sub(r"\\\1", route_key_prefix(prefix, route)) + "*"


def text_of_name(name: str) -> str:
    """
    Return the name of a row as text; no two names have the same text.

    A name that the sink wrote is its own text. In a name of another program, a byte
    that is not UTF-8 is written in hex, such as ``%FF``, and a percent sign as ``%%``,
    unless it begins ``%25``, ``%3A`` or ``%00``.
    """
    return _FOREIGN_CHARACTER.sub(_text_of_character, name)


def name_of(text: str) -> str:
    """Return the name of a row, given its text from ``text_of_name``."""
    return _FOREIGN_TEXT.sub(_character_of_text, text)


def _text_of_character(found: re.Match[str]) -> str:
    character = found[0]
    return "%%" if character == "%" else f"%{ord(character) - _FIRST_STRAY:02X}"


def _character_of_text(found: re.Match[str]) -> str:
    code = found[1]
    return "%" if code == "%" else chr(_FIRST_STRAY + int(code, 16))


def slot_of(key: str) -> int:
    """Return the slot of a key on a cluster."""
    # A scan may also return another program's key, which need not be valid UTF-8.
    return key_slot(key.encode(errors="surrogateescape"))


@cache
def _tags(step: int) -> dict[int, str]:
    """Return a short hash tag for every ``step``-th slot, in the order of the slots."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < SLOTS // step:
        slot = slot_of(str(number))
        if slot % step == 0:
            found.setdefault(slot, str(number))
        number += 1
    return dict(sorted(found.items()))


# A call blocks the server while it runs: 1-2 ms at this size. The next calls are in
# flight meanwhile, so more rows per call would gain nothing; and five times as many
# cost the server a third more per row, because it buffers its writes to the file until
# the call ends (measured).
ROWS_PER_CALL: Final = 100

# The size of a call of wide rows, far below the server's limit of 512 MB per argument.
BYTES_PER_CALL: Final = 4 * 1024 * 1024

# On a cluster, rows are grouped by slot this many at a time. Taking more would use more
# memory, but add few rows to each slot.
_ROWS_PER_GROUPING: Final = 20_000


class Call(NamedTuple):
    """One call to the guard: the keys, the rows, and the changes that they encode."""

    keys: list[str]
    rows: bytes
    changes: list[Change]


class Library(NamedTuple):
    """The guard's source as the server loads it, and the names of its functions."""

    source: str
    apply: str
    apply_columns: str
    sweep: str
    witness: str


class _CacheRow(NamedTuple):
    key: str
    row: bytes
    change: Change


@cache
def library() -> Library:
    """Return the guard, with the digest of its source in its names."""
    text = files("towpath.sinks.targets.cache").joinpath("guard.lua")
    source = text.read_text("utf-8")
    digest = hashlib.sha256(source.encode()).hexdigest()[:8]
    named = source.replace("towpath_", f"towpath_{digest}_")
    named = named.replace("name=towpath\n", f"name=towpath_{digest}\n", 1)
    functions = Library._fields[1:]
    return Library(named, *(f"towpath_{digest}_{what}" for what in functions))


def calls(
    prefix: str, changes: Iterable[Change], *, by_slot: bool = False
) -> Iterator[Call]:
    """Cut changes into calls; with ``by_slot``, all keys of a call are in one slot."""
    encoded = _encoded(prefix, changes)
    if not by_slot:
        yield from _cut(encoded)
        return
    for rows in _slices(encoded):
        groups: dict[int, list[_CacheRow]] = {}
        for row in rows:
            groups.setdefault(slot_of(row.key), []).append(row)
        for group in groups.values():
            yield from _cut(group)


def _slices(encoded: Iterable[_CacheRow]) -> Iterator[list[_CacheRow]]:
    """Cut rows into slices of bounded count and size."""
    taken: list[_CacheRow] = []
    size_bytes = 0
    for one in encoded:
        taken.append(one)
        size_bytes += len(one.row)
        if len(taken) == _ROWS_PER_GROUPING or size_bytes > 4 * BYTES_PER_CALL:
            yield taken
            taken, size_bytes = [], 0
    yield taken


def _encoded(prefix: str, changes: Iterable[Change]) -> Iterator[_CacheRow]:
    prefixes: dict[str, str] = {}
    for change in changes:
        route = change.route
        if route not in prefixes:
            prefixes[route] = route_key_prefix(prefix, route)
        yield _CacheRow(prefixes[route] + key_text(change.key), _row(change), change)


def _cut(encoded: Iterable[_CacheRow]) -> Iterator[Call]:
    keys: list[str] = []
    rows: list[bytes] = []
    taken: list[Change] = []
    size_bytes = 0
    for key, row, change in encoded:
        if keys and (
            len(keys) == ROWS_PER_CALL or size_bytes + len(row) > BYTES_PER_CALL
        ):
            yield Call(keys, b"[" + b",".join(rows) + b"]", taken)
            keys, rows, taken, size_bytes = [], [], [], 0
        keys.append(key)
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
