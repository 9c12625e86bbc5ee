"""Takes away what a sink wrote into the warehouse: tables, views and their files."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, NoSuchViewError
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from towpath.settings import Sink
from towpath.sinks.warehouse.catalog import CATALOG
from towpath.sinks.warehouse.connect import UNDEFINED_TABLE, open_catalog, translated
from towpath.sinks.warehouse.tables import LakeName, lake_name

# The reading engine knows views of servers only; this is its writer's own list.
_DROP_VIEW: Final = text(
    "DELETE FROM iceberg_tables WHERE catalog_name = :catalog"
    " AND table_namespace = :namespace AND table_name = :view"
    " AND iceberg_type = 'VIEW'"
)


def erase(sink: Sink, _prefix: str) -> None:
    """
    Take a sink's tables away; safe to repeat. Nobody may write meanwhile.

    Raises:
        UnavailableError: The catalog or the files cannot be read: do it again.
    """
    with translated():
        catalog = open_catalog(sink)
        try:
            for route in sink.route:
                name = lake_name(route.name)
                _drop_view(catalog, name.live)
                _drop_table(catalog, name)
        finally:
            catalog.close()


def _drop_table(catalog: Catalog, name: LakeName) -> None:
    with _unless_absent():
        catalog.purge_table(tuple(name))


def _drop_view(catalog: Catalog, name: LakeName) -> None:
    if not isinstance(catalog, SqlCatalog):
        with _unless_absent():
            catalog.drop_view(tuple(name))
        return
    told = {"catalog": CATALOG, "namespace": name.namespace, "view": name.table}
    with _unless_absent(), catalog.engine.begin() as connection:
        connection.execute(_DROP_VIEW, told)


@contextmanager
def _unless_absent() -> Iterator[None]:
    """Take what is not there for gone."""
    try:
        yield
    except (NoSuchTableError, NoSuchViewError):
        return
    except ProgrammingError as error:
        # Before the first write there is not even a list of tables.
        if getattr(error.orig, "sqlstate", None) != UNDEFINED_TABLE:
            raise
