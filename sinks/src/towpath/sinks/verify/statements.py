"""
The statements that read a table of the source, its columns as canonical texts.

A key is passed back as the text that was read; only the database compares keys, in the
types and collations of their columns.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, LiteralString, NamedTuple

from psycopg import sql

from towpath.sinks.postgres import TEXT_FORMS, TIMES
from towpath.sinks.verify.table import (
    TEXT_IN_BYTES,
    UTC_TIMESTAMP,
    RowFilter,
    SourceColumn,
    SourceTable,
)

# Types with a different text in records than in Postgres.
_FORMS: Final[Mapping[str, LiteralString]] = MappingProxyType(
    {
        **TEXT_FORMS,
        UTC_TIMESTAMP: TIMES.replace("{moment}", "{value}").replace("{zone}", '"Z"'),
        TEXT_IN_BYTES: "convert_from({value}, 'UTF8')",
    }
)

# As type names, these would mean a length of one.
_WITHOUT_LENGTH: Final = {"character": "bpchar", "bit": '"bit"'}


class Statement(NamedTuple):
    """A statement and its parameters."""

    text: sql.Composed
    parameters: list[object]


def all_rows(table: SourceTable) -> Statement:
    """Return the statement that reads all rows, in key order."""
    return _select(table, [], sql.SQL(" order by {}").format(_key(table)))


def next_rows(table: SourceTable, after: Sequence[str] | None, rows: int) -> Statement:
    """Return the statement that reads the next rows in key order, after a key."""
    tail = sql.SQL(" order by {} limit {}").format(_key(table), sql.Literal(rows))
    if after is None:
        return _select(table, [], tail)
    values = [_typed(type_, sql.SQL("%s::text")) for type_ in table.key_types]
    is_after = sql.SQL("({}) > ({})").format(_key(table), sql.SQL(", ").join(values))
    return _select(table, [(is_after, list(after))], tail)


def listed_rows(table: SourceTable, keys: Sequence[Sequence[str]]) -> Statement:
    """Return the statement that reads the rows of the given keys."""
    names = _key_names(table)
    values = map(_typed, table.key_types, names)
    is_listed = sql.SQL("({}) in (select {} from {})").format(
        _key(table), sql.SQL(", ").join(values), _listed_keys(table)
    )
    return _select(table, [(is_listed, _columns(keys))], sql.SQL(""))


def canonical_keys(table: SourceTable, keys: Sequence[Sequence[str]]) -> Statement:
    """
    Return the statement that converts keys to the canonical texts of their columns.

    The statement fails for an impossible key.
    """
    values = [
        _written(type_, _typed(type_, name))
        for type_, name in zip(table.key_types, _key_names(table), strict=True)
    ]
    text = sql.SQL("select {} from {} order by number").format(
        sql.SQL(", ").join(values), _listed_keys(table)
    )
    return Statement(text, _columns(keys))


def random_share(table: SourceTable, share: float) -> Statement:
    """Return the statement that reads a random share of the rows."""
    return _select(table, [(sql.SQL("random() < %s"), [share])], sql.SQL(""))


def random_rows(table: SourceTable, rows: int) -> Statement:
    """Return the statement that reads a number of random rows."""
    tail = sql.SQL(" order by random() limit {}").format(sql.Literal(rows))
    return _select(table, [], tail)


def _select(
    table: SourceTable,
    where: list[tuple[sql.Composable, list[object]]],
    tail: sql.Composable,
) -> Statement:
    if table.only is not None:
        where = [_filtered(table.only), *where]
    conditions = sql.SQL(" and ").join([condition for condition, _ in where])
    text = sql.SQL("select {} from {} {} as read {} {}{}").format(
        sql.SQL(", ").join(_text(column) for column in table.columns),
        # ``only`` leaves out the rows of tables that merely inherit from this one.
        sql.SQL("" if table.is_partitioned else "only"),
        _name(table.schema, table.name),
        sql.SQL("where" if where else ""),
        conditions,
        tail,
    )
    return Statement(text, [value for _, values in where for value in values])


def _filtered(only: RowFilter) -> tuple[sql.Composable, list[object]]:
    is_one = sql.SQL("{} = any(%s)").format(_name("read", only.column))
    if only.is_negated:
        is_one = sql.SQL("({}) is not true").format(is_one)
    return is_one, [list(only.values)]


def _listed_keys(table: SourceTable) -> sql.Composed:
    """Turn listed keys into rows of text; ``number`` is the position in the list."""
    names = _key_names(table)
    return sql.SQL("unnest({}) with ordinality as listed ({}, number)").format(
        sql.SQL(", ").join([sql.SQL("%s::text[]")] * len(names)),
        sql.SQL(", ").join(names),
    )


def _key_names(table: SourceTable) -> list[sql.Identifier]:
    return [sql.Identifier(f"k{index}") for index in range(len(table.key))]


def _columns(keys: Sequence[Sequence[str]]) -> list[object]:
    return [list(column) for column in zip(*keys, strict=True)]


def _key(table: SourceTable) -> sql.Composed:
    # Qualified by the table: the selected texts have the same names.
    return sql.SQL(", ").join(_name("read", name) for name in table.key)


def _typed(type_name: str, text: sql.Composable) -> sql.Composable:
    """Return the expression that turns a canonical text back into a value."""
    if type_name == "bytea":
        return sql.SQL("decode({}, 'base64')").format(text)
    # Unquoted, because the catalog returns type names as SQL.
    name = _WITHOUT_LENGTH.get(type_name, type_name)
    return sql.SQL("{}::{}").format(text, sql.SQL(name))


def _text(column: SourceColumn) -> sql.Composed:
    """Return the expression for a column's canonical text."""
    written = _written(column.type, _name("read", column.name))
    if not column.is_blank_null:
        return written
    return sql.SQL(r"case when {0} !~ '^\s*$' then {0} end").format(written)


def _written(type_name: str, value: sql.Composable) -> sql.Composed:
    """Return the expression for a value's canonical text."""
    return sql.SQL(_FORMS.get(type_name, "{value}::text")).format(value=value)


def _name(*parts: str) -> sql.Identifier:
    """Quote a name, with doubled percent signs: the statement has parameters."""
    return sql.Identifier(*(part.replace("%", "%%") for part in parts))
