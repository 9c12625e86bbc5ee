"""
The shape of a table, its scan plan, and the chunks that are read from it.

A *key* is the raw text bytes of a row's key columns, in key order. The stream and a
chunk yield the same bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.relay.wal.messages import Relation

Key = tuple[bytes, ...]
RowValues = tuple[bytes | None, ...]


# Returns the partition of each row's record in the topic, given the only sink that
# receives the rows (None for all sinks) and the rows' relation; empty if the
# partitions are unknown.
PartitionsOf = Callable[[str | None, Relation, Sequence[RowValues]], Sequence[int]]


def key_of(row: RowValues, indexes: Sequence[int]) -> Key:
    """Return a row's key; key columns are never null."""
    return tuple(row[index] or b"" for index in indexes)


class DeclaredView(NamedTuple):
    """
    An aggregate view: one row per aggregate, read in place of deleted outbox rows.

    Attributes:
        aggregate_type: The aggregate type.
        name: The view, as ``schema.name``.
    """

    aggregate_type: str
    name: str


class KeyRange(NamedTuple):
    """
    A range of a table that one reader reads, in key order.

    Attributes:
        after_key: Rows at or below it are acknowledged, or belong to another range;
            None if the range starts at the table's first row.
        last_key: The end of the range.
        is_done: Whether all rows are acknowledged.
    """

    after_key: Key | None
    last_key: Key
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class TableShape:
    """
    A table as the catalog describes it.

    Attributes:
        relation: Its columns, in the order of a chunk's values, and its key.
        key_types: The SQL types of the key's columns, in key order.
        partitioned: Whether it is the root of partitions, which are read with it.
        order: The indexes of the surrogate key's columns, in whose order the table is
            read; empty if it is read in the order of its key.
        order_types: The SQL types of the surrogate key's columns.
        collations: The oids of the collations of the key's columns, then of the
            surrogate key's.
        row_filter: The publication's filter, an SQL expression.
        view: The view that is read; None if the collection is a table.
    """

    relation: Relation
    key_types: tuple[str, ...]
    partitioned: bool = False
    order: tuple[int, ...] = ()
    order_types: tuple[str, ...] = ()
    collations: tuple[int, ...] = ()
    row_filter: str | None = None
    view: DeclaredView | None = None

    @property
    def collection(self) -> str:
        """The collection's name in signals and stored snapshots."""
        name = self.relation.full_name
        return name.text if self.view is None else name.joined

    @property
    def order_key(self) -> tuple[int, ...]:
        """The indexes of the columns in whose order the table is read."""
        return self.order or self.relation.key

    def has_same_key(self, other: "TableShape") -> bool:
        """Return whether both are the same table with the same key."""
        return self.identity == other.identity

    @property
    def identity(self) -> tuple[object, ...]:
        """The table and its keys, which must not change while it is read."""
        relation = self.relation
        order = tuple(relation.columns[place].name for place in self.order)
        types = (self.key_types, self.order_types, self.collations)
        return relation.oid, relation.key_names, order, types

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns, types and collations of its keys, as they are stored."""
        columns = self.relation.columns
        places = (*self.relation.key, *self.order)
        types = (*self.key_types, *self.order_types)
        collations = self.collations or (0,) * len(places)
        return tuple(
            f"{columns[place].name} {kind} {collation}"
            for place, kind, collation in zip(places, types, collations, strict=True)
        )


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """
    The scan plan of a table.

    Attributes:
        shape: The table as it was when the plan was made.
        maximum_key: The end of the last chunk; None if there is no range to read.
        estimated_rows: The row count in the server's statistics, for the percentage.
        keys: The listed keys that have not been delivered yet.
        boundaries: Keys, in order, that split the range below the maximum key into
            parts of about the same size; as many as requested, or fewer.
    """

    shape: TableShape
    maximum_key: Key | None
    estimated_rows: int
    keys: tuple[Key, ...] = ()
    boundaries: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """
    The rows that one query read, and the transactions that it could see.

    Attributes:
        shape: The table at the moment of the query.
        rows: The rows in key order.
        snapshot: The visibility of the query.
        is_last: Whether the range, or the list of keys, holds no more rows.
        size_bytes: The size of the rows as COPY text.
        elapsed_s: The time that the server took.
        widest_bytes: The size of the longest row; 0 without a row.
    """

    shape: TableShape
    rows: Sequence[RowValues]
    snapshot: XidSnapshot
    is_last: bool
    size_bytes: int = 0
    elapsed_s: float = 0.0
    widest_bytes: int = 0

    @property
    def last_key(self) -> Key | None:
        """The order key of the last row; None without a row."""
        return key_of(self.rows[-1], self.shape.order_key) if self.rows else None
