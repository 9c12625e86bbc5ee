"""
Where a row stands in Redis: ``<prefix>:<route>:<key>``.

Each part is written so that a colon in it does not look like a joint: no two rows share
a name, and no route's rows look like another's. A name has the same form on a cluster;
whatever slot it has, calls are cut so that each touches keys of one slot.
"""

import re
from functools import cache
from typing import Final

from redis.crc import key_slot

from towpath.sinks.key_text import key_text

_GLOB: Final = re.compile(r"([*?\[\]\\])")

POSITION_FIELD: Final = "_position"
TOMBSTONE_FIELD: Final = "_x"

SLOTS: Final = 16_384

# On a cluster a witness stands in every 256th slot, so that each server has some, and
# they move with their slots. More would cost a call each per batch.
_WITNESS_STEP: Final = 256


def floors_place(prefix: str) -> str:
    """Return the name of the hash that remembers floors; no row's looks like it."""
    return f"{key_text((prefix,))}:_floors"


def witness_places(prefix: str, sink: str, *, is_cluster: bool) -> tuple[str, ...]:
    """Return the names of a sink's witnesses; no row's looks like one (``losses``)."""
    place = f"{key_text((prefix,))}:_witness.{sink}"
    if not is_cluster:
        return (place,)
    return tuple(f"{place}.{{{tag}}}" for tag in _tags())


def route_place(prefix: str, route: str) -> str:
    """Return what the names of all rows of a route begin with."""
    return f"{key_text((prefix,))}:{key_text((route,))}:"


def scan_pattern(prefix: str, route: str) -> str:
    """Return the glob that finds all rows of a route, and nothing else."""
    return _GLOB.sub(r"\\\1", route_place(prefix, route)) + "*"


def slot_of(place: str) -> int:
    """Return the slot of a name on a cluster."""
    return key_slot(place.encode())


@cache
def _tags() -> tuple[str, ...]:
    """Find a short text for each slot that a witness stands in."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < SLOTS // _WITNESS_STEP:
        slot = slot_of(str(number))
        if slot % _WITNESS_STEP == 0:
            found.setdefault(slot, str(number))
        number += 1
    return tuple(found[slot] for slot in sorted(found))
