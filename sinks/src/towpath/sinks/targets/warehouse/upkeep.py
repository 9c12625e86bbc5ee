"""
When a table is due for upkeep, and by which statements. Pure but for the clock.

Every commit adds a file or two and a list of replaced rows, and a reader opens them
all; every delete leaves a tombstone. There is one writer, so upkeep runs between its
batches and never meets one.

Takes away what a sink wrote into the warehouse: tables, views and their files.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, NoSuchViewError
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from towpath.schemas.clock import Clock
from towpath.settings import Sink, WarehouseOptions
from towpath.sinks.targets.warehouse.client import (
    CATALOG,
    UNDEFINED_TABLE,
    open_catalog,
    translated,
)
from towpath.sinks.targets.warehouse.schema import LakeName, lake_name, literal
from towpath.sinks.targets.warehouse.statements import purge

_FILE_COUNTS: Final = ("total-data-files", "total-delete-files")


@dataclass(frozen=True, slots=True)
class Task:
    """
    One table's upkeep.

    Attributes:
        name: The table.
        safe: Tombstones below it go; ``None`` if none may.
        orphans_before: Files that are older and that no version knows go; ``None`` if
            it is not time to look for them.
    """

    name: LakeName
    safe: str | None
    orphans_before: datetime | None


@dataclass(slots=True)
class _Care:
    """What is remembered of one table."""

    has_tombstones: bool
    since_s: float
    files: int = 0
    floor: int = 0
    purged: str = ""
    orphans_at_s: float | None = None


class Upkeep:
    """Remembers how each table stood after its last upkeep."""

    def __init__(self, options: WarehouseOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._tables: dict[LakeName, _Care] = {}
        self._safe = ""

    def take_on(self, name: LakeName, *, has_tombstones: bool) -> None:
        """Look after a table from now on."""
        if name not in self._tables:
            self._tables[name] = _Care(has_tombstones, self._clock.monotonic_s())

    def safe_below(self, position: str) -> None:
        """Take note that nothing below a position can come again."""
        self._safe = max(self._safe, position)

    def note(self, name: LakeName, summary: Mapping[str, str]) -> None:
        """Take in what a commit left behind."""
        self._tables[name].files = sum(int(summary.get(key, 0)) for key in _FILE_COUNTS)

    def due(self) -> Task | None:
        """Return the next table's upkeep: of the one that grew most, if any is due."""
        names = [name for name in self._tables if self._is_due(self._tables[name])]
        if not names:
            return None
        name = max(names, key=lambda n: self._growth(self._tables[n]))
        care = self._tables[name]
        return Task(
            name,
            (self._safe or None) if care.has_tombstones else None,
            self._orphans_before(care),
        )

    def done(self, task: Task, summary: Mapping[str, str]) -> None:
        """Take in what upkeep left behind."""
        care = self._tables[task.name]
        self.note(task.name, summary)
        care.purged = task.safe or care.purged
        if task.orphans_before is not None:
            care.orphans_at_s = self._clock.monotonic_s()
        self.put_off(task)

    def put_off(self, task: Task) -> None:
        """Leave a table alone until it has grown again, or until its time has come."""
        care = self._tables[task.name]
        care.floor, care.since_s = care.files, self._clock.monotonic_s()

    def _growth(self, care: _Care) -> int:
        return care.files - care.floor

    def _is_due(self, care: _Care) -> bool:
        if self._growth(care) >= self._options.compact_after_files:
            return True
        if self._clock.monotonic_s() - care.since_s < self._options.compact_after_s:
            return False
        can_purge = care.has_tombstones and self._safe > care.purged
        return self._growth(care) > 0 or can_purge

    def _orphans_before(self, care: _Care) -> datetime | None:
        """Look for them once after the start, and then as often as they come of age."""
        age_s = self._options.orphans_after_s
        last_s = care.orphans_at_s
        if last_s is not None and self._clock.monotonic_s() - last_s < age_s:
            return None
        return self._clock.now() - timedelta(seconds=age_s)


def statements(task: Task) -> list[str]:
    """
    Return the statements of one table's upkeep.

    Small files are put together, and larger ones written anew once a tenth of their
    rows is replaced; old versions are forgotten as the table's properties say.
    """
    table = f"table => {literal(task.name.in_catalog)}"
    options = "'delete-ratio-threshold', '0.1', 'remove-dangling-deletes', 'true'"
    told = [] if task.safe is None else [purge(task.name, task.safe)]
    told += [
        f"CALL {CATALOG}.system.rewrite_data_files({table}, options => map({options}))",
        f"CALL {CATALOG}.system.rewrite_position_delete_files({table})",
        f"CALL {CATALOG}.system.expire_snapshots({table})",
    ]
    if task.orphans_before is not None:
        before = f"timestamp '{task.orphans_before:%Y-%m-%d %H:%M:%S}'"
        told.append(
            # Listed by the catalog's own means: an object store has no other.
            f"CALL {CATALOG}.system.remove_orphan_files({table},"
            f" older_than => {before}, prefix_listing => true)"
        )
    return told


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
