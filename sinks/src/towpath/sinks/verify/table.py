"""
Describe the source side of a route: a table, a part of a table, or a view.

Column names and key come from the announcement, everything else from the table. A
masked column is read only if it is in the key, and never compared; a truncating rule
masks only character columns.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from towpath.schemas.table_name import TableName
from towpath.settings.rows import HstoreForm, Rows
from towpath.settings.syntax import compiled
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.verify.errors import IncomparableError
from towpath.sinks.verify.types import HSTORE, HSTORE_MAP, SourceType

# The forms of outbox columns in an event, whatever their type in the table.
TEXT_IN_BYTES = "the text that a bytea holds"
UTC_TIMESTAMP = "the instant of a timestamp, read as UTC"


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """
    A column of the source, as it is compared.

    Attributes:
        name: Its name in the source.
        type: The name of its type in Postgres; for a domain, that of its base type.
        kept_as: Its name in records, if that differs.
        inside: The type of nested values, if it has any.
        is_compared: Whether it is compared; otherwise it is read only for the key.
        is_blank_null: Whether a blank text represents null.
        has_plain_order: Whether plain operators order it, so that it can be read in
            chunks.
        is_kept_as_text: Whether a warehouse keeps it as text, which can represent every
            value.
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
class RowFilter:
    """
    A condition on the rows of a table.

    Attributes:
        column: A text column.
        values: The values of the rows that belong to the route.
        is_negated: Whether the rows with any other value, or null, belong to the route
            instead.
    """

    column: str
    values: tuple[str, ...]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class SourceTable:
    """
    A table, or a part of one.

    Attributes:
        columns: The columns to read, including those of the key.
        key: The columns of the published key, in key order.
        is_partitioned: Whether its rows are those of its partitions.
        is_view: Whether it has no index, so that one statement reads all rows.
        only: The condition on its rows, if there is one.
        key_type: The type of a view's key in the source; ``columns`` has it as text.
        is_pruned: Whether it loses rows that the sink keeps, so that rows found only in
            the sink prove nothing.
        unread: Columns of records that are not compared.
        notes: Sentences that name the columns that are not compared, and say why.
    """

    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    is_partitioned: bool = False
    is_view: bool = False
    only: RowFilter | None = None
    key_type: str = ""
    is_pruned: bool = False
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def full_name(self) -> TableName:
        """Schema and table."""
        return TableName(self.schema, self.name)

    @property
    def key_indexes(self) -> tuple[int, ...]:
        """The indexes of the key's columns, in key order."""
        names = [column.name for column in self.columns]
        return tuple(names.index(name) for name in self.key)

    @property
    def key_types(self) -> tuple[str, ...]:
        """The types of the key's columns, in key order."""
        if self.key_type:
            return (self.key_type,)
        return tuple(self.columns[index].type for index in self.key_indexes)


_CHARACTERS: Final = frozenset(
    {"text", "character varying", "character", "name", '"char"'}
)
_FLOATS: Final = frozenset({"real", "double precision"})


# The number of digits of a warehouse's widest decimal.
_MOST_DIGITS: Final = 38


def is_kept_as_text(column: Column) -> bool:
    """Return whether a column is a numeric that fits no decimal of a warehouse."""
    if column.type != "numeric":
        return False
    if column.precision_and_scale is None:
        return True
    precision, scale = column.precision_and_scale
    return precision > _MOST_DIGITS or not 0 <= scale <= precision


def published(table: SourceTable, shape: RelationShape, rows: Rows) -> SourceTable:
    """
    Return the published part of a table.

    Args:
        table: The whole table.
        shape: Its announced shape.
        rows: The configuration of row changes.

    Raises:
        IncomparableError: The table has no published key by which rows can be compared.
    """
    own = {column.name: column for column in table.columns}
    announced = [column.name for column in shape.columns]
    if not shape.key:
        message = (
            f"{table.full_name} is published without a key, so it cannot be compared"
        )
        raise IncomparableError(message)
    if not own.keys() >= set(shape.key):
        listed = ", ".join(shape.key)
        message = f"{table.full_name} lacks columns of its published key {listed}"
        raise IncomparableError(message)
    masked = {
        name for name in announced if name in own and _is_masked(table, own[name], rows)
    }
    hidden = masked | {name for name in announced if not _is_shown(table, name, rows)}
    columns = tuple(
        replace(own[name], is_compared=name not in hidden)
        for name in announced
        if name in own and (name not in hidden or name in shape.key)
    )
    notes = (
        _note("masked columns", (name for name in announced if name in masked)),
        _note(
            "dropped, generated or renamed columns",
            (name for name in announced if name not in own),
        ),
    )
    read = {column.name for column in columns}
    part = replace(
        table,
        columns=columns,
        key=shape.key,
        unread=tuple(name for name in announced if name not in read),
        notes=tuple(filter(None, notes)),
    )
    return comparable(as_written(part, rows))


def as_written(table: SourceTable, rows: Rows) -> SourceTable:
    """Return a table with its values in the configured forms."""
    if rows.hstore is HstoreForm.JSON:
        return table
    columns = tuple(
        replace(one, inside=one.inside and _with_maps(one.inside))
        for one in table.columns
    )
    return replace(table, columns=columns)


def _with_maps(kind: SourceType) -> SourceType:
    return replace(
        kind,
        name=HSTORE_MAP if kind.name == HSTORE else kind.name,
        element=kind.element and _with_maps(kind.element),
        fields=tuple((name, _with_maps(field)) for name, field in kind.fields),
    )


def _is_shown(table: SourceTable, column: str, rows: Rows) -> bool:
    name = f"{table.full_name.joined}.{column}"
    if rows.include_columns:
        return _matches(rows.include_columns, name)
    return not _matches(rows.exclude_columns, name)


def _is_masked(table: SourceTable, column: SourceColumn, rows: Rows) -> bool:
    """Return whether the first rule that matches a column changes its value."""
    name = f"{table.full_name.joined}.{column.name}"
    for rule in rows.mask:
        if _matches(rule.columns, name):
            return rule.form != "truncate" or _is_characters(column.type)
    return False


def _is_characters(type_name: str) -> bool:
    # The name of an extension's type includes its schema.
    return type_name in _CHARACTERS or type_name.rpartition(".")[2] == "citext"


def _matches(patterns: Iterable[str], name: str) -> bool:
    return any(compiled(pattern).fullmatch(name) for pattern in patterns)


def _note(kind: str, names: Iterator[str]) -> str:
    listed = ", ".join(names)
    return f"{kind} are not compared: {listed}" if listed else ""


def comparable(table: SourceTable) -> SourceTable:
    """
    Return the table, if keys can be read back from their text.

    Raises:
        IncomparableError: A key column's type has no unique text form, or an order that
            an extension defines.
    """
    for column in (table.columns[index] for index in table.key_indexes):
        if flaw := _flaw(column):
            message = (
                f"key column {column.name} of {table.full_name} has the type "
                f"{column.type}, {flaw}"
            )
            raise IncomparableError(message)
    return table


def _flaw(column: SourceColumn) -> str:
    if column.inside or column.type == "time with time zone":
        return "whose values a record does not fully contain"
    if column.type in _FLOATS:
        return "whose values can be written in several ways"
    return "" if column.has_plain_order else "whose order an extension defines"
