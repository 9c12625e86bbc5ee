"""
A table's shape: as the stream announces it, or as a chunk brings it along.

Both give the same value, so that a row reads the same both ways.
"""

from dataclasses import dataclass


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
        oid: The table's oid: another table by the same name has another.
        schema: Its schema.
        table: Its name.
        columns: In the order in which the row's values come.
        key: Indexes into ``columns`` of the primary key, in key order; empty without.
        identity: Replica identity: ``d``, ``n``, ``f`` or ``i``.
    """

    oid: int
    schema: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    identity: str = "d"

    @property
    def name(self) -> str:
        """The name with its schema, as signals and topics spell it."""
        return f"{self.schema}.{self.table}"

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key's columns, in key order."""
        return tuple(self.columns[index].name for index in self.key)
