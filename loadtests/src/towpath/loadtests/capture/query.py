"""
Query-based capture: a worker polls the rows whose ``updated_at`` is above a checkpoint.

The worker needs only read access, for which a replica is enough, and an index that
every update has to maintain. ``UpdatedAtReader``, the usual form, keeps the highest
``updated_at`` that it has seen. It never sees a delete, sees only the last of several
updates between two polls, and loses a row whose transaction began before, and
committed after, the poll that moved the checkpoint past it: ``updated_at`` is the time
at which the transaction began.

``OverlappingReader`` reads the last second before the checkpoint again at each poll. It
finds commits that are late by less than a second, republishes at each poll everything
that changed in the overlap, and still sees no delete.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from towpath.loadtests.capture import UPDATE, CapturedRecord, RowImage
from towpath.loadtests.capture.writers import Session

OVERLAP: Final = timedelta(seconds=1)

# Earlier than the ``updated_at`` of any row.
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INDEX: Final = "create index on public.item (updated_at)"
_CHANGED: Final = """
select id, change, note, updated_at from public.item
where updated_at > %s order by updated_at
"""


class UpdatedAtReader:
    """Reads the rows above the highest ``updated_at`` that it has seen."""

    def __init__(self) -> None:
        self._checkpoint = _BEGINNING

    def prepare(self, session: Session) -> None:
        """Create the index that the query needs."""
        session.execute(_INDEX)

    def read(self, session: Session) -> Sequence[CapturedRecord]:
        """Return the rows above the checkpoint, and move it."""
        rows = session.execute(_CHANGED, (self._lower_bound(),)).fetchall()
        self._checkpoint = max([self._checkpoint, *(at for *_, at in rows)])
        return [
            # An insert looks like an update, and the version is the time.
            CapturedRecord(key, UPDATE, RowImage(change, note), _version(at))
            for key, change, note, at in rows
        ]

    def is_behind(self, session: Session) -> bool:
        """Return false: a read returns everything that this reader will ever return."""
        del session
        return False

    def _lower_bound(self) -> datetime:
        return self._checkpoint


class OverlappingReader(UpdatedAtReader):
    """Reads the last second before the checkpoint again."""

    def _lower_bound(self) -> datetime:
        return max(_BEGINNING, self._checkpoint - OVERLAP)


def _version(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")
