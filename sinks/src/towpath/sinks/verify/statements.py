"""
The statements that read a table of the source: columns as canonical text, keys typed.

A key comes back as the text that was read, and is compared in the columns' own types
and collations, never here.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, LiteralString, NamedTuple

from psycopg import sql

from towpath.sinks.verify.table import (
    TEXT_IN_BYTES,
    UTC_TIMESTAMP,
    Limit,
    SourceColumn,
    SourceTable,
)

_TIMES: Final[LiteralString] = """
    case when not isfinite({value}) then {value}::text
         else to_char({moment}, 'YYYY-MM-DD"T"HH24:MI:SS.US{zone}')
              || case when extract(year from {moment}) < 0 then ' BC' else '' end
    end
"""
_IN_UTC: Final[LiteralString] = "({value} at time zone 'UTC')"
_INTERVAL: Final[LiteralString] = """
    case when isfinite({value}) then
        'P' || extract(year from {value})::bigint || 'Y'
            || extract(month from {value})::bigint || 'M'
            || extract(day from {value})::bigint || 'DT'
            || extract(hour from {value})::bigint || 'H'
            || extract(minute from {value})::bigint || 'M'
            || trim_scale(extract(second from {value})) || 'S'
         else {value}::text
    end
"""
_AS_PRINTED: Final[LiteralString] = (
    "case when {value} is not null then concat({value}) end"
)
# Types with other texts in records than Postgres' own.
_FORMS: Final[Mapping[str, LiteralString]] = MappingProxyType(
    {
        "timestamp with time zone": _TIMES.replace("{moment}", _IN_UTC).replace(
            "{zone}", '"Z"'
        ),
        "timestamp without time zone": _TIMES.replace("{moment}", "{value}").replace(
            "{zone}", ""
        ),
        UTC_TIMESTAMP: _TIMES.replace("{moment}", "{value}").replace("{zone}", '"Z"'),
        # Always in one zone, so that its name has always three characters.
        "time with time zone": "left(" + _IN_UTC + "::text, -3) || 'Z'",
        "interval": _INTERVAL,
        "money": "{value}::numeric::text",
        # Postgres breaks base64 into lines.
        "bytea": r"translate(encode({value}, 'base64'), E'\n', '')",
        TEXT_IN_BYTES: "convert_from({value}, 'UTF8')",
        # A cast would cut the padding off, which is part of the value's text, would add
        # the size of a network that an address has not, and would keep the encoding
        # that a document declares.
        "character": _AS_PRINTED,
        "inet": _AS_PRINTED,
        "xml": _AS_PRINTED,
    }
)

# As the name of a type these would mean a length of one.
_WITHOUT_LENGTH: Final = {"character": "bpchar", "bit": '"bit"'}


class Statement(NamedTuple):
    """A statement and its parameters."""

    text: sql.Composed
    parameters: list[object]


def whole(table: SourceTable) -> Statement:
    """Read all rows, in key order."""
    return _select(table, [], sql.SQL(" order by {}").format(_key(table)))


def part(table: SourceTable, after: Sequence[str] | None, rows: int) -> Statement:
    """Read the next rows in key order, behind a key."""
    tail = sql.SQL(" order by {} limit {}").format(_key(table), sql.Literal(rows))
    if after is None:
        return _select(table, [], tail)
    values = [_typed(type_, sql.SQL("%s::text")) for type_ in table.key_types]
    behind = sql.SQL("({}) > ({})").format(_key(table), sql.SQL(", ").join(values))
    return _select(table, [(behind, list(after))], tail)


def listed(table: SourceTable, keys: Sequence[Sequence[str]]) -> Statement:
    """Read the rows of some keys."""
    names = _key_names(table)
    values = map(_typed, table.key_types, names)
    asked = sql.SQL("({}) in (select {} from {})").format(
        _key(table), sql.SQL(", ").join(values), _listed_keys(table)
    )
    return _select(table, [(asked, _columns(keys))], sql.SQL(""))


def spelt(table: SourceTable, keys: Sequence[Sequence[str]]) -> Statement:
    """Write some keys as their columns would; fails for an impossible key."""
    values = [
        _written(type_, _typed(type_, name))
        for type_, name in zip(table.key_types, _key_names(table), strict=True)
    ]
    text = sql.SQL("select {} from {} order by place").format(
        sql.SQL(", ").join(values), _listed_keys(table)
    )
    return Statement(text, _columns(keys))


def share(table: SourceTable, share: float) -> Statement:
    """Read a random share of the rows."""
    return _select(table, [(sql.SQL("random() < %s"), [share])], sql.SQL(""))


def some(table: SourceTable, rows: int) -> Statement:
    """Read a number of random rows."""
    tail = sql.SQL(" order by random() limit {}").format(sql.Literal(rows))
    return _select(table, [], tail)


def _select(
    table: SourceTable,
    where: list[tuple[sql.Composable, list[object]]],
    tail: sql.Composable,
) -> Statement:
    if table.only is not None:
        where = [_limited(table.only), *where]
    conditions = sql.SQL(" and ").join([condition for condition, _ in where])
    text = sql.SQL("select {} from {} {} as read {} {}{}").format(
        sql.SQL(", ").join(_text(column) for column in table.columns),
        # Rows of tables that merely inherit are rows of those tables.
        sql.SQL("" if table.is_partitioned else "only"),
        _name(table.schema, table.name),
        sql.SQL("where" if where else ""),
        conditions,
        tail,
    )
    return Statement(text, [value for _, values in where for value in values])


def _limited(only: Limit) -> tuple[sql.Composable, list[object]]:
    is_one = sql.SQL("{} = any(%s)").format(_name("read", only.column))
    if only.is_of_others:
        is_one = sql.SQL("({}) is not true").format(is_one)
    return is_one, [list(only.values)]


def _listed_keys(table: SourceTable) -> sql.Composed:
    """Make rows of listed keys, a text each; ``place`` is where it was listed."""
    names = _key_names(table)
    return sql.SQL("unnest({}) with ordinality as asked ({}, place)").format(
        sql.SQL(", ").join([sql.SQL("%s::text[]")] * len(names)),
        sql.SQL(", ").join(names),
    )


def _key_names(table: SourceTable) -> list[sql.Identifier]:
    return [sql.Identifier(f"k{place}") for place in range(len(table.key))]


def _columns(keys: Sequence[Sequence[str]]) -> list[object]:
    return [list(column) for column in zip(*keys, strict=True)]


def _key(table: SourceTable) -> sql.Composed:
    # By the table's own columns: what is selected has the same names, and is text.
    return sql.SQL(", ").join(_name("read", name) for name in table.key)


def _typed(type_name: str, text: sql.Composable) -> sql.Composable:
    """Write the expression that gives a value again, of its canonical text."""
    if type_name == "bytea":
        return sql.SQL("decode({}, 'base64')").format(text)
    # The catalog's own name of the type.
    name = _WITHOUT_LENGTH.get(type_name, type_name)
    return sql.SQL("{}::{}").format(text, sql.SQL(name))


def _text(column: SourceColumn) -> sql.Composed:
    """Write the expression that gives a column's canonical text."""
    written = _written(column.type, _name("read", column.name))
    if not column.is_blank_null:
        return written
    return sql.SQL(r"case when {0} !~ '^\s*$' then {0} end").format(written)


def _written(type_name: str, value: sql.Composable) -> sql.Composed:
    """Write the expression that gives a value's canonical text."""
    return sql.SQL(_FORMS.get(type_name, "{value}::text")).format(value=value)


def _name(*parts: str) -> sql.Identifier:
    """Quote a name for a statement with parameters, where a percent sign is two."""
    return sql.Identifier(*(part.replace("%", "%%") for part in parts))
