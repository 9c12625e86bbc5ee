r"""
The tables that the entries of ``[[source]] tables`` capture.

=======================  =============================================================
``shop.orders``          only this table, even if it is created later
``"S.c"."a|b"``          only this table: a quoted part is taken literally
``shop\.order.*``        every table whose whole name it matches, as in signals
=======================  =============================================================

An entry with a character that occurs only in regular expressions is an expression,
unless it is a quoted name. It is matched against ``schema.table`` without quotes. It
never captures the outbox, the signal tables, tables in the schemas of the server and of
the relay, or tables that match ``exclude_tables``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Final, Self

from pydantic import AfterValidator

from towpath.schemas.table_name import TableName, is_quoted_name
from towpath.settings.section import table_of_text
from towpath.settings.syntax import compiled, python_pattern

_EXPRESSION: Final = re.compile(r"[\\*+?\[\](){}|]|\A\^|\$\Z")
_NEVER: Final = re.compile(r"towpath|information_schema|pg_.*", re.DOTALL)


def is_expression(entry: str) -> bool:
    """Return whether an entry is a regular expression, not a name."""
    return _EXPRESSION.search(entry) is not None and not is_quoted_name(entry)


def _check_entry(text: str) -> str:
    if is_expression(text):
        compiled(text)
        return text
    return table_of_text(text).entry


TableEntry = Annotated[str, AfterValidator(_check_entry)]


@dataclass(frozen=True, slots=True)
class Capture:
    """
    The captured tables, as far as the file alone determines them.

    Attributes:
        entries: Names and expressions, as the file lists them.
        excluded: Names and expressions of tables that expressions do not capture.
        reserved: Tables with a special use: the outbox, the signal table.
    """

    entries: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    reserved: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """The tables that entries name, in the order of the entries."""
        names = (each for each in self.entries if not is_expression(each))
        return tuple(TableName.parse(each).text for each in names)

    @property
    def expressions(self) -> tuple[str, ...]:
        """The entries that are expressions."""
        return tuple(each for each in self.entries if is_expression(each))

    def includes(self, table: str) -> bool:
        """Return whether a table of this name is captured if it exists."""
        if table in self.names:
            return True
        schema = TableName.parse(table).schema
        if _NEVER.fullmatch(schema) or table in self.reserved:
            return False
        is_excluded = any(matches(entry, table) for entry in self.excluded)
        return not is_excluded and any(
            matches(entry, table) for entry in self.expressions
        )

    def only(self, entry: str) -> Self:
        """Return the same capture, reduced to one entry."""
        return replace(self, entries=(entry,))

    def chosen(self, existing: Iterable[str]) -> tuple[str, ...]:
        """Return the named tables, then those of ``existing`` that are captured."""
        names = self.names
        more = {table for table in existing if self.includes(table)}
        return (*names, *sorted(more.difference(names)))


def matches(entry: str, table: str) -> bool:
    """Return whether an entry names or matches a table, whose name is given as text."""
    if not is_expression(entry):
        return TableName.parse(entry).text == table
    name = TableName.parse(table).joined
    return re.fullmatch(python_pattern(entry), name) is not None
