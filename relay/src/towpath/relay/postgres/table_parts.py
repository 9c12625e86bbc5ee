"""A table's columns, indexes, identities and keys, read in one statement."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from towpath.relay.postgres.table_keys import Identity, UniqueIndex
from towpath.relay.wal.relation import Column

# The catalog queries, in the order of the answer.
PARTS: Final = (
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


class Parts(NamedTuple):
    """A table's columns, unique indexes, identities, and each index's columns."""

    columns: tuple[Column, ...]
    indexes: list[UniqueIndex]
    identities: list[Identity]
    keys: Mapping[int, list[KeyColumn]]


def parts_of(told: Sequence[Sequence[Mapping[str, Any]]]) -> Parts:
    """Return a table's parts: of each query its rows, whose fields are in order."""
    columns, indexes, identities, keys = (
        [tuple(row.values()) for row in part] for part in told
    )
    of_index: dict[int, list[KeyColumn]] = defaultdict(list)
    for index, *column in keys:
        of_index[index].append(KeyColumn(*column))
    return Parts(
        tuple(Column(*row) for row in columns),
        [UniqueIndex(*row) for row in indexes],
        [Identity(*row) for row in identities],
        of_index,
    )
