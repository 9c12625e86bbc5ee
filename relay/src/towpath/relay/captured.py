"""
The captured tables as of now, which may become more while the relay runs.

Tables that the file names are captured from the beginning; those that its expressions
take are once the publication has them. The guardian replaces the names as a whole, in
its own thread; whoever looks sees the names of before or those of now.
"""

from collections.abc import Collection, Iterable, Iterator

from towpath.schemas.table_name import TableName


class CapturedTables(Collection[str]):
    """
    The texts of names, in the order in which they are captured.

    Attributes:
        announced: The tables whose rows topics have, as of the last start.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = tuple(dict.fromkeys(names))
        self.announced: frozenset[TableName] = frozenset()

    def replace(self, names: Iterable[str]) -> None:
        """Take other names; safe from any thread."""
        self._names = tuple(dict.fromkeys(names))

    @property
    def names(self) -> tuple[str, ...]:
        """The names, as a value that does not change."""
        return self._names

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Collections(Collection[str]):
    """All that can be read: the captured tables as of now, and what is fixed."""

    def __init__(self, tables: CapturedTables, fixed: Iterable[str]) -> None:
        self._tables = tables
        self._fixed = tuple(fixed)

    def __contains__(self, name: object) -> bool:
        return name in self._fixed or name in self._tables

    def __iter__(self) -> Iterator[str]:
        return iter((*self._tables.names, *self._fixed))

    def __len__(self) -> int:
        return len(self._tables) + len(self._fixed)
