"""
How a sink's row is named by its key, and what key in the source a name tells. Pure.

A name is a key's parts in one text (see ``key_text``), and a template may have made the
parts: both can be taken back. What nobody could have named so, as a row that a stranger
wrote, tells no key.
"""

from collections.abc import Sequence

from towpath.sinks.key_text import key_parts, key_text
from towpath.sinks.routing import Routing

Key = tuple[str, ...]


class KeyNames:
    """The names of one route's rows; the key's values are texts."""

    def __init__(self, columns: Sequence[str], routing: Routing | None) -> None:
        self._columns = tuple(columns)
        self._routing = routing

    def name(self, values: Sequence[str | None]) -> str:
        """Name the row of a key of the source."""
        if self._routing is None:
            (first, *others) = values
            is_plain = first and not others and ":" not in first and "%" not in first
            return first if is_plain and first else key_text(values)
        return key_text(self._routing.key(self._columns, tuple(values))[1])

    def key(self, name: str) -> Key | None:
        """Return the source's key that a name tells; none: it tells none."""
        parts = key_parts(name)
        try:
            values = self._routing.source_key(parts) if self._routing else parts
        except ValueError:
            return None
        key = tuple(map(str, values))
        is_one = len(key) == len(self._columns) and self.name(key) == name
        return key if is_one else None
