"""What of the source a route is compared with: a table, a part of one, or a view."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column and Postgres's own name of its type."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class SourceTable:
    """
    A table, or a part of one.

    Attributes:
        columns: What is read, the key's columns among them.
        key: Columns of the primary key, in key order.
        is_partitioned: Whether its rows are those of its partitions.
        is_view: Whether it has no index, so that it is read at once.
        only: A column and the values that its rows are limited to, if they are.
        key_type: The type of a view's key, which it may give in another form.
    """

    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    is_partitioned: bool = False
    is_view: bool = False
    only: tuple[str, tuple[str, ...]] | None = None
    key_type: str = ""

    @property
    def full_name(self) -> str:
        """Its name as the configuration has it."""
        return f"{self.schema}.{self.name}"

    @property
    def key_places(self) -> tuple[int, ...]:
        """Where among the columns the key's are, in key order."""
        names = [column.name for column in self.columns]
        return tuple(names.index(name) for name in self.key)

    @property
    def key_types(self) -> tuple[str, ...]:
        """The types of the key's columns, in key order."""
        if self.key_type:
            return (self.key_type,)
        return tuple(self.columns[place].type for place in self.key_places)
