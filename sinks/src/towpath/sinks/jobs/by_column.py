"""
The plain records of a batch, given to a sink as columns; what it leaves goes on.

Both ways go through the same guard, so their order does not matter; plain rows go
first, because a partial change may rest upon one of them.
"""

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from towpath.sinks.columns import Columns, plain_columns
from towpath.sinks.routes import Routes

# Below, records cost less one by one than what is saved is worth.
LEAST_RECORDS: Final = 2_000


class Left(NamedTuple):
    """
    What a sink has left of a batch that it was given as columns.

    Attributes:
        records: What is to be written record by record.
        position: The highest position of what was taken; empty if nothing was.
    """

    records: pa.Table
    position: str = ""


def after_columns(
    records: pa.Table,
    routes: Routes,
    apart: Collection[bytes],
    take: Callable[[Columns], pa.Array | None],
) -> Left:
    """
    Give a sink what is plain of a batch.

    Args:
        records: The batch, or a part of it.
        routes: What its records say.
        apart: Keys whose records are left, whatever they say.
        take: Takes what it can of a route's plain records; tells where they stand.

    Raises:
        BatchRefusedError: The target refuses a row and does not say which.
    """
    if len(records) < LEAST_RECORDS:
        return Left(records)
    taken: list[pa.Array] = []
    highest = ""
    for columns in plain_columns(records, routes, apart):
        places = take(columns)
        if places is not None:
            taken.append(places)
            highest = max(highest, pc.max(columns.positions).as_py())
    if not taken:
        return Left(records)
    every = pa.array(range(len(records)), taken[0].type)
    is_taken = pc.is_in(every, pa.concat_arrays(taken))
    return Left(records.filter(pc.invert(is_taken)), highest)
