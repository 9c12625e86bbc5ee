"""
The warehouse's catalog: its address for Spark and for pyiceberg, and its errors.

The catalog is a Postgres database (Spark uses JDBC, pyiceberg SQLAlchemy; schema
version 1 of the catalog supports views), or a server of the REST catalog API. Both
engines use the same catalog name, because the catalog's rows contain it.

Errors of a warehouse:

::

    TowpathError
    ├── UsageError
    │   └── WarehouseAddressError   the warehouse cannot use a url or a name
    └── HaltError
        ├── ForeignTableError       a table exists whose key or columns do not fit
        ├── PartitionFieldError     a table cannot be partitioned as configured
        └── ReservedColumnError     the warehouse reserves a column's name
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import RESTError
from sqlalchemy.exc import SQLAlchemyError

from towpath.schemas.failure import HaltError, UsageError
from towpath.settings import CatalogKind, Sink
from towpath.sinks.errors import TargetUnavailableError


class WarehouseAddressError(UsageError):
    """The catalog's url or a route's name has a form that the warehouse cannot use."""

    remedy = (
        "Write url as postgresql://user@host:port/database, or http://host:port for a "
        "REST catalog; name routes as schema.table."
    )


class ForeignTableError(HaltError):
    """A table exists whose key or columns do not fit the source's."""

    remedy = "Drop the warehouse's table, then fill the sink again with a snapshot."


class PartitionFieldError(HaltError):
    """
    A table cannot be partitioned as configured.

    The table lacks a partition column or has one of an unsuitable type, or no route
    has the name of the table.
    """

    remedy = "Correct the sink's warehouse.partition in towpath.toml."


class ReservedColumnError(HaltError):
    """
    A column of the source has a name that the warehouse cannot use.

    The warehouse reserves the name, or another column's name differs only in case.
    """

    remedy = "Rename the column in the source, or remove its table from the sink."


CATALOG: Final = "lake"

_POSTGRES: Final = ("postgresql", "postgres")
_WEB: Final = ("http", "https")
_DEFAULT_PORT: Final = 5432
_CATALOG_CONF: Final = f"spark.sql.catalog.{CATALOG}"


def catalog_conf(sink: Sink) -> dict[str, str]:
    """
    Return the configuration of a Spark session that writes to this warehouse.

    Caching is off: a cached table would hide commits of other sessions.

    Raises:
        WarehouseAddressError: The sink's url is not a valid address of its catalog.
    """
    jdbc = sink.warehouse.catalog is CatalogKind.JDBC
    properties = {
        **sink.warehouse.properties,
        **(_jdbc_properties(_postgres(sink.url)) if jdbc else _rest_properties(sink)),
        "warehouse": _location(sink),
        "cache-enabled": "false",
    }
    return {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        _CATALOG_CONF: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{_CATALOG_CONF}.{name}": value for name, value in properties.items()},
    }


def catalog_properties(sink: Sink) -> dict[str, str]:
    """
    Return the properties of a pyiceberg catalog of this warehouse.

    Raises:
        WarehouseAddressError: The sink's url is not a valid address of its catalog.
    """
    if sink.warehouse.catalog is CatalogKind.REST:
        uri = _rest_properties(sink)["uri"]
    else:
        uri = _postgres(sink.url)._replace(scheme="postgresql+psycopg").geturl()
    return {
        **sink.warehouse.properties,
        "uri": uri,
        "warehouse": _location(sink),
        "init_catalog_tables": "false",
    }


def _location(sink: Sink) -> str:
    return sink.warehouse.location or str(sink.folder)


def _rest_properties(sink: Sink) -> dict[str, str]:
    address = _split(sink.url)
    if address is None or address.scheme not in _WEB:
        message = "the url of the warehouse's REST catalog is not http(s)://host:port"
        raise WarehouseAddressError(message)
    return {"type": "rest", "uri": sink.url}


def _jdbc_properties(address: SplitResult) -> dict[str, str]:
    properties = {
        "type": "jdbc",
        "uri": _jdbc_url(address),
        "jdbc.schema-version": "V1",
    }
    if address.username:
        properties["jdbc.user"] = unquote(address.username)
    if address.password:
        properties["jdbc.password"] = unquote(address.password)
    return properties


def _postgres(url: str) -> SplitResult:
    address = _split(url)
    is_database = address is not None and address.path not in {"", "/"}
    if address is None or not is_database or address.scheme not in _POSTGRES:
        message = "the warehouse's url is not postgresql://user@host:port/database"
        raise WarehouseAddressError(message)
    return address


def _split(url: str) -> SplitResult | None:
    """Return the parts of an address; ``None`` if its host or port is invalid."""
    try:
        address = urlsplit(url)
        # Reading the port checks it.
        is_whole = bool(address.hostname) and address.port != 0
    except ValueError:
        return None
    return address if is_whole else None


def _jdbc_url(address: SplitResult) -> str:
    host = address.hostname or ""
    host = f"[{host}]" if ":" in host else host
    query = f"?{address.query}" if address.query else ""
    port = address.port or _DEFAULT_PORT
    return f"jdbc:postgresql://{host}:{port}{address.path}{query}"


# Postgres returns this error code if the catalog's tables were never created.
UNDEFINED_TABLE: Final = "42P01"


def open_catalog(sink: Sink) -> Catalog:
    """
    Open a warehouse's catalog.

    Raises:
        WarehouseAddressError: The sink's url is not a valid address of its catalog.
    """
    is_rest = sink.warehouse.catalog is CatalogKind.REST
    kind = RestCatalog if is_rest else SqlCatalog
    return kind(CATALOG, **catalog_properties(sink))


@contextmanager
def translated() -> Iterator[None]:
    """
    Turn the errors of the catalog and of files into ours.

    Raises:
        TargetUnavailableError: The catalog or the files cannot be read.
    """
    try:
        yield
    except SQLAlchemyError as error:
        message = "the warehouse's catalog does not answer"
        raise TargetUnavailableError(message) from error
    except RESTError as error:
        message = f"the warehouse's catalog refuses a call: {error}"
        raise TargetUnavailableError(message) from error
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"the warehouse cannot be read: {reason}"
        raise TargetUnavailableError(message) from error
