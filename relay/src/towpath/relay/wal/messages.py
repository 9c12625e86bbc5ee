"""
One value per pgoutput message, protocol version 1.

Row values are a tuple of text forms: ``bytes``, ``None`` for NULL, or ``UNCHANGED``
for a TOASTed value that the server left out because the update did not touch it.
Absent is not null. These are made for every row, hence plain named tuples.
"""

import enum
from typing import Final, NamedTuple


class Unchanged(enum.Enum):
    """The type of the one value ``UNCHANGED``."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED

Value = bytes | None | Unchanged
Row = tuple[Value, ...]


class Begin(NamedTuple):
    """A transaction begins; its commit is already known."""

    final_lsn: int
    committed_us: int
    xid: int


class Commit(NamedTuple):
    """The transaction ends; ``end_lsn`` is what may be confirmed."""

    commit_lsn: int
    end_lsn: int
    committed_us: int


class Origin(NamedTuple):
    """Where the transaction came from, if it was replicated itself."""

    origin_lsn: int
    name: str


class ColumnShape(NamedTuple):
    """A column in a relation message; ``is_key``: part of the replica identity."""

    name: str
    type_oid: int
    typmod: int
    is_key: bool


class RelationShape(NamedTuple):
    """A table's shape, sent before its first row and after every change of it."""

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
    """A row came."""

    relation_oid: int
    new: Row


class Update(NamedTuple):
    """A row changed; ``old`` is its former key, or all of it if ``is_full``."""

    relation_oid: int
    new: Row
    old: Row | None
    is_full: bool


class Delete(NamedTuple):
    """A row went; ``old`` is its key, or all of it if ``is_full``."""

    relation_oid: int
    old: Row
    is_full: bool


class Truncate(NamedTuple):
    """Tables were emptied together."""

    relation_oids: tuple[int, ...]
    cascades: bool
    restarts_identity: bool


class LogicalMessage(NamedTuple):
    """Written by ``pg_logical_emit_message``."""

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
