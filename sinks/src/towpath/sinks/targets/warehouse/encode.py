"""
Encode a slice for the warehouse in a task; the executors write the rows later.

With each task, the driver sends the tables, already fitted to their sources. A task
encodes the rows that fit these tables, and refuses all other changes, which the driver
applies, because it can read the target: partial changes, whose row may be missing from
the target; changes with a value or column that does not fit; and changes to a route
that is held back because its table does not fit.

Nothing is written here, so a task may run any number of times, and an abandoned task
writes nothing. The driver drops rows below a floor before it merges.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from towpath.sinks.apply.encoded import EncodedSummary, SliceRows
from towpath.sinks.change import Change, EventRow, Refusal
from towpath.sinks.changes.columns import Columns, newest_rows
from towpath.sinks.fold import by_route
from towpath.sinks.ports import Batch, Checkpoint
from towpath.sinks.tally import Tally
from towpath.sinks.targets.warehouse import rows
from towpath.sinks.targets.warehouse.rows import key_span, unknown_columns
from towpath.sinks.targets.warehouse.schema import KEPT, POSITION, LakeTable

# The position column of an event log, in which copies of an event may differ.
LOG_POSITION: Final = "position"
_DRIVER_ONLY: Final = "only the driver can write this row"
# The first word of a statement's name; a space and the route follow.
_CURRENT: Final = "current"
_RETAINED: Final = "retained"


class TableForm(NamedTuple):
    """
    A set of columns that rows of a table share; each form has its own statement.

    Attributes:
        route: The route.
        has_retained: Whether rows have columns that the source has dropped.
    """

    route: str
    has_retained: bool = False

    @property
    def text(self) -> str:
        """The statement's name: ``current`` or ``retained``, a space, and the route."""
        return f"{_RETAINED if self.has_retained else _CURRENT} {self.route}"

    @classmethod
    def parse(cls, text: str) -> "TableForm":
        """Parse the form from the name of a statement."""
        columns, _, route = text.partition(" ")
        return cls(route, columns == _RETAINED)

    def table(self, table: LakeTable) -> LakeTable:
        """Return the table with the columns of the form."""
        if not self.has_retained:
            return table
        return replace(table, columns=(*table.columns, *table.retained))

    def schema(self, table: LakeTable) -> pa.Schema:
        """Return the Arrow schema of the rows."""
        schema = self.table(table).schema
        kept = pa.field(KEPT, pa.list_(pa.string()))
        return schema.append(kept) if self.has_retained else schema

    def kept(self, table: LakeTable) -> frozenset[str]:
        """Return the columns whose stored value a row may keep."""
        if not self.has_retained:
            return frozenset()
        return frozenset(column.name for column in table.retained)


_Span: TypeAlias = tuple[Any, Any] | None


def joined_span(spans: Sequence[_Span]) -> _Span:
    """Return the span that covers all spans; ``None`` if one of them is unknown."""
    known = [span for span in spans if span is not None]
    if not known or len(known) < len(spans):
        return None
    return min(least for least, _ in known), max(greatest for _, greatest in known)


class WarehouseEncoder:
    """Encodes the changes and events of a slice."""

    def __init__(self, tables: Mapping[str, LakeTable], logs: frozenset[str]) -> None:
        """
        Store the parameters.

        Args:
            tables: The tables that fit their sources, by route.
            logs: The routes of event logs.
        """
        self._tables = tables
        self._logs = logs
        self._encoded: dict[TableForm, list[pa.Table]] = defaultdict(list)
        self._tally = Tally()

    def open(self) -> None:
        """Do nothing: there is no connection."""

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def apply(self, batch: Batch) -> None:
        for route, changes in by_route(batch.changes).items():
            self._encode_changes(route, changes)
        for route, events in by_route(batch.events).items():
            self._encode_events(route, events)

    def apply_columns(self, columns: Columns) -> pa.Array | None:
        table = self._tables.get(columns.route)
        encoded = None if table is None else rows.encode_columns(table, columns)
        if encoded is None:
            return None
        self._encoded[TableForm(columns.route)].append(encoded.rows)
        return encoded.indices

    def flush(self) -> Checkpoint:
        return self._tally.take()

    def encoded(self) -> Sequence[SliceRows]:
        return [
            self._fold(form, pa.concat_tables(tables))
            for form, tables in self._encoded.items()
        ]

    def _fold(self, form: TableForm, collected: pa.Table) -> SliceRows:
        table = self._tables[form.route]
        is_log = form.route in self._logs
        position = LOG_POSITION if is_log else POSITION
        newest = newest_rows(collected, table.key, position)
        span = rows.time_span(newest) if is_log else key_span(table, newest)
        lowest = pc.min(newest.column(position)).as_py() or ""
        hashes = rows.key_hashes(table, newest)
        summary = EncodedSummary(form.text, len(collected), span, hashes, lowest)
        return SliceRows(summary, newest)

    def _encode_changes(self, route: str, changes: Sequence[Change]) -> None:
        table = self._tables.get(route)
        by_form: dict[TableForm, list[Change]] = defaultdict(list)
        for change in changes:
            form = _form(route, table, change)
            if table is None or form is None:
                self._tally.refused.append(Refusal(change, _DRIVER_ONLY))
            else:
                by_form[form].append(change)
        if table is None:
            return
        for form, form_changes in by_form.items():
            encoded = rows.encode_changes(
                form.table(table), form_changes, form.kept(table)
            )
            self._tally.refused += encoded.refused
            dropped = len(form_changes) - len(encoded.changes) - len(encoded.refused)
            self._tally.applied += dropped
            self._encoded[form].append(encoded.rows)

    def _encode_events(self, route: str, events: Sequence[EventRow]) -> None:
        table = self._tables.get(route)
        if table is None:
            refused = dict.fromkeys((event.origin for event in events), _DRIVER_ONLY)
            self._tally.refused_events |= refused
            return
        encoded = rows.encode_events(table, events)
        # The driver counts and logs times that the table cannot represent.
        is_timed = encoded.rows.column(rows.EVENT_TIME).is_valid()
        self._tally.refused_events |= {
            event.origin: _DRIVER_ONLY
            for event, timed in zip(events, is_timed.to_pylist(), strict=True)
            if not timed
        }
        self._encoded[TableForm(route)].append(encoded.rows.filter(is_timed))


def _form(route: str, table: LakeTable | None, change: Change) -> TableForm | None:
    """Return the form of a change; ``None`` if only the driver can write the change."""
    if table is None or change.unchanged:
        return None
    unknown = unknown_columns(table, [change])
    if not unknown:
        return TableForm(route)
    retained = {column.name for column in table.retained}
    return TableForm(route, has_retained=True) if unknown <= retained else None
