"""
What is read: tables as the catalog tells them, plans, and chunks of rows.

A *key* is the raw text bytes of a row's key columns, in key order, the same from the
stream and from a chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.relay.wal.messages import Relation

Key = tuple[bytes, ...]
RowValues = tuple[bytes | None, ...]


def key_of(row: RowValues, indexes: Sequence[int]) -> Key:
    """Return a row's key; key columns are never null."""
    return tuple(row[index] or b"" for index in indexes)


class DeclaredView(NamedTuple):
    """
    An aggregate view: a row per aggregate, read in place of outbox rows that are gone.

    Attributes:
        aggregate_type: The aggregate type.
        name: The view, as ``schema.name``.
    """

    aggregate_type: str
    name: str


class KeyRange(NamedTuple):
    """
    A part of a table that one reader reads, in key order.

    Attributes:
        after_key: Rows at or below it are acknowledged, or another range's; None: from
            the table's beginning.
        last_key: No row above it.
        is_done: All of it is acknowledged.
    """

    after_key: Key | None
    last_key: Key
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class TableShape:
    """
    A table as the catalog tells it.

    Attributes:
        relation: Its columns, in the order in which chunks bring them, and its key.
        key_types: The types of the key's columns, as SQL spells them, in key order.
        partitioned: It is the root of partitions, which are read with it.
        order: The places of the columns by which it is read in order, a unique key too;
            none: by its key.
        order_types: The types of those columns, as SQL spells them.
        collations: The oids of the collations of the key's columns, then of those.
        row_filter: The publication's filter, an SQL expression.
        view: Where rows come from when the collection is no table.
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
        """The places of the columns by which it is read in order."""
        return self.order or self.relation.key

    def has_same_key(self, other: "TableShape") -> bool:
        """Tell whether both are the same table with the same key."""
        return self.identity == other.identity

    @property
    def identity(self) -> tuple[object, ...]:
        """What must not change while it is read: the table and its keys."""
        relation = self.relation
        order = tuple(relation.columns[place].name for place in self.order)
        types = (self.key_types, self.order_types, self.collations)
        return relation.oid, relation.key_names, order, types

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Return the same of the keys as texts, which are stored with places in it."""
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
        shape: The table when the plan was made.
        maximum_key: No chunk goes beyond it; None: there is no range to read.
        estimated_rows: What the server's statistics say, for the percentage.
        keys: Just these are asked for, and not yet delivered.
        boundaries: Keys, in order, that cut what lies below the maximum key into parts
            of about the same size; as many as were asked for, or fewer.
    """

    shape: TableShape
    maximum_key: Key | None
    estimated_rows: int
    keys: tuple[Key, ...] = ()
    boundaries: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """
    Rows that one query read, and what that query could see.

    Attributes:
        shape: The table at the moment of the query.
        rows: In key order.
        snapshot: Which transactions the query saw.
        is_last: The range, or the list of keys, holds no more rows.
        size_bytes: What the rows take as COPY text.
        elapsed_s: How long the server took for them.
        widest_bytes: What the longest of them takes; 0: they are not long.
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
        """Where the last row stands in the order; None: there is no row."""
        return key_of(self.rows[-1], self.shape.order_key) if self.rows else None
