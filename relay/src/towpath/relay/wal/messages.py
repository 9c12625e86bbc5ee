"""
The values of pgoutput messages, protocol version 1, and of a table's schema.

A row is a tuple of text forms: ``bytes``, ``None`` for NULL, or ``UNCHANGED`` for a
TOASTed value that the server omits because the update did not change it. Messages are
plain named tuples, as one is made for every row.

A ``Relation`` is the same value whether the stream or a chunk brings the schema.
"""

import enum
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from towpath.schemas.table_name import TableName


class Unchanged(enum.Enum):
    """The type of the one value ``UNCHANGED``."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED

Value = bytes | None | Unchanged
Row = tuple[Value, ...]


class Begin(NamedTuple):
    """A transaction begins; the LSN and the time of its commit are already known."""

    final_lsn: int
    committed_us: int
    xid: int


class Commit(NamedTuple):
    """The end of a transaction: after its delivery, ``end_lsn`` may be confirmed."""

    commit_lsn: int
    end_lsn: int
    committed_us: int


class Origin(NamedTuple):
    """The replication origin of a transaction that was itself replicated."""

    origin_lsn: int
    name: str


class ColumnShape(NamedTuple):
    """A column in a relation message; ``is_key`` if it is in the replica identity."""

    name: str
    type_oid: int
    typmod: int
    is_key: bool


class RelationShape(NamedTuple):
    """A table's schema, sent before the first row and after every schema change."""

    oid: int
    schema: str
    table: str
    identity: str
    columns: tuple[ColumnShape, ...]


class TypeName(NamedTuple):
    """The name of a type that is not built in."""

    oid: int
    schema: str
    name: str


class Insert(NamedTuple):
    """A row was inserted."""

    relation_oid: int
    new: Row


class Update(NamedTuple):
    """A row was updated; ``old`` is its former key, or the whole row if ``is_full``."""

    relation_oid: int
    new: Row
    old: Row | None
    is_full: bool


class Delete(NamedTuple):
    """A row was deleted; ``old`` is its key, or the whole row if ``is_full``."""

    relation_oid: int
    old: Row
    is_full: bool


class Truncate(NamedTuple):
    """Tables were emptied together."""

    relation_oids: tuple[int, ...]
    cascades: bool
    restarts_identity: bool


class LogicalMessage(NamedTuple):
    """A message that ``pg_logical_emit_message`` wrote."""

    is_transactional: bool
    lsn: int
    prefix: str
    content: bytes


Message = (
    Begin
    | Commit
    | Origin
    | RelationShape
    | TypeName
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, its type's oid and its type modifier (-1: none)."""

    name: str
    type_oid: int
    typmod: int = -1


@dataclass(frozen=True, slots=True)
class Relation:
    """
    A table and its columns.

    Attributes:
        oid: The table's oid; a recreated table has a new one.
        schema: The schema's name.
        table: The table's name.
        columns: The columns, in the order of a row's values.
        key: Indexes into ``columns`` of the primary key, or of the key that the replica
            identity names, in key order; may be empty.
        identity: Replica identity: ``d``, ``n``, ``f`` or ``i``.
        full_name: Schema and table.
        name: The text of both, as in signals and the configuration.
    """

    oid: int
    schema: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    identity: str = "d"
    full_name: TableName = field(init=False, repr=False, compare=False)
    name: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute both forms of the name once, as every row uses them."""
        full_name = TableName(self.schema, self.table)
        object.__setattr__(self, "full_name", full_name)
        object.__setattr__(self, "name", full_name.text)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key's columns, in key order."""
        return tuple(self.columns[index].name for index in self.key)
