"""What of the source a route is compared with: a table, a part of one, or a view."""

from dataclasses import dataclass

from towpath.schemas.table_name import TableName
from towpath.sinks.verify.nested import SourceType

# What columns of an outbox become in an event, whatever they are in the table.
TEXT_IN_BYTES = "the text that a bytea holds"
UTC_TIMESTAMP = "the instant that a timestamp is in UTC"


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """
    A column.

    Attributes:
        name: Its name in the source.
        type: Postgres's own name of its type; of a domain, of what that is over.
        kept_as: Its name in records, if that is another.
        inside: What its values are made of, if they are no single ones.
        is_compared: Whether it is read for more than for the key.
        is_blank_null: Whether a blank text stands for none.
        has_plain_order: Whether its order is what plain operators mean, so that it can
            be gone through part by part.
        is_kept_as_text: Whether a warehouse keeps it as text, which has room for all.
    """

    name: str
    type: str
    kept_as: str = ""
    inside: SourceType | None = None
    is_compared: bool = True
    is_blank_null: bool = False
    has_plain_order: bool = True
    is_kept_as_text: bool = False

    @property
    def record_name(self) -> str:
        """Its name in records."""
        return self.kept_as or self.name


@dataclass(frozen=True, slots=True)
class Limit:
    """
    Which rows of a table count.

    Attributes:
        column: A column of texts.
        values: What stands in it.
        is_of_others: Whether it is the rows with anything else that count, null too.
    """

    column: str
    values: tuple[str, ...]
    is_of_others: bool = False


@dataclass(frozen=True, slots=True)
class SourceTable:
    """
    A table, or a part of one.

    Attributes:
        columns: What is read, the key's columns among them.
        key: Columns of the key that is published, in key order.
        is_partitioned: Whether its rows are those of its partitions.
        is_view: Whether it has no index, so that it is read at once.
        only: What its rows are limited to, if they are.
        key_type: The type of a view's key, which it may give in another form.
        is_pruned: Whether it loses rows that the sink keeps, so that what only the sink
            has tells nothing.
        unread: Columns that records have and nothing is compared with.
        notes: What is not compared, and why, in sentences.
    """

    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    is_partitioned: bool = False
    is_view: bool = False
    only: Limit | None = None
    key_type: str = ""
    is_pruned: bool = False
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def full_name(self) -> TableName:
        """Schema and table."""
        return TableName(self.schema, self.name)

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
