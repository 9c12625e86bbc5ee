"""What is published of a table's shape: made once per shape, by the column rules."""

from typing import NamedTuple

from towpath.relay.routing.connect_schema import Field


class Plan(NamedTuple):
    """
    A shape's columns as records have them.

    Attributes:
        key: The columns of the record's key, in key order; empty without.
        columns: The columns of the value, in the order of the row.
        texts: Places of columns that became texts, whatever they were: masked, hashed.
    """

    key: tuple[Field, ...]
    columns: tuple[Field, ...]
    texts: frozenset[int] = frozenset()
