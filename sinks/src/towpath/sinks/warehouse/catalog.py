"""
Where the warehouse keeps its list of tables: a Postgres database, by two doors.

The writing engine takes JDBC, the reading one SQLAlchemy; both must say the same
catalog name, because the list's rows carry it. Schema version 1 of that list knows
views. Pure.
"""

from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from towpath.settings import Sink
from towpath.sinks.warehouse.errors import WarehouseAddressError

CATALOG: Final = "lake"

_SCHEMES: Final = ("postgresql", "postgres")
_DEFAULT_PORT: Final = 5432
_HERE: Final = f"spark.sql.catalog.{CATALOG}"


def catalog_conf(sink: Sink) -> dict[str, str]:
    """
    Return what a Spark session must be told to write this warehouse.

    Caching is off: a cached table would hide what another session committed.

    Raises:
        WarehouseAddressError: The sink's url is not a Postgres address.
    """
    address = _address(sink.url)
    conf = {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        _HERE: "org.apache.iceberg.spark.SparkCatalog",
        f"{_HERE}.type": "jdbc",
        f"{_HERE}.uri": _jdbc_url(address),
        f"{_HERE}.jdbc.schema-version": "V1",
        f"{_HERE}.warehouse": str(sink.folder),
        f"{_HERE}.cache-enabled": "false",
    }
    if address.username:
        conf[f"{_HERE}.jdbc.user"] = unquote(address.username)
    if address.password:
        conf[f"{_HERE}.jdbc.password"] = unquote(address.password)
    return conf


def catalog_properties(sink: Sink) -> dict[str, str]:
    """
    Return what pyiceberg must be told to read this warehouse.

    Raises:
        WarehouseAddressError: The sink's url is not a Postgres address.
    """
    address = _address(sink.url)
    return {
        "uri": address._replace(scheme="postgresql+psycopg").geturl(),
        "warehouse": str(sink.folder),
        "init_catalog_tables": "false",
    }


def _address(url: str) -> SplitResult:
    address = urlsplit(url)
    is_postgres = address.scheme in _SCHEMES
    if not is_postgres or not address.hostname or address.path in {"", "/"}:
        message = "the warehouse's url is not postgresql://user@host:port/database"
        raise WarehouseAddressError(message)
    return address


def _jdbc_url(address: SplitResult) -> str:
    host = address.hostname or ""
    host = f"[{host}]" if ":" in host else host
    query = f"?{address.query}" if address.query else ""
    port = address.port or _DEFAULT_PORT
    return f"jdbc:postgresql://{host}:{port}{address.path}{query}"
