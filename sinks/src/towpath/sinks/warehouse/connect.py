"""The warehouse's list of tables, opened without the engine: by pyiceberg."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import RESTError
from sqlalchemy.exc import SQLAlchemyError

from towpath.settings import CatalogKind, Sink
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.warehouse.catalog import CATALOG, catalog_properties

# What Postgres says of a list of tables that was never made.
UNDEFINED_TABLE: Final = "42P01"


def open_catalog(sink: Sink) -> Catalog:
    """
    Open a warehouse's list of tables.

    Raises:
        WarehouseAddressError: The sink's url is not its catalog's address.
    """
    is_rest = sink.warehouse.catalog is CatalogKind.REST
    kind = RestCatalog if is_rest else SqlCatalog
    return kind(CATALOG, **catalog_properties(sink))


@contextmanager
def translated() -> Iterator[None]:
    """
    Turn the errors of catalog and files into ours.

    Raises:
        TargetUnavailableError: The catalog or the files cannot be read.
    """
    try:
        yield
    except (SQLAlchemyError, RESTError) as error:
        message = "the warehouse's catalog does not answer"
        raise TargetUnavailableError(message) from error
    except OSError as error:
        message = f"the warehouse cannot be read: {error.strerror or error}"
        raise TargetUnavailableError(message) from error
