r"""
The queries that read a table, and the decoder of their COPY text.

Only the server compares keys, in the columns' own types and collations: as rows
(``(a, b) > (x, y)``, never ``a > x and b > y``), with the text of a key cast to its
column's type. COPY takes no parameters, so values are written as literals.

A table has two keys, which are usually the same. Lists of keys use the key that
identifies a row. All bounds use the key in whose order the table is read.

In COPY's text format, a line holds columns separated by tabs and ends with a newline.
``\N`` alone is NULL. In a value, a backslash begins an escape: ``\b \f \n \r \t \v``
are control characters, one to three octal digits or ``x`` and one or two hex digits are
a byte, and any other character stands for itself. The decoded bytes are those of the
stream.
"""

import re
from collections.abc import Iterable
from types import MappingProxyType
from typing import Final, NamedTuple

from towpath.relay.snapshot.protocol import ReadChunk
from towpath.relay.snapshot.shape import Key, RowValues, TableShape
from towpath.schemas.table_name import TableName, quoted

# ruff: noqa: S608 - names and literals are quoted here; filters are the signal's SQL


# The start of the server's text form of bytes; base64 never begins with it.
_HEX_PREFIX: Final = "\\x"


class _Columns(NamedTuple):
    """The columns of a key: their names, and their types as SQL spells them."""

    names: tuple[str, ...]
    types: tuple[str, ...]

    @property
    def row(self) -> str:
        return _row(self.names)

    def ordered(self, direction: str = "") -> str:
        return ", ".join(f"{name}{direction}" for name in self.names)

    def literals(self, key: Key) -> str:
        parts = zip(key, self.types, strict=True)
        return _row(_literal(part.decode(), kind) for part, kind in parts)


def chunk_query(request: ReadChunk, shape: TableShape) -> str:
    """Return the COPY that reads a chunk in order, with the table's current shape."""
    order = _order_columns(shape)
    if request.keys:
        bounds, limit = [_listed(_key_columns(shape), request.keys)], ""
    else:
        ends = ((">", request.after_key), ("<=", request.maximum_key))
        bounds = [
            f"{order.row} {sign} {order.literals(key)}" for sign, key in ends if key
        ]
        limit = f" limit {request.max_rows + spare_rows(request)}"
    # A listed row that the filter leaves out still exists: it must not count as absent.
    condition = None if request.keys else request.condition
    where = _where(shape, condition, *bounds)
    columns = ", ".join(quoted(column.name) for column in shape.relation.columns)
    source = _source(shape, request.select)
    query = f"select {columns} from {source}{where} order by {order.ordered()}{limit}"
    return f"copy ({query}) to stdout"


def spare_rows(request: ReadChunk) -> int:
    """
    Return the number of rows to read beyond a chunk, which are not delivered with it.

    A view or a SELECT may return two rows for one key. The spare row shows whether the
    chunk ends between two such rows.
    """
    return int(request.shape.view is not None or request.select is not None)


def spelling_query(keys: Iterable[Key], shape: TableShape) -> str:
    """Return the COPY that reads keys as the server writes them; no table is read."""
    listed = ", ".join(map(_key_columns(shape).literals, keys))
    return f"copy (values {listed}) to stdout"


def maximum_key_query(shape: TableShape, select: str | None = None) -> str:
    """Return the COPY that reads the highest key, or a null key if a row has one."""
    order = _order_columns(shape)
    names, source = ", ".join(order.names), _source(shape, select)
    query = (
        f"select {names} from {source}{_where(shape, None)}"
        f" order by {order.ordered(' desc')} limit 1"
    )
    return f"copy ({query}) to stdout"


def estimate_query(
    shape: TableShape, condition: str | None, select: str | None = None
) -> str:
    """Return the EXPLAIN whose plan contains the row count that the server expects."""
    where = _where(shape, condition)
    return f"explain (format json) select 1 from {_source(shape, select)}{where}"


def boundaries_query(
    shape: TableShape,
    condition: str | None,
    maximum_key: Key,
    parts: int,
    sample_percent: float,
) -> str:
    """
    Return the COPY that splits the range below the maximum key into parts.

    A sample of the table's pages is sorted and split into equal parts; the last row of
    each part but the last is a boundary. With fewer than a hundred sampled rows per
    part there are no boundaries: few rows match the condition, or their number is
    unknown.
    """
    order = _order_columns(shape)
    named = [f"{name} as k{at}" for at, name in enumerate(order.names)]
    keys = ", ".join(f"k{at}" for at in range(len(named)))
    where = _where(shape, condition, f"{order.row} < {order.literals(maximum_key)}")
    sample = (
        f"select {', '.join(named)},"
        f" row_number() over (order by {order.ordered()}) as place,"
        " count(*) over () as total"
        f" from {table_source(shape)} tablesample system ({sample_percent:.6f}){where}"
    )
    query = (
        f"select {keys} from ({sample}) sampled"
        f" where total >= {100 * parts} and place < total"
        f" and place * {parts} / total > (place - 1) * {parts} / total order by place"
    )
    return f"copy ({query}) to stdout"


def lock_statement(shape: TableShape) -> str:
    """
    Return the statement that locks the table against being altered or rewritten.

    A view is locked together with the relations that it reads.
    """
    return f"lock table {table_source(shape)} in access share mode"


def table_source(shape: TableShape) -> str:
    """Return the table for a FROM clause, without the children of plain inheritance."""
    if shape.view is not None:
        return TableName.parse(shape.view.name).sql
    name = shape.relation.full_name.sql
    return name if shape.partitioned else f"only {name}"


def _literal(text: str, kind: str) -> str:
    """Return a literal of a key's value; the text of ``bytea`` is hex or base64."""
    if kind == "bytea" and not text.startswith(_HEX_PREFIX):
        return f"decode({quoted_text(text)}, 'base64')"
    return f"{quoted_text(text)}::{kind}"


def quoted_text(text: str) -> str:
    """Quote a string; ``standard_conforming_strings`` is on."""
    return "'" + text.replace("'", "''") + "'"


def _key_columns(shape: TableShape) -> _Columns:
    names = tuple(map(quoted, shape.relation.key_names))
    return _Columns(names, shape.key_types)


def _order_columns(shape: TableShape) -> _Columns:
    if not shape.order:
        return _key_columns(shape)
    columns = shape.relation.columns
    names = tuple(quoted(columns[place].name) for place in shape.order)
    return _Columns(names, shape.order_types)


def _source(shape: TableShape, select: str | None) -> str:
    """Return the source of rows; a newline ends a comment at a SELECT's end."""
    if select is None:
        return table_source(shape)
    return f"({select.rstrip().rstrip(';')}\n) selected"


def _where(shape: TableShape, condition: str | None, *bounds: str) -> str:
    """Join conditions; a newline ends a comment at the end of a condition."""
    filters = [shape.row_filter] if shape.row_filter else []
    filters += [condition] if condition else []
    whole = [*(f"({each}\n)" for each in filters), *bounds]
    return f" where {' and '.join(whole)}" if whole else ""


def _listed(key: _Columns, keys: Iterable[Key]) -> str:
    listed = ", ".join(map(key.literals, keys))
    # Postgres plans a list of rows as an OR of comparisons, which takes eight times as
    # long for 500 rows as a VALUES list.
    rows = listed if len(key.names) == 1 else f"values {listed}"
    return f"{key.row} in ({rows})"


def _row(parts: Iterable[str]) -> str:
    return f"({', '.join(parts)})"


_TAB: Final = b"\t"
_BACKSLASH: Final = b"\\"
_NULL: Final = rb"\N"
_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)
_CONTROL: Final = MappingProxyType(
    {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
)


def decode_lines(lines: Iterable[bytes]) -> list[RowValues]:
    """Return the values of lines that still end with a newline. Hot path."""
    return [
        tuple(line[:-1].split(_TAB))
        if _BACKSLASH not in line
        else tuple(
            [
                field
                if _BACKSLASH not in field
                else None
                if field == _NULL
                else _ESCAPE.sub(_unescape, field)
                for field in line[:-1].split(_TAB)
            ]
        )
        for line in lines
    ]


def _unescape(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    if escape[:1] in b"01234567":
        return bytes((int(escape, 8) & 0xFF,))
    if escape[:1] == b"x" and len(escape) > 1:
        return bytes((int(escape[1:], 16),))
    return _CONTROL.get(escape, escape)
