"""
The plain records of a batch, given to a sink as columns; what it leaves goes on.

Both ways go through the same guard, so their order does not matter; plain rows go
first, because a partial change may rest upon one of them. All records of a key go the
same way.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from towpath.sinks.batches import RECORDS
from towpath.sinks.columns import Columns, LaidRows, plain_columns
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
    return Left(_rest(records, taken), highest)


class _Laid(NamedTuple):
    """The rows that were laid out of a portion, for one route, and their positions."""

    route: str
    rows: pa.Table
    places: pa.Array
    highest: str


class Gathering:
    """
    Collects what is plain of a batch, portion by portion.

    Call order: ``add`` for each portion, then ``rows``, then ``left``.
    """

    def __init__(
        self,
        routes: Routes,
        apart: Collection[bytes],
        lay_out: Callable[[Columns], LaidRows | None],
    ) -> None:
        """
        Begin with nothing.

        Args:
            routes: What the records say.
            apart: Keys whose records are left, whatever they say.
            lay_out: Lays out what a sink can take of a route's plain records.
        """
        self._routes = routes
        self._apart = apart
        self._lay_out = lay_out
        self._portions: list[tuple[pa.Table, list[_Laid]]] = []
        self._schemas: dict[str, pa.Schema] = {}

    def add(self, portion: pa.Table) -> None:
        """
        Lay out the plain records of a portion.

        Raises:
            UnavailableError: The sink's target cannot be reached.
        """
        laid = []
        for columns in plain_columns(portion, self._routes, self._apart):
            found = self._lay_out(columns)
            if found is None or not len(found.rows):
                continue
            schema = self._schemas.setdefault(columns.route, found.rows.schema)
            # Their table has changed since the portion before.
            if schema == found.rows.schema:
                highest = pc.max(columns.positions).as_py()
                laid.append(_Laid(columns.route, found.rows, found.places, highest))
        self._portions.append((portion, laid))

    def rows(self) -> dict[str, pa.Table]:
        """Return the rows of each route; none of a key that is left elsewhere."""
        self._settle()
        found: dict[str, list[pa.Table]] = defaultdict(list)
        for _, laid in self._portions:
            for one in laid:
                found[one.route].append(one.rows)
        return {route: pa.concat_tables(rows) for route, rows in found.items()}

    def left(self) -> Left:
        """Return what is to be written record by record."""
        rests = self._rests()
        taken = [one.highest for _, laid in self._portions for one in laid]
        records = pa.concat_tables(rests) if rests else RECORDS.empty_table()
        return Left(records, max(taken, default=""))

    def _rests(self) -> list[pa.Table]:
        """Return the records of each portion of which nothing was laid out."""
        return [
            _rest(portion, [one.places for one in laid])
            for portion, laid in self._portions
        ]

    def _settle(self) -> None:
        """Let go of rows whose key has a record that was not laid out."""
        rests = self._rests()
        keys = pa.chunked_array(
            [chunk for rest in rests for chunk in rest.column("key").chunks],
            pa.binary(),
        )
        if not len(keys):
            return
        strange = keys.unique()
        for portion, laid in self._portions:
            own = portion.column("key")
            laid[:] = [_without(one, own, strange) for one in laid]


def _rest(records: pa.Table, taken: list[pa.Array]) -> pa.Table:
    """Return what stands at none of the places that were taken."""
    if not taken:
        return records
    # As a rule; then nothing is looked for.
    if sum(map(len, taken)) == len(records):
        return records.slice(0, 0)
    every = pa.array(range(len(records)), taken[0].type)
    return records.filter(pc.invert(pc.is_in(every, pa.concat_arrays(taken))))


def _without(laid: _Laid, keys: pa.ChunkedArray, strange: pa.Array) -> _Laid:
    stays = pc.invert(pc.is_in(keys.take(laid.places), strange)).combine_chunks()
    if pc.all(stays).as_py():
        return laid
    return laid._replace(rows=laid.rows.filter(stays), places=laid.places.filter(stays))
