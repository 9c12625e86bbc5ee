"""
Append rows to a table without Spark: write files from Arrow, then make one commit.

Spark would convert each row twice. Either this process writes the rows, or the
executors do: a task writes files and returns their metadata, and commits nothing
(``FileWriter``). The driver commits the files of the tasks whose results it received.
Files of other attempts are in no commit: upkeep removes them.

A commit builds on the newest known commit or fails. If it fails, no file is deleted,
because a commit that was reported as failed may have succeeded; upkeep removes files
that no commit refers to.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import StaticTable, Table, Transaction
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
)

from towpath.schemas.failure import UnavailableError
from towpath.settings import Sink
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.ports import Commit
from towpath.sinks.targets.warehouse.client import open_catalog
from towpath.sinks.targets.warehouse.schema import LakeName, LakeTable

_log: Final = structlog.get_logger("towpath.sinks.warehouse")


class WrittenFiles(NamedTuple):
    """
    The files that a task has written.

    Attributes:
        files: Their metadata, as a commit needs it.
        failure: Why they were not written; empty if they were.
    """

    files: tuple[DataFile, ...]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class FileWriter:
    """
    Writes rows into files of one table, in any process; nothing is committed.

    Attributes:
        metadata_location: The table's metadata, at the commit to build on.
        properties: The properties with which tasks reach the table's files.
        columns: The table's columns.
    """

    metadata_location: str
    properties: Mapping[str, Any]
    columns: tuple[str, ...]

    def write(self, rows: pa.Table) -> WrittenFiles:
        """Write rows; a failure is part of the result."""
        if not len(rows):
            return WrittenFiles(())
        try:
            return WrittenFiles(self._write(rows.select(self.columns)))
        except Exception as error:  # noqa: BLE001 - the engine reports it better
            return WrittenFiles((), f"{type(error).__name__}: {error}")

    def _write(self, rows: pa.Table) -> tuple[DataFile, ...]:
        stored = StaticTable.from_metadata(
            self.metadata_location, dict(self.properties)
        )
        staged = stored.transaction()
        staged.append(rows)
        made = staged.table_metadata.current_snapshot()
        if made is None:
            return ()
        return tuple(_take_files(stored, made))


def _take_files(stored: Table, staged: Snapshot) -> Iterable[DataFile]:
    """Yield the new files of a staged commit; delete its manifests and their list."""
    for manifest in staged.manifests(stored.io):
        if manifest.added_snapshot_id == staged.snapshot_id:
            for entry in manifest.fetch_manifest_entry(stored.io):
                yield entry.data_file
            stored.io.delete(manifest.manifest_path)
    stored.io.delete(staged.manifest_list)


# Makes each task call a function with the task's rows; returns the results.
WriteFiles: TypeAlias = Callable[
    [Callable[[pa.Table], WrittenFiles]], Iterable[WrittenFiles]
]
_Stage: TypeAlias = Callable[[Table, Transaction], None]


class _NotWrittenError(Exception):
    """A task could not write its files."""


class LakeAppender:
    """Appends to the tables of one warehouse, without Spark."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._logged: set[tuple[LakeName, str]] = set()

    def append(
        self, table: LakeTable, rows: pa.Table, on: Commit | None
    ) -> Commit | None:
        """
        Write rows on top of a commit; return the new commit, or ``None`` on failure.

        The append fails if the table is at another commit. After any failure the engine
        may merge the rows instead: it finds the rows if the append was committed after
        all, and the append cannot be committed later than the merge.

        Args:
            table: The table; readers see all rows at the same time.
            rows: Rows with its columns, and possibly others, which are left out.
            on: The table's newest known commit; ``None`` if it has none.

        Raises:
            TargetUnavailableError: Another writer has committed in the meantime.
        """
        own = rows.select(table.schema.names)

        def stage(_stored: Table, staged: Transaction) -> None:
            staged.append(own)

        return self._commit(table.name, stage, on, MAIN_BRANCH)

    def append_files(
        self,
        table: LakeTable,
        write: WriteFiles,
        on: Commit | None,
        branch: str = MAIN_BRANCH,
    ) -> Commit | None:
        """
        Commit files that tasks write; return the same as ``append``.

        Args:
            table: The table; readers see all rows at the same time.
            write: Makes the tasks write their rows.
            on: As for ``append``.
            branch: The branch of the commit.

        Raises:
            UnavailableError: Another writer has committed in the meantime, or an
                executor does not answer.
        """

        def stage(stored: Table, staged: Transaction) -> None:
            writer = FileWriter(
                stored.metadata_location,
                _file_properties(stored),
                tuple(table.schema.names),
            )
            written = write(writer.write)
            with staged.update_snapshot(branch=branch).fast_append() as added:
                for task in written:
                    if task.failure:
                        raise _NotWrittenError(task.failure)
                    for file in task.files:
                        added.append_data_file(file)

        return self._commit(table.name, stage, on, branch)

    def _commit(
        self, name: LakeName, stage: _Stage, on: Commit | None, branch: str
    ) -> Commit | None:
        try:
            # Opened for each append: batches are seconds apart, and an open catalog
            # grows stale.
            with closing(open_catalog(self._sink)) as catalog:
                stored = catalog.load_table(tuple(name))
                parent_id = None if on is None else on.snapshot_id
                return _append(catalog, stored, stage, parent_id, branch)
        except CommitFailedException as error:
            message = f"another writer has committed to {name.sql} in the meantime"
            raise TargetUnavailableError(message) from error
        except UnavailableError:
            raise
        except Exception as error:  # noqa: BLE001 - the engine reports it better
            self._log_once(name, f"{type(error).__name__}: {error}")
            return None

    def _log_once(self, name: LakeName, why: str) -> None:
        """Log once per table and reason that Spark writes the rows instead."""
        if (name, why) not in self._logged:
            self._logged.add((name, why))
            _log.warning(
                "warehouse append failed: Spark writes the rows instead",
                table=name.sql,
                why=why,
            )


def _file_properties(stored: Table) -> dict[str, Any]:
    """
    Return the properties with which tasks reach the files of a table.

    A REST catalog may issue credentials for the files, or sign requests for them. The
    address of a database, with its password, is of no use to a task.
    """
    is_database = isinstance(stored.catalog, SqlCatalog)
    omitted = {"uri"} if is_database else frozenset()
    return {k: v for k, v in stored.io.properties.items() if k not in omitted}


def _append(
    catalog: Catalog,
    stored: Table,
    stage: _Stage,
    parent_id: int | None,
    branch: str,
) -> Commit | None:
    head = stored.metadata.snapshot_by_name(branch)
    if (None if head is None else head.snapshot_id) != parent_id:
        return None
    staged = stored.transaction()
    stage(stored, staged)
    # Read before the commit: a server's response may include another writer's commit.
    made = staged.table_metadata.snapshot_by_name(branch)
    if made is None or made.summary is None:
        return None
    # The library's own commit would retry on top of commits of other writers, and
    # delete the files of a commit that a server reports as failed.
    required = (
        AssertTableUUID(uuid=stored.metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": branch, "snapshot-id": parent_id}),
    )
    known = stored.metadata.refs.get(branch)
    ages = {} if known is None else known.model_dump(by_alias=True, exclude_none=True)
    moved = {
        **ages,
        "ref-name": branch,
        "type": SnapshotRefType.BRANCH,
        "snapshot-id": made.snapshot_id,
    }
    changed = (
        AddSnapshotUpdate(snapshot=made),
        SetSnapshotRefUpdate.model_validate(moved),
    )
    catalog.commit_table(stored, required, changed)
    return Commit(made.snapshot_id, dict(made.summary.additional_properties))
