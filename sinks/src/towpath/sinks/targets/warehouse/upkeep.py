"""
The upkeep of tables: its schedule, its statements, and the deletion of tables.

Every commit adds a file or two and a list of replaced rows, and a reader opens them
all; every delete leaves a tombstone. The sink that writes to the tables runs upkeep, so
upkeep runs between batches and never during one.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, NoSuchViewError
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from towpath.schemas.clock import Clock
from towpath.schemas.findings import CheckFinding
from towpath.settings import Route, RouteKind, Sink, WarehouseOptions
from towpath.sinks.targets.health import LakeHealth, lake_findings
from towpath.sinks.targets.warehouse.client import (
    CATALOG,
    UNDEFINED_TABLE,
    open_catalog,
    translated,
)
from towpath.sinks.targets.warehouse.ddl import KEY_PROPERTY
from towpath.sinks.targets.warehouse.schema import LakeName, lake_name, literal
from towpath.sinks.targets.warehouse.statements import purge

_FILE_COUNTS: Final = ("total-data-files", "total-delete-files")


@dataclass(frozen=True, slots=True)
class UpkeepTask:
    """
    One table's upkeep.

    Attributes:
        name: The table.
        safe: Tombstones below it are deleted; ``None`` deletes none.
        orphans_before: Files that are older than this time and that no version refers
            to are deleted; ``None`` deletes none.
    """

    name: LakeName
    safe: str | None
    orphans_before: datetime | None


@dataclass(slots=True)
class _UpkeepState:
    """The state of one table since its last upkeep."""

    has_tombstones: bool
    since_s: float
    files: int = 0
    files_at_upkeep: int = 0
    purged: str = ""
    orphans_at_s: float | None = None


class TableUpkeep:
    """Decides which table's upkeep is due."""

    def __init__(self, options: WarehouseOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._tables: dict[LakeName, _UpkeepState] = {}
        self._safe = ""

    def register(self, name: LakeName, *, has_tombstones: bool) -> None:
        """Include a table in the upkeep."""
        if name not in self._tables:
            self._tables[name] = _UpkeepState(has_tombstones, self._clock.monotonic_s())

    def raise_safe_position(self, position: str) -> None:
        """Record that no change below a position can be delivered again."""
        self._safe = max(self._safe, position)

    def record_commit(self, name: LakeName, summary: Mapping[str, str]) -> None:
        """Record the number of files after a commit."""
        self._tables[name].files = sum(int(summary.get(key, 0)) for key in _FILE_COUNTS)

    def due(self) -> UpkeepTask | None:
        """Return the upkeep of the table that has grown most, if any is due."""
        names = [name for name in self._tables if self._is_due(self._tables[name])]
        if not names:
            return None
        name = max(names, key=lambda n: self._growth(self._tables[n]))
        state = self._tables[name]
        return UpkeepTask(
            name,
            (self._safe or None) if state.has_tombstones else None,
            self._orphans_before(state),
        )

    def done(self, task: UpkeepTask, summary: Mapping[str, str]) -> None:
        """Record a table's upkeep, and the number of its files."""
        state = self._tables[task.name]
        self.record_commit(task.name, summary)
        state.purged = task.safe or state.purged
        if task.orphans_before is not None:
            state.orphans_at_s = self._clock.monotonic_s()
        self.postpone(task)

    def postpone(self, task: UpkeepTask) -> None:
        """Skip a table until it has grown again, or its interval has passed."""
        state = self._tables[task.name]
        state.files_at_upkeep, state.since_s = state.files, self._clock.monotonic_s()

    def _growth(self, state: _UpkeepState) -> int:
        return state.files - state.files_at_upkeep

    def _is_due(self, state: _UpkeepState) -> bool:
        if self._growth(state) >= self._options.compact_after_files:
            return True
        if self._clock.monotonic_s() - state.since_s < self._options.compact_after_s:
            return False
        can_purge = state.has_tombstones and self._safe > state.purged
        return self._growth(state) > 0 or can_purge

    def _orphans_before(self, state: _UpkeepState) -> datetime | None:
        """Return the time before which orphans are deleted; ``None`` if none is due."""
        age_s = self._options.orphans_after_s
        last_s = state.orphans_at_s
        if last_s is not None and self._clock.monotonic_s() - last_s < age_s:
            return None
        return self._clock.now() - timedelta(seconds=age_s)


def rewrites(task: UpkeepTask) -> list[str]:
    """
    Return the statements that delete a table's tombstones and rewrite its files.

    Small files are merged, and larger ones are rewritten once a tenth of their rows
    have been replaced.
    """
    table = f"table => {literal(task.name.in_catalog)}"
    options = "'delete-ratio-threshold', '0.1', 'remove-dangling-deletes', 'true'"
    purges = [] if task.safe is None else [purge(task.name, task.safe)]
    return [
        *purges,
        f"CALL {CATALOG}.system.rewrite_data_files({table}, options => map({options}))",
        f"CALL {CATALOG}.system.rewrite_position_delete_files({table})",
    ]


def orphan_removal(name: LakeName, before: datetime) -> str:
    """Return the statement that deletes old files that belong to no version."""
    # Files are listed by prefix: an object store supports nothing else.
    return (
        f"CALL {CATALOG}.system.remove_orphan_files("
        f"table => {literal(name.in_catalog)},"
        f" older_than => timestamp '{before:%Y-%m-%d %H:%M:%S}',"
        " prefix_listing => true)"
    )


# pyiceberg can only drop the views of REST catalogs; Spark's JDBC catalog stores its
# views in this table.
_DROP_VIEW: Final = text(
    "DELETE FROM iceberg_tables WHERE catalog_name = :catalog"
    " AND table_namespace = :namespace AND table_name = :view"
    " AND iceberg_type = 'VIEW'"
)


def erase(sink: Sink, _prefix: str) -> None:
    """
    Delete the tables that a sink has created; safe to repeat.

    The sink must not be running.

    Raises:
        UnavailableError: The catalog or the files cannot be read: repeat the call.
    """
    with translated():
        catalog = open_catalog(sink)
        try:
            for route in sink.route:
                with _unless_absent():
                    _erase_table(catalog, route)
        finally:
            catalog.close()


def _erase_table(catalog: Catalog, route: Route) -> None:
    name = lake_name(route.name)
    table = catalog.load_table(tuple(name))
    if KEY_PROPERTY not in table.properties:
        # Its route was held back: another program has created the table.
        return
    if route.kind is not RouteKind.EVENT_LOG:
        _drop_view(catalog, name.live)
    _purge(catalog, table)


def _purge(catalog: Catalog, table: Table) -> None:
    """
    Delete a table and its files; safe to repeat.

    The catalog names the table until all files but its newest metadata are deleted. So
    an interruption leaves at most that file behind.
    """
    if not isinstance(catalog, SqlCatalog):
        # The catalog's server deletes the files.
        catalog.purge_table(table.name())
        return
    for file in _files(table):
        _delete(table, file)
    catalog.drop_table(table.name())
    _delete(table, table.metadata_location)


def _delete(table: Table, file: str) -> None:
    with suppress(FileNotFoundError):
        table.io.delete(file)


def _files(table: Table) -> Iterator[str]:
    """Yield all files but the newest metadata, each before the files that name it."""
    lists: dict[str, None] = {}
    manifests: dict[str, ManifestFile] = {}
    for version in table.metadata.snapshots:
        lists[version.manifest_list] = None
        # A missing list was deleted after all manifests that it names.
        with suppress(FileNotFoundError):
            manifests |= {one.manifest_path: one for one in version.manifests(table.io)}
    data: dict[str, None] = {}
    for manifest in manifests.values():
        with suppress(FileNotFoundError):
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                data[entry.data_file.file_path] = None
    yield from (*data, *manifests, *lists)
    yield from (entry.metadata_file for entry in table.metadata.metadata_log)


def _drop_view(catalog: Catalog, name: LakeName) -> None:
    if not isinstance(catalog, SqlCatalog):
        # A REST catalog need not support views.
        with _unless_absent(), suppress(NotImplementedError):
            catalog.drop_view(tuple(name))
        return
    names = {"catalog": CATALOG, "namespace": name.namespace, "view": name.table}
    with _unless_absent(), catalog.engine.begin() as connection:
        connection.execute(_DROP_VIEW, names)


def health(sink: Sink, _clock: Clock) -> Iterator[CheckFinding]:
    """
    Check the tables of a warehouse through their metadata; no row is read.

    Raises:
        UnavailableError: The catalog or the files cannot be read.
    """
    tables: list[LakeHealth] = []
    with translated():
        catalog = open_catalog(sink)
        try:
            for route in sink.route:
                with _unless_absent():
                    is_table = route.kind is RouteKind.TABLE
                    name = lake_name(route.name)
                    tables.append(_health(catalog, name, is_table=is_table))
        finally:
            catalog.close()
    yield from lake_findings(sink, tables)


def _health(catalog: Catalog, name: LakeName, *, is_table: bool) -> LakeHealth:
    metadata = catalog.load_table(tuple(name)).metadata
    current = metadata.current_snapshot()
    summary = None if current is None else current.summary
    counts = [] if summary is None else [summary.get(key) for key in _FILE_COUNTS]
    identifiers = metadata.schema().identifier_field_ids
    return LakeHealth(
        name=name.in_catalog,
        format_version=metadata.format_version,
        files=sum(int(count or 0) for count in counts),
        versions=len(metadata.snapshots),
        has_identifiers=bool(identifiers) or not is_table,
    )


@contextmanager
def _unless_absent() -> Iterator[None]:
    """Ignore the error if a table or view is missing."""
    try:
        yield
    except (NoSuchTableError, NoSuchViewError):
        return
    except ProgrammingError as error:
        # Before the first write the catalog itself has no tables.
        if getattr(error.orig, "sqlstate", None) != UNDEFINED_TABLE:
            raise
