r"""
Encode changes, events and plain records as rows of a batch, in COPY's text format.

The target's Postgres parses every value: it reads the text that a record carries, so
nothing is rounded or cut here. Only NULL (``\N``) and four characters are escaped.

Hot path: a fixed number of passes over the columns of a batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from towpath.sinks.change import Change, EventRow, Value
from towpath.sinks.changes.columns import Columns, read_rows
from towpath.sinks.key_text import text_of
from towpath.sinks.targets.postgres.schema import (
    IS_DELETED,
    KEPT,
    POSITION,
    ROW_NUMBER,
    TargetColumn,
    TargetTable,
)

_TEXT: Final = pa.large_string()
_NULL: Final = "\\N"
# The backslash comes first, because the other escapes contain one.
_ESCAPES: Final = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_ESCAPED: Final = r"[\\\t\n\r]"

# The types of values that are not strings in a record's JSON, by the target's type.
_IN_JSON: Final[Mapping[str, pa.DataType]] = {
    "bigint": pa.int64(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
}


class EncodedBatch(NamedTuple):
    """
    Rows for the temporary table of a batch.

    Attributes:
        rows: The text of each value, by column.
        kept: The columns whose stored value at least one row of the batch keeps.
    """

    rows: pa.Table
    kept: set[str]


class PlainRows(NamedTuple):
    """Whole rows of plain records, and the indexes of the records in the batch."""

    rows: pa.Table
    indices: pa.Array


def encode_changes(table: TargetTable, changes: Sequence[Change]) -> EncodedBatch:
    """Encode changes; a column that the table does not have is left out."""
    fields = [_fields(table, change) for change in changes]
    columns = {
        column.name: _texts(row.get(column.name) for row in fields)
        for column in table.columns
    }
    names = {column.name for column in table.columns}
    kept = [change.unchanged & names for change in changes]
    columns[POSITION] = pa.array([change.position for change in changes], _TEXT)
    columns[IS_DELETED] = _texts(change.row is None for change in changes)
    columns[KEPT] = pa.array(
        [
            _array_text(one) if change.unchanged else None
            for change, one in zip(changes, kept, strict=True)
        ],
        _TEXT,
    )
    columns[ROW_NUMBER] = _texts(range(len(changes)))
    return EncodedBatch(pa.table(columns), set().union(*kept))


def encode_events(table: TargetTable, events: Sequence[EventRow]) -> pa.Table:
    """Encode events as rows of an event log."""
    return pa.table(
        {
            column.name: _texts(getattr(event, column.name) for event in events)
            for column in table.columns
        }
    )


def encode_columns(table: TargetTable, columns: Columns) -> PlainRows | None:
    """
    Encode the whole rows of plain records; ``None`` if they must be read as changes.

    Rows with lists or objects must be read as changes, because these values are not
    strings in JSON.
    """
    wanted = pa.struct([(c.name, _in_json(c)) for c in table.columns])
    try:
        read = read_rows(columns, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None
    # Rows with fields that the table lacks are read as changes, which logs the fields.
    if read.rows.type.num_fields != wanted.num_fields:
        return None
    rows = read.rows.filter(read.is_whole)
    texts = {c.name: rows.field(c.name).cast(_TEXT) for c in table.columns}
    texts[POSITION] = columns.positions.filter(read.is_whole).cast(_TEXT)
    texts[IS_DELETED] = pa.repeat(pa.scalar("false", _TEXT), len(rows))
    return PlainRows(pa.table(texts), columns.indices.filter(read.is_whole))


def copy_text(rows: pa.Table) -> bytes:
    """Return the rows, which must not be empty, in the text format of COPY."""
    columns = [_escaped(column.combine_chunks()) for column in rows.columns]
    lines = pc.binary_join_element_wise(
        *columns,
        pa.scalar("\t", _TEXT),
        null_handling="replace",
        null_replacement=_NULL,
    ).cast(pa.large_binary())
    every = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    joined = pc.binary_join(every, pa.scalar(b"\n", lines.type))[0]
    return bytes(joined.as_buffer()) + b"\n"


def _fields(table: TargetTable, change: Change) -> Mapping[str, Value]:
    """Return the row, or the key of a delete; for an aggregate, its id and document."""
    if not change.key_columns:
        document = None
        if change.row is not None:
            document = (change.text or orjson.dumps(dict(change.row))).decode()
        return {table.key[0]: text_of(change.key[0]), "document": document}
    if change.row is None:
        return dict(zip(change.key_columns, change.key, strict=True))
    return change.row


def _texts(values: Iterable[Value]) -> pa.Array:
    texts = [v if v is None or type(v) is str else text_of(v) for v in values]
    return pa.array(texts, _TEXT)


def _array_text(names: Iterable[str]) -> str:
    """Return names as the literal of a Postgres array."""
    quoted = (
        '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"' for name in names
    )
    return "{" + ",".join(quoted) + "}"


def _in_json(column: TargetColumn) -> pa.DataType:
    return _IN_JSON.get(column.type, pa.string())


def _escaped(texts: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
        return texts
    for character, escape in _ESCAPES:
        texts = pc.replace_substring(texts, character, escape)
    return texts
