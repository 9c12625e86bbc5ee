"""
What of a table is published, and so can be compared. Pure.

Names and key are those that the relay announced; the rest is the table's own. A column
that is masked is read only if it is of the key, and compared in no case; a beginning is
taken of characters alone, so that any other column under such a rule is as it is.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from towpath.settings.rows import HstoreForm, Rows
from towpath.settings.syntax import compiled
from towpath.sinks.relations import RelationShape
from towpath.sinks.verify.errors import IncomparableError
from towpath.sinks.verify.nested import HSTORE, HSTORE_MAP, SourceType
from towpath.sinks.verify.table import SourceColumn, SourceTable

_CHARACTERS: Final = frozenset(
    {"text", "character varying", "character", "name", '"char"'}
)
_FLOATS: Final = frozenset({"real", "double precision"})


def published(table: SourceTable, shape: RelationShape, rows: Rows) -> SourceTable:
    """
    Return the part of a table that its records tell.

    Args:
        table: All of it.
        shape: What the relay announced of it.
        rows: How row changes are written.

    Raises:
        IncomparableError: Its rows cannot be told apart by what is published.
    """
    own = {column.name: column for column in table.columns}
    told = [column.name for column in shape.columns]
    if not shape.key:
        message = f"{table.full_name} is published without a key to compare by"
        raise IncomparableError(message)
    if not own.keys() >= set(shape.key):
        listed = ", ".join(shape.key)
        message = f"{table.full_name} has not all columns of its published key {listed}"
        raise IncomparableError(message)
    masked = {
        name for name in told if name in own and _is_masked(table, own[name], rows)
    }
    hidden = masked | {name for name in told if not _is_shown(table, name, rows)}
    columns = tuple(
        replace(own[name], is_compared=name not in hidden)
        for name in told
        if name in own and (name not in hidden or name in shape.key)
    )
    notes = (
        _note("masked columns", (name for name in told if name in masked)),
        _note(
            "columns that the table has no more, or generates, or that have another "
            "name in records",
            (name for name in told if name not in own),
        ),
    )
    read = {column.name for column in columns}
    part = replace(
        table,
        columns=columns,
        key=shape.key,
        unread=tuple(name for name in told if name not in read),
        notes=tuple(filter(None, notes)),
    )
    return comparable(as_written(part, rows))


def as_written(table: SourceTable, rows: Rows) -> SourceTable:
    """Return a table with its values in the forms that are asked for."""
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
    """Tell whether the first rule that names a column makes another value of it."""
    name = f"{table.full_name.joined}.{column.name}"
    for rule in rows.mask:
        if _matches(rule.columns, name):
            return rule.form != "truncate" or _is_characters(column.type)
    return False


def _is_characters(type_name: str) -> bool:
    # An extension's type has the name of the schema that the extension is in.
    return type_name in _CHARACTERS or type_name.rpartition(".")[2] == "citext"


def _matches(patterns: Iterable[str], name: str) -> bool:
    return any(compiled(pattern).fullmatch(name) for pattern in patterns)


def _note(what: str, names: Iterator[str]) -> str:
    listed = ", ".join(names)
    return f"not compared, {what}: {listed}" if listed else ""


def comparable(table: SourceTable) -> SourceTable:
    """
    Return the table, if keys can be read back from their texts.

    Raises:
        IncomparableError: A column of the key is of a type whose text tells less, or
            that has several texts for a value, or an order of its own.
    """
    for column in (table.columns[place] for place in table.key_places):
        if flaw := _flaw(column):
            message = (
                f"{column.name} of the key of {table.full_name} is of the type "
                f"{column.type}, {flaw}"
            )
            raise IncomparableError(message)
    return table


def _flaw(column: SourceColumn) -> str:
    if column.inside or column.type == "time with time zone":
        return "of which a record does not tell all"
    if column.type in _FLOATS:
        return "of which a value can be written in several ways"
    return "" if column.has_plain_order else "whose order an extension defines"
