"""
Appends rows without the engine: files written from Arrow as they are, then one commit.

To be handed to the engine, rows would be taken apart and put together again, one by
one. The commit goes on top of the one that it was told of, or fails: of two that append
the same rows one must.
"""

from contextlib import closing
from typing import Final

import pyarrow as pa
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table, TableProperties

from towpath.settings import Sink
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.warehouse.connect import open_catalog, translated
from towpath.sinks.warehouse.opening import Commit
from towpath.sinks.warehouse.tables import LakeName, LakeTable

_log = structlog.get_logger("towpath.sinks.warehouse")

# What it raises for values that it cannot write, before it commits: the engine can.
_LIMITS: Final = (ValueError, TypeError, ArithmeticError, NotImplementedError)
# Tried again, it would go on top of whatever somebody else has committed meanwhile.
_ONCE: Final = {TableProperties.COMMIT_NUM_RETRIES: "0"}


class LakeAppender:
    """Appends to the tables of one warehouse."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def append(self, table: LakeTable, rows: pa.Table, on: Commit) -> Commit | None:
        """
        Write rows on top of a commit; return the new one, or nothing if it cannot.

        Args:
            table: Where to; readers see all of it at once.
            rows: Its columns, and maybe others, which are left out.
            on: The table's newest commit, as far as is known.

        Raises:
            TargetUnavailableError: Catalog or files cannot be reached, or somebody else
                has committed meanwhile. It may have been written all the same.
        """
        # Opened for each: batches are seconds apart, and what stays open grows stale.
        with translated(), closing(open_catalog(self._sink)) as catalog:
            stored = _load(catalog, table.name)
            if stored.metadata.current_snapshot_id != on.snapshot_id:
                raise _overtaken(table.name)
            properties = {**stored.properties, **_ONCE}
            stored.metadata = stored.metadata.model_copy(
                update={"properties": properties}
            )
            try:
                stored.append(rows.select(table.schema.names))
            except CommitFailedException as error:
                raise _overtaken(table.name) from error
            except _LIMITS as error:
                _log.info(
                    "written by the engine", table=table.name.table, why=str(error)
                )
                return None
        return _newest(stored)


def _load(catalog: Catalog, name: LakeName) -> Table:
    try:
        return catalog.load_table(tuple(name))
    except NoSuchTableError as error:
        message = f"{name.sql} is not there any more"
        raise TargetUnavailableError(message) from error


def _overtaken(name: LakeName) -> TargetUnavailableError:
    message = f"somebody else has written to {name.sql} meanwhile"
    return TargetUnavailableError(message)


def _newest(stored: Table) -> Commit:
    snapshot = stored.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        message = "a table that was appended to has no commit"
        raise TargetUnavailableError(message)
    return Commit(snapshot.snapshot_id, dict(snapshot.summary.additional_properties))
