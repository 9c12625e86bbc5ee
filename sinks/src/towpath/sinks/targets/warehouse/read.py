"""
Read back the rows of the warehouse, without the engine that merges them.

Values have the form of records: integers, floats and booleans as such, everything else
as text. An event log is read like a table; its column ``position`` has the positions.
"""

import base64
import json
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    In,
)
from pyiceberg.expressions.literals import literal
from pyiceberg.table import Table
from pyiceberg.types import BinaryType, IcebergType, TimestamptzType
from sqlalchemy.exc import DatabaseError

from towpath.settings import Sink
from towpath.sinks.key_text import key_parts, key_text
from towpath.sinks.ports import StoredRow
from towpath.sinks.targets.warehouse.client import (
    UNDEFINED_TABLE,
    ForeignTableError,
    catalog_properties,
    open_catalog,
    translated,
)
from towpath.sinks.targets.warehouse.ddl import KEY_PROPERTY
from towpath.sinks.targets.warehouse.rows import values_of
from towpath.sinks.targets.warehouse.schema import IS_DELETED, POSITION, lake_name

# A scan may read the whole table, however few the keys are.
KEYS_PER_SCAN: Final = 20_000

_LOG_POSITION: Final = "position"


class WarehouseReader:
    """Reads the rows of one warehouse while a sink may write to it."""

    def __init__(self, sink: Sink) -> None:
        """
        Describe the warehouse; nothing is opened yet.

        Raises:
            WarehouseAddressError: The sink's url is not a valid address of its catalog.
        """
        catalog_properties(sink)  # raises for a wrong address
        self._sink = sink
        self._opened: Catalog | None = None

    def rows(self, route: str) -> Iterator[StoredRow]:
        """
        Yield all rows of a route's table, tombstones included.

        A missing table has no rows. A row that is stored twice is yielded twice.
        """
        with translated():
            table = self._table(route)
        if table is not None:
            yield from _scan(table, AlwaysTrue())

    def at(self, route: str, keys: Iterable[str]) -> Iterator[StoredRow]:
        """
        Yield the rows of the given keys, as ``rows`` does.

        Raises:
            TargetUnavailableError: The catalog or the files cannot be read.
        """
        remaining = iter(keys)
        while batch_keys := set(islice(remaining, KEYS_PER_SCAN)):
            with translated():
                table = self._table(route)
            if table is None:
                return
            found = _scan(table, _may_match(table, batch_keys))
            yield from (row for row in found if row.key in batch_keys)

    def sample(self, route: str, count: int) -> Iterator[StoredRow]:
        """
        Yield about ``count`` random rows, as ``rows`` does.

        Raises:
            TargetUnavailableError: The catalog or the files cannot be read.
        """
        with translated():
            table = self._table(route)
            summary = None if table is None else table.current_snapshot()
        if table is None or summary is None or summary.summary is None:
            return
        rows = int(summary.summary["total-records"] or 0)
        yield from _scan(table, AlwaysTrue(), count / max(1, rows))

    def close(self) -> None:
        """Close the catalog's connections."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _table(self, route: str) -> Table | None:
        if self._opened is None:
            self._opened = open_catalog(self._sink)
        try:
            return self._opened.load_table(tuple(lake_name(route)))
        except NoSuchTableError:
            return None
        except DatabaseError as error:
            # Before the first write the catalog itself has no tables.
            if getattr(error.orig, "sqlstate", None) == UNDEFINED_TABLE:
                return None
            raise


def _scan(
    table: Table, condition: BooleanExpression, share: float = 1.0
) -> Iterator[StoredRow]:
    """Yield rows, or a random share of them."""
    with translated():
        batches = iter(table.scan(condition).to_arrow_batch_reader())
    key = _key(table)
    while True:
        with translated():
            batch = next(batches, None)
        if batch is None:
            return
        if share < 1:
            picked = [n for n in range(batch.num_rows) if random.random() < share]  # noqa: S311 - no secret
            batch = batch.take(pa.array(picked, pa.int64()))
        yield from _stored(batch, key)


def _key(table: Table) -> tuple[str, ...]:
    """
    Return the key of a table.

    Raises:
        ForeignTableError: No sink has created the table, or it lacks a key column.
    """
    stored = table.properties.get(KEY_PROPERTY)
    name = ".".join(table.name())
    if stored is None:
        message = f"{name} exists, but no sink has created it"
        raise ForeignTableError(message)
    key = tuple(json.loads(stored))
    if lacking := ", ".join(sorted(set(key).difference(table.schema().column_names))):
        message = f"{name} lacks the key column {lacking}"
        raise ForeignTableError(message)
    return key


def _may_match(table: Table, keys: Iterable[str]) -> BooleanExpression:
    """Return a condition that all rows of these keys meet, and others may meet, too."""
    names = _key(table)
    types = [table.schema().find_type(name) for name in names]
    parts = [key for key in map(key_parts, keys) if len(key) == len(names)]
    condition: BooleanExpression = AlwaysTrue() if parts else AlwaysFalse()
    for name, kind, texts in zip(names, types, zip(*parts, strict=True), strict=False):
        try:
            values = {_value(kind, text) for text in texts}
        except (ValueError, TypeError, ArithmeticError):
            # A value cannot be represented, such as a year before 1 or after 9999: this
            # column excludes no rows.
            continue
        among = In(name, values)  # type: ignore[call-arg,arg-type] # its own __init__
        condition = And(condition, among)
    return condition


def _value(kind: IcebergType, text: str) -> Any:  # noqa: ANN401 - of any type
    """Return the value that a key's text has in a column of this type."""
    if isinstance(kind, BinaryType):
        return base64.b64decode(text, validate=True)
    if isinstance(kind, TimestamptzType):
        text = text.removesuffix("Z") + "+00:00"
    return literal(text).to(kind).value


def _stored(batch: pa.RecordBatch, key: tuple[str, ...]) -> Iterator[StoredRow]:
    names = batch.schema.names
    columns = [values_of(column) for column in batch.columns]
    for values in zip(*columns, strict=True):
        fields = dict(zip(names, values, strict=True))
        text = key_text([fields[name] for name in key])
        is_deleted = bool(fields.pop(IS_DELETED, False))
        position = fields.pop(POSITION, None) or fields.get(_LOG_POSITION)
        yield StoredRow(text, fields, str(position or ""), is_deleted)
