"""
The queries that read a table, built from its shape.

Keys are compared by the server alone, in the columns' own types and collations: as rows
(``(a, b) > (x, y)``, never ``a > x and b > y``), with the text of a key cast to its
column's type. COPY takes no parameters, so values are written as literals.
"""
# ruff: noqa: S608 - names and literals are quoted here; the filter is the signal's SQL

from collections.abc import Iterable

from towpath.relay.snapshot.effects import ReadChunk
from towpath.relay.snapshot.shape import Key, TableShape


def chunk_query(ask: ReadChunk, shape: TableShape) -> str:
    """Return the COPY that reads a chunk, in key order and with the shape of now."""
    names = _row(map(quoted_name, shape.relation.key_names))
    if ask.keys:
        listed = ", ".join(_literals(shape, key) for key in ask.keys)
        # A list of rows is planned as one OR for each: eight times slower for 500.
        rows = listed if len(shape.key_types) == 1 else f"values {listed}"
        bounds, limit = [f"{names} in ({rows})"], ""
    else:
        ends = ((">", ask.after_key), ("<=", ask.maximum_key))
        bounds = [
            f"{names} {sign} {_literals(shape, key)}" for sign, key in ends if key
        ]
        limit = f" limit {ask.max_rows}"
    if ask.condition:
        bounds.insert(0, f"({ask.condition}\n)")
    where = f" where {' and '.join(bounds)}" if bounds else ""
    source, order = table_source(shape), _order(shape, "")
    query = f"select {_columns(shape)} from {source}{where} order by {order}{limit}"
    return f"copy ({query}) to stdout"


def spelling_query(keys: Iterable[Key], shape: TableShape) -> str:
    """Return the COPY that reads keys as the server writes them; no table is read."""
    listed = ", ".join(_literals(shape, key) for key in keys)
    return f"copy (values {listed}) to stdout"


def maximum_key_query(shape: TableShape) -> str:
    """Return the COPY that reads the highest key."""
    names = ", ".join(map(quoted_name, shape.relation.key_names))
    order = _order(shape, " desc")
    query = f"select {names} from {table_source(shape)} order by {order} limit 1"
    return f"copy ({query}) to stdout"


def estimate_query(shape: TableShape, condition: str | None) -> str:
    """Return the EXPLAIN that tells how many rows the server expects."""
    where = f" where ({condition}\n)" if condition else ""
    return f"explain (format json) select 1 from {table_source(shape)}{where}"


def lock_statement(shape: TableShape) -> str:
    """Return what keeps the table from being altered or rewritten meanwhile."""
    return f"lock table {table_source(shape)} in access share mode"


def table_source(shape: TableShape) -> str:
    """Name the table in a FROM: children of plain inheritance are other tables."""
    relation = shape.relation
    name = f"{quoted_name(relation.schema)}.{quoted_name(relation.table)}"
    return name if shape.partitioned else f"only {name}"


def quoted_name(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """Quote a string; ``standard_conforming_strings`` is on."""
    return "'" + text.replace("'", "''") + "'"


def _columns(shape: TableShape) -> str:
    return ", ".join(quoted_name(column.name) for column in shape.relation.columns)


def _order(shape: TableShape, direction: str) -> str:
    names = map(quoted_name, shape.relation.key_names)
    return ", ".join(f"{name}{direction}" for name in names)


def _literals(shape: TableShape, key: Key) -> str:
    parts = zip(key, shape.key_types, strict=True)
    return _row(f"{quoted_text(part.decode())}::{kind}" for part, kind in parts)


def _row(parts: Iterable[str]) -> str:
    return f"({', '.join(parts)})"
