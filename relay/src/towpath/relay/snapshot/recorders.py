"""Who takes notes of what: by table for row changes, by type for aggregates' events."""

from collections.abc import Collection, Mapping

from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.touches import Notes, Touches


class Recorders:
    """
    The touches that the loop tells, and the scans that note them.

    Attributes:
        tables: Whom to tell of changes of a table, by its oid.
        aggregates: Whom to tell of events of an aggregate, by its type.
        reordered: The tables, by oid, that are read by another key than their own, also
            while they are paused. Such a row may leave the part that is still to be
            read without a word of it in the stream: whatever changes of it with columns
            left out is to be asked for.
    """

    def __init__(self, views: Mapping[str, str]) -> None:
        """
        Record nothing yet.

        Args:
            views: Of each collection that is an aggregate view, the aggregate type.
        """
        self.tables: dict[int, Touches] = {}
        self.aggregates: dict[str, Touches] = {}
        self.reordered: set[int] = set()
        self._views = views

    @property
    def views(self) -> Collection[str]:
        """The collections that are aggregate views."""
        return self._views.keys()

    def record(self, table: StoredTable, notes: Notes) -> None:
        """Let a scan take notes of its table from here on."""
        aggregate_type = self._views.get(table.collection)
        if aggregate_type is None:
            touches = self.tables.setdefault(table.table_oid, Touches())
        else:
            touches = self.aggregates.setdefault(aggregate_type, Touches())
        touches.notes.append(notes)

    def forget(self, table: StoredTable, notes: Notes) -> None:
        """Let a scan take no more notes."""
        aggregate_type = self._views.get(table.collection)
        if aggregate_type is None:
            touches = self.tables[table.table_oid]
        else:
            touches = self.aggregates[aggregate_type]
        touches.notes.remove(notes)
        if touches.notes:
            return
        if aggregate_type is None:
            del self.tables[table.table_oid]
        else:
            del self.aggregates[aggregate_type]
