"""
Reads back what the warehouse holds, by a second engine that knows nothing of Spark.

Values come as records carry them: integers, floats and booleans as such, everything
else as text. An event log is read like a table; its ``position`` is the row's.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo
from pyiceberg.table import Table
from sqlalchemy.exc import DatabaseError, SQLAlchemyError

from towpath.settings import Sink
from towpath.sinks.change import Value
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.key_text import key_text
from towpath.sinks.ports import StoredRow
from towpath.sinks.warehouse.catalog import CATALOG, catalog_properties
from towpath.sinks.warehouse.ddl import KEY_PROPERTY
from towpath.sinks.warehouse.tables import (
    IS_DELETED,
    POSITION,
    lake_name,
)
from towpath.sinks.warehouse.values import values_of

_LOG_POSITION: Final = "position"
_UNDEFINED_TABLE: Final = "42P01"


class WarehouseReader:
    """One warehouse, read while it may be written."""

    def __init__(self, sink: Sink) -> None:
        """
        Describe the warehouse; nothing is opened yet.

        Raises:
            WarehouseAddressError: The sink's url is not a Postgres address.
        """
        self._properties = catalog_properties(sink)
        self._opened: SqlCatalog | None = None

    def rows(self, route: str) -> Iterator[StoredRow]:
        """
        Go through all rows of a route's table once, as of now.

        A table that does not exist holds nothing. A row that stands there twice comes
        twice.
        """
        return self._scan(route, AlwaysTrue())

    def get(self, route: str, key: Sequence[Value]) -> StoredRow | None:
        """
        Return the row of one key, deleted or not.

        Raises:
            TargetUnavailableError: The catalog or the files cannot be read.
        """
        with translated():
            table = self._table(route)
        if table is None:
            return None
        condition: BooleanExpression = AlwaysTrue()
        for name, value in zip(_key(table), key, strict=True):
            equal = EqualTo(name, value)  # type: ignore[call-arg,arg-type] # its own __init__
            condition = And(condition, equal)
        return next(self._scan(route, condition), None)

    def close(self) -> None:
        """Let go of the catalog's connections."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _scan(self, route: str, condition: BooleanExpression) -> Iterator[StoredRow]:
        with translated():
            table = self._table(route)
            if table is None:
                return
            batches = iter(table.scan(condition).to_arrow_batch_reader())
            key = _key(table)
        while True:
            with translated():
                batch = next(batches, None)
            if batch is None:
                return
            yield from _stored(batch, key)

    def _table(self, route: str) -> Table | None:
        if self._opened is None:
            self._opened = SqlCatalog(CATALOG, **self._properties)
        try:
            return self._opened.load_table(tuple(lake_name(route)))
        except NoSuchTableError:
            return None
        except DatabaseError as error:
            # Before the first write there is not even a list of tables.
            if getattr(error.orig, "sqlstate", None) == _UNDEFINED_TABLE:
                return None
            raise


@contextmanager
def translated() -> Iterator[None]:
    """
    Turn the errors of catalog and files into ours.

    Raises:
        TargetUnavailableError: The catalog or the files cannot be read.
    """
    try:
        yield
    except SQLAlchemyError as error:
        message = "the warehouse's catalog does not answer"
        raise TargetUnavailableError(message) from error
    except OSError as error:
        message = f"a file of the warehouse cannot be read: {error.strerror or error}"
        raise TargetUnavailableError(message) from error


def _key(table: Table) -> tuple[str, ...]:
    return tuple(json.loads(table.properties[KEY_PROPERTY]))


def _stored(batch: pa.RecordBatch, key: tuple[str, ...]) -> Iterator[StoredRow]:
    names = batch.schema.names
    columns = [values_of(column) for column in batch.columns]
    for values in zip(*columns, strict=True):
        fields = dict(zip(names, values, strict=True))
        place = key_text([fields[name] for name in key])
        is_deleted = bool(fields.pop(IS_DELETED, False))
        position = fields.pop(POSITION, None) or fields.get(_LOG_POSITION)
        yield StoredRow(place, fields, str(position), is_deleted)
