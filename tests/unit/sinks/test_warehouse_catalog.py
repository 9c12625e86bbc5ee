"""The settings of the writing and of the reading engine, from one address."""

import io
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow import parquet

from towpath.settings import Route, Sink, SinkKind
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.targets.warehouse.client import (
    ForeignTableError,
    WarehouseAddressError,
    catalog_conf,
    catalog_properties,
    translated,
)
from towpath.sinks.targets.warehouse.ddl import KEY_PROPERTY
from towpath.sinks.targets.warehouse.read import WarehouseReader


def warehouse(url, **options):
    """Describe a warehouse."""
    route = Route(topic="t", name="shop.orders")
    return Sink(
        name="w",
        kind=SinkKind.WAREHOUSE,
        url=url,
        folder="/data/w",
        warehouse=options,
        route=(route,),
    )


def catalog_settings(url, **options):
    """Return the catalog's own settings, without their common prefix."""
    conf = catalog_conf(warehouse(url, **options))
    begins = "spark.sql.catalog.lake."
    return {k.removeprefix(begins): v for k, v in conf.items() if k.startswith(begins)}


def test_the_writing_engine_uses_jdbc():
    """
    User and password are removed from the URL, caching is off, and views are supported.
    """
    assert catalog_settings(
        "postgresql://me:p%40ss@db:5433/warehouse?sslmode=require"
    ) == {
        "type": "jdbc",
        "uri": "jdbc:postgresql://db:5433/warehouse?sslmode=require",
        "jdbc.user": "me",
        "jdbc.password": "p@ss",
        "jdbc.schema-version": "V1",
        "warehouse": "/data/w",
        "cache-enabled": "false",
    }


def test_port_and_user_may_be_left_out():
    """
    The default port and the driver's own user are used.
    """
    assert ("jdbc:postgresql://db:5432/w", False) == (
        catalog_settings("postgres://db/w")["uri"],
        "jdbc.user" in catalog_settings("postgres://db/w"),
    )


def test_an_ipv6_address_keeps_its_brackets():
    """The brackets separate the host from the port."""
    assert (
        catalog_settings("postgresql://[::1]:5433/w")["uri"]
        == "jdbc:postgresql://[::1]:5433/w"
    )


def test_the_reading_engine_names_its_driver():
    """
    Only the scheme of the URL is changed, and reading creates nothing.
    """
    assert catalog_properties(warehouse("postgres://me:p%40ss@db/w")) == {
        "uri": "postgresql+psycopg://me:p%40ss@db/w",
        "warehouse": "/data/w",
        "init_catalog_tables": "false",
    }


@pytest.mark.parametrize(
    "url",
    [
        *("redis://x/1", "postgresql:///w", "postgresql://db", ""),
        *("postgresql://db:x/w", "postgresql://db:70000/w", "postgresql://[::1/w"),
    ],
)
def test_an_invalid_postgres_address_is_a_mistake(url):
    """
    The address is not repeated in the error, which has a remedy.
    """
    for read in (catalog_conf, catalog_properties):
        with pytest.raises(WarehouseAddressError, match="postgresql://user@host"):
            read(warehouse(url))


STORE = {"s3.endpoint": "http://s3:9000", "s3.access-key-id": "me"}


def test_an_object_store_and_a_rest_catalog_are_configured():
    """Both engines get the server, the location and the store's properties."""
    options = {"catalog": "rest", "location": "s3://lake/w", "properties": STORE}
    url = "https://catalog:8181/api"
    sink = warehouse(url, **options)

    assert catalog_settings(url, **options) == {
        **STORE,
        "type": "rest",
        "uri": url,
        "warehouse": "s3://lake/w",
        "cache-enabled": "false",
    }
    assert catalog_properties(sink) == {
        **STORE,
        "uri": url,
        "warehouse": "s3://lake/w",
        "init_catalog_tables": "false",
    }


def test_files_may_be_stored_elsewhere_than_the_catalog():
    """
    A Postgres catalog accepts a location in addition to a folder, and prefers it.
    """
    options = {"location": "s3://lake/w", "properties": STORE}
    conf = catalog_settings("postgresql://db/w", **options)

    assert ("jdbc", "s3://lake/w", "http://s3:9000") == (
        conf["type"],
        conf["warehouse"],
        conf["s3.endpoint"],
    )


@pytest.mark.parametrize(
    "url",
    [
        *("postgresql://db/w", "http://", "catalog:8181", ""),
        *("http://catalog:x", "http://[::1"),
    ],
)
def test_an_invalid_rest_address_is_a_mistake(url):
    """
    An invalid web address is reported with its remedy.
    """
    with pytest.raises(WarehouseAddressError, match="REST catalog"):
        catalog_conf(warehouse(url, catalog="rest"))


def test_a_broken_data_file_is_a_failure_of_the_warehouse():
    """
    Otherwise it would end the verification of all routes.
    """
    with pytest.raises(TargetUnavailableError, match="magic bytes"), translated():
        parquet.read_table(io.BytesIO(b"no table at all"))


def test_a_foreign_row_without_a_position_is_below_every_other(monkeypatch):
    """
    Another program inserted it, and filled only the columns that it knows.
    """
    batch = pa.RecordBatch.from_pydict(
        {"id": [7], "_position": pa.nulls(1, pa.string()), "_is_deleted": [False]}
    )
    reader = WarehouseReader(warehouse("postgresql://db/w"))
    monkeypatch.setattr(reader, "_table", lambda _: _stored(batch))

    assert [("7", "")] == [(row.key, row.position) for row in reader.rows("s.t")]


def test_a_table_without_a_column_of_its_key_cannot_be_read(monkeypatch):
    """
    Its owner has renamed the column; the other routes are still verified.
    """
    batch = pa.RecordBatch.from_pydict({"number": [7]})
    reader = WarehouseReader(warehouse("postgresql://db/w"))
    monkeypatch.setattr(reader, "_table", lambda _: _stored(batch))

    for read in (reader.rows("s.t"), reader.at("s.t", ["7"])):
        with pytest.raises(ForeignTableError, match=r"s\.t lacks the key column id"):
            list(read)


def _stored(batch):
    """Return a table with the key ``id``, and the given rows."""
    return SimpleNamespace(
        name=lambda: ("s", "t"),
        properties={KEY_PROPERTY: '["id"]'},
        scan=lambda _: SimpleNamespace(to_arrow_batch_reader=lambda: [batch]),
        schema=lambda: SimpleNamespace(column_names=batch.schema.names),
    )
