"""
A table's name: a schema and a table, kept apart.

As text, a name is ``schema.table``. A part that contains a dot, or begins with a double
quote, is quoted as in SQL: ``"S.c".orders``, ``shop."a.b"``. So each name has exactly
one text form, and ordinary names need no quotes.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

_QUOTED: Final = r'"(?:[^"]|"")+"'
_TEXT: Final = re.compile(rf'({_QUOTED}|[^".][^.]*)\.({_QUOTED}|[^".][^.]*)', re.DOTALL)
# In lists of names and regular expressions, a plain name has none of these, no $ and
# no blanks.
_SPECIAL: Final = r'\\*+?\[\](){}|^"'
_PLAIN: Final = re.compile(rf"[^{_SPECIAL}$\s]+")
_BARE: Final = rf"[^{_SPECIAL}.]+"
_QUOTED_PAIR: Final = re.compile(
    rf'(?=.*")(?:{_QUOTED}|{_BARE})\.(?:{_QUOTED}|{_BARE})', re.DOTALL
)
_CACHE_SIZE: Final = 65_536

# Postgres truncates longer names (NAMEDATALEN less one).
LONGEST_NAME_BYTES: Final = 63


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """
    The name of a table, a view or a partition.

    Attributes:
        schema: The schema's name in the catalog.
        table: The table's name in the catalog.
    """

    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        Parse the text of a name.

        Earlier releases did not quote parts that contain dots; such text is split at
        its first dot.

        Raises:
            ValueError: The text has no schema or no table.
        """
        schema, table = _parts(text)
        return cls(schema, table)

    @property
    def text(self) -> str:
        """The text of the name in files, log records and the configuration."""
        return f"{_part(self.schema)}.{_part(self.table)}"

    @property
    def sql(self) -> str:
        """The name for a SQL statement: both parts are quoted."""
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    @property
    def entry(self) -> str:
        """The text in a list of entries; quoted unless it is a plain name."""
        return self.text if _PLAIN.fullmatch(self.text) else self.sql

    @property
    def joined(self) -> str:
        """Schema, dot, table: regular expressions are matched against this text."""
        return f"{self.schema}.{self.table}"

    def __str__(self) -> str:
        return self.text


def is_quoted_name(entry: str) -> bool:
    """Return whether an entry is a quoted name rather than a regular expression."""
    return _QUOTED_PAIR.fullmatch(entry) is not None


def quoted(identifier: str) -> str:
    """Quote an identifier as SQL does."""
    return '"' + identifier.replace('"', '""') + '"'


def _part(name: str) -> str:
    return quoted(name) if "." in name or name.startswith('"') else name


@lru_cache(_CACHE_SIZE)
def _parts(text: str) -> tuple[str, str]:
    found = _TEXT.fullmatch(text)
    if found is not None:
        return _unquoted(found[1]), _unquoted(found[2])
    schema, _, table = text.partition(".")
    if not schema or not table:
        message = f"{text!r} is not schema.table"
        raise ValueError(message)
    return schema, table


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
