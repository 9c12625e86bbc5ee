"""
The keys of a table: the identifying key, and the key in whose order it is read.

The identifying key must be the one with which the stream identifies changed rows: the
primary key, or the replica identity's index. Where the stream has none (FULL, or no
identity at all) it is the catalog's first unique index, in the order in which
``encode.relations`` selects it. The table is read in the order of the same key unless a
signal names a surrogate key. Both must be unique and without nulls.

One statement reads a table's columns, indexes, identities and keys.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from towpath.relay.wal.messages import Column

_FULL: Final = "f"
_NOTHING: Final = "n"
_DEFAULT: Final = "d"


class UniqueIndex(NamedTuple):
    """A unique index of the catalog; an expression has no column name."""

    oid: int
    name: str
    columns: list[str | None]
    is_primary: bool
    is_identity: bool
    is_immediate: bool
    is_valid: bool
    is_partial: bool
    nullable: list[str]

    @property
    def flaw(self) -> str:
        """Why its columns do not identify all rows; empty if they do."""
        nullable = ", ".join(self.nullable)
        flaws = {
            "it is deferrable": not self.is_immediate,
            "it is not valid": not self.is_valid,
            "it is partial": self.is_partial,
            "it contains an expression": None in self.columns,
            f"{nullable} may be null (alter column ... set not null)": bool(nullable),
        }
        return next((flaw for flaw, holds in flaws.items() if holds), "")

    @property
    def names(self) -> set[str | None]:
        """Its columns, in no particular order."""
        return set(self.columns)


class Identity(NamedTuple):
    """The replica identity of the table, or of one of its partitions."""

    table: str
    kind: str
    columns: list[str] | None

    @property
    def names(self) -> set[str | None]:
        """Its columns, in no particular order."""
        return set(self.columns or ())


def identity_key(
    indexes: Sequence[UniqueIndex], identities: Sequence[Identity]
) -> UniqueIndex | str:
    """
    Return the key that identifies rows in the stream, or why there is none.

    Args:
        indexes: The table's unique indexes: the primary key's, the replica identity's,
            and the others, oldest first.
        identities: The identities of the table and of its partitions.
    """
    streamed = identities[0].names
    found = (index for index in indexes if not index.flaw)
    key = next((one for one in found if not streamed or one.names == streamed), None)
    if key is None:
        return _no_key(indexes)
    flaws = (_identity_flaw(identity, indexes, key) for identity in identities)
    return next(filter(None, flaws), key)


def chosen_key(
    indexes: Sequence[UniqueIndex], names: Sequence[str]
) -> UniqueIndex | str:
    """Return the index on a surrogate key's columns, or why there is none."""
    listed = ", ".join(names)
    matching = [index for index in indexes if index.names == set(names)]
    for index in matching:
        if not index.flaw:
            return index
    if not matching:
        return f"the surrogate key ({listed}) has no unique index on just these columns"
    flaws = _flaws(matching)
    return f"the surrogate key ({listed}) does not identify all rows: {flaws}"


def _no_key(indexes: Sequence[UniqueIndex]) -> str:
    remedy = "add a primary key, or a unique index on columns that are NOT NULL"
    if not indexes:
        return f"it has no primary key and no unique index: {remedy}"
    primary = [index for index in indexes if index.is_primary]
    flawed = _flaws(primary or indexes)
    missing = "no usable primary key" if primary else "no primary key"
    return f"it has {missing}, and no other usable unique index: {flawed}; {remedy}"


def _flaws(indexes: Iterable[UniqueIndex]) -> str:
    return "; ".join(f"index {index.name}: {index.flaw}" for index in indexes)


def _identity_flaw(
    identity: Identity, indexes: Sequence[UniqueIndex], key: UniqueIndex
) -> str:
    """Return why the stream lacks the key of this table's rows; empty if it has it."""
    table, kind = identity.table, identity.kind
    remedy = f"alter table {table} replica identity default"
    if kind == _NOTHING:
        return f"the replica identity of {table} is nothing: {remedy}"
    primary = next((each for each in indexes if each.is_primary and not each.flaw), key)
    # Without an identity the server refuses updates and deletes.
    has_no_columns = kind == _FULL or (kind == _DEFAULT and not identity.columns)
    if (has_no_columns or identity.names == key.names) and primary.names == key.names:
        return ""
    return f"the replica identity of {table} is not its primary key: {remedy}"


# The catalog queries, in the order of their results.
TABLE_PARTS: Final = (
    "describe_columns",
    "describe_indexes",
    "describe_identities",
    "describe_keys",
)


class KeyColumn(NamedTuple):
    """A column of a unique index, and whether it can be compared."""

    name: str
    type_name: str
    is_deterministic: bool
    has_plain_order: bool
    collation: int


class TableParts(NamedTuple):
    """A table's columns, unique indexes, identities, and each index's columns."""

    columns: tuple[Column, ...]
    indexes: list[UniqueIndex]
    identities: list[Identity]
    keys: Mapping[int, list[KeyColumn]]


def table_parts(rows: Sequence[Sequence[Mapping[str, Any]]]) -> TableParts:
    """Return a table's parts from the rows of each query."""
    columns, indexes, identities, keys = (
        [tuple(row.values()) for row in part] for part in rows
    )
    of_index: dict[int, list[KeyColumn]] = defaultdict(list)
    for index, *column in keys:
        of_index[index].append(KeyColumn(*column))
    return TableParts(
        tuple(Column(*row) for row in columns),
        [UniqueIndex(*row) for row in indexes],
        [Identity(*row) for row in identities],
        of_index,
    )
