"""
All keys of a table, as hashes: what is not among them can be appended unseen.

Exact where it counts: a key that is missing here is missing in the table, as long as
all that was ever written to the table was learnt. Two keys that share a hash cost a
search that was not needed, and no more.
"""

import pyarrow as pa
import pyarrow.compute as pc

from towpath.sinks.warehouse.tables import LakeTable

# Chunks are put together now and then, because each is looked through on its own.
_MOST_CHUNKS = 64


def key_hashes(table: LakeTable, rows: pa.Table) -> pa.Array:
    """
    Return the hashes of the rows' keys; they are this process's own.

    Values count as the table holds them: two texts may be one number there. A whole
    number is its own.
    """
    first = rows.column(table.key[0])
    if len(table.key) == 1 and pa.types.is_integer(first.type):
        return first.cast(pa.int64()).combine_chunks()
    columns = [rows.column(name).to_pylist() for name in table.key]
    return pa.array([hash(key) for key in zip(*columns, strict=True)], pa.int64())


class KnownKeys:
    """The keys of one table, from its first row on; eight bytes each."""

    def __init__(self, limit: int) -> None:
        """Begin with an empty table, of which at most ``limit`` keys are kept."""
        self._limit = limit
        self._hashes: pa.ChunkedArray = pa.chunked_array([], pa.int64())

    def new_of(self, hashes: pa.Array) -> pa.Array:
        """Return those that are not known."""
        # The batch is the small side: it is what is put into a hash table.
        mine = self._hashes
        found = mine.filter(pc.is_in(mine, value_set=hashes)).combine_chunks()
        return hashes.filter(pc.invert(pc.is_in(hashes, value_set=found)))

    def learn(self, new: pa.Array) -> bool:
        """Take new keys; tell whether all of them found room."""
        if len(self._hashes) + len(new) > self._limit:
            return False
        chunks = [*self._hashes.chunks, new]
        if len(chunks) > _MOST_CHUNKS:
            chunks = [pa.concat_arrays(chunks)]
        self._hashes = pa.chunked_array(chunks, pa.int64())
        return True
