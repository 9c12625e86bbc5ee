"""
Appends rows without the engine: files written from Arrow as they are, then one commit.

To be handed to the engine, rows would be taken apart and put together again, one by
one. The commit goes on top of the one that it was told of, or fails: of two that append
the same rows one must. Nothing is taken away if it fails, because a commit that is said
to have failed may have landed; what nothing knows of goes with upkeep.
"""

from contextlib import closing

import pyarrow as pa
import structlog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID

from towpath.settings import Sink
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.warehouse.connect import open_catalog
from towpath.sinks.warehouse.opening import Commit
from towpath.sinks.warehouse.tables import LakeName, LakeTable

_log = structlog.get_logger("towpath.sinks.warehouse")


class LakeAppender:
    """Appends to the tables of one warehouse."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._told: set[tuple[LakeName, str]] = set()

    def append(
        self, table: LakeTable, rows: pa.Table, on: Commit | None
    ) -> Commit | None:
        """
        Write rows on top of a commit; return the new one, or nothing if it cannot.

        It cannot if the table stands at another one. After any failure the engine may
        look for the rows and write them: it finds ours if they were committed after
        all, and nothing of ours is committed behind what it writes.

        Args:
            table: Where to; readers see all of it at once.
            rows: Its columns, and maybe others, which are left out.
            on: The table's newest commit, as far as is known; ``None``: it has none.

        Raises:
            TargetUnavailableError: Somebody else has committed meanwhile.
        """
        try:
            # Opened for each: batches are seconds apart, and what stays open grows
            # stale.
            with closing(open_catalog(self._sink)) as catalog:
                stored = catalog.load_table(tuple(table.name))
                parent_id = None if on is None else on.snapshot_id
                return _append(stored, rows.select(table.schema.names), parent_id)
        except CommitFailedException as error:
            message = f"somebody else has written to {table.name.sql} meanwhile"
            raise TargetUnavailableError(message) from error
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine says better
            self._tell(table.name, f"{type(error).__name__}: {error}")
            return None

    def _tell(self, name: LakeName, why: str) -> None:
        """Say once that a table is left to the engine."""
        if (name, why) not in self._told:
            self._told.add((name, why))
            _log.warning("not appended: left to the engine", table=name.sql, why=why)


def _append(stored: Table, rows: pa.Table, parent_id: int | None) -> Commit | None:
    if stored.metadata.current_snapshot_id != parent_id:
        return None
    staged = stored.transaction()
    staged.append(rows)
    # Ours as we made it: a server answers with the table as it is by then.
    made = staged.table_metadata.current_snapshot()
    if made is None or made.summary is None:
        return None
    # Its own way to commit tries again on top of whatever somebody else has committed
    # meanwhile, and takes away the files of what a server says has failed.
    required = (
        AssertTableUUID(uuid=stored.metadata.table_uuid),
        AssertRefSnapshotId.model_validate(
            {"ref": MAIN_BRANCH, "snapshot-id": parent_id}
        ),
    )
    stored._do_commit(staged._updates, required)  # noqa: SLF001
    return Commit(made.snapshot_id, dict(made.summary.additional_properties))
