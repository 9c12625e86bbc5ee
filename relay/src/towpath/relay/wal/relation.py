"""
A table's shape: as the stream announces it, or as a chunk brings it along.

Both give the same value, so that a row reads the same both ways.
"""

from dataclasses import dataclass, field

from towpath.schemas.table_name import TableName


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
        full_name: Schema and table.
        name: The text of both, as signals and the configuration spell it.
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
        """Make both forms of the name once: they are asked for with every row."""
        full_name = TableName(self.schema, self.table)
        object.__setattr__(self, "full_name", full_name)
        object.__setattr__(self, "name", full_name.text)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key's columns, in key order."""
        return tuple(self.columns[index].name for index in self.key)
