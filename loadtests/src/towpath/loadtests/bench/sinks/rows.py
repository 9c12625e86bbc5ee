"""The backlog's rows as the targets get them without a sink: same columns, same ids."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

COLUMNS: Final = ("id", "version", "amount", "state", "changed_at", "note")
POSITION: Final = "_position"

# As long as any position; rows that were read together share one.
A_POSITION: Final = f"{0:016x}.-"

Item = TypeVar("Item")


def pieces(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Cut items into lists of a size; the last may be shorter."""
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece
