"""
The rows of one table that tasks have encoded, and the two ways of writing them.

A task knows only the keys of its own rows. The driver knows all keys of a table while a
fill is under way, as hashes, and tasks return the hashes of their keys: eight bytes per
row. So the driver splits the rows. Rows of new keys are written to files without a
search. The following rows are merged, which searches the table:

- rows of known keys, and of two keys with the same hash;
- rows of keys that more than one task has returned, which are not folded yet;
- rows with columns that the source has dropped.

All rows are merged if some are below the floor, because only a merge leaves these out,
or if more than half of the keys would be merged anyway.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from towpath.sinks.apply.encoded import EncodedSummary, EngineRows
from towpath.sinks.ports import SqlSession
from towpath.sinks.targets.warehouse import statements
from towpath.sinks.targets.warehouse.append import WrittenFiles
from towpath.sinks.targets.warehouse.encode import (
    LOG_POSITION,
    TableForm,
    joined_span,
)
from towpath.sinks.targets.warehouse.rows import key_hashes
from towpath.sinks.targets.warehouse.schema import POSITION, LakeTable
from towpath.sinks.targets.warehouse.write import BATCH


@dataclass(frozen=True, slots=True)
class EncodedTable:
    """
    The rows of one table that tasks have encoded.

    Attributes:
        table: The table.
        rows: The rows of all tables of the batch.
        forms: The summaries of the encoded rows, one for each task, by form.
        is_log: Whether the table is an event log.
        floor: Rows below it are dropped.
        session: Runs the statements.
    """

    table: LakeTable
    rows: EngineRows
    forms: Mapping[TableForm, Sequence[EncodedSummary]]
    is_log: bool
    floor: str | None
    session: SqlSession

    @property
    def hashes(self) -> pa.Array:
        """The hash of each row's key."""
        return pa.concat_arrays([one.hashes for one in self._summaries()])

    def hashes_to_merge(self, hashes: pa.Array, new: pa.Array) -> pa.Array | None:
        """
        Return the hashes of the keys whose rows are merged; ``None`` for all keys.

        Args:
            hashes: The hash of each row's key.
            new: The hashes of keys that the table does not have.
        """
        floor = self.floor
        if floor is not None and any(one.lowest < floor for one in self._summaries()):
            return None
        counted = hashes.value_counts()
        retained = [
            one.hashes
            for form, summaries in self.forms.items()
            for one in summaries
            if form.has_retained
        ]
        known = hashes.filter(pc.invert(pc.is_in(hashes, value_set=new)))
        repeated = counted.filter(pc.greater(counted.field("counts"), 1))
        found = pa.concat_arrays([known, repeated.field("values"), *retained]).unique()
        # A search for most keys costs as much as a search for all of them.
        return found if 2 * len(found) <= len(hashes) else None

    def write_files(
        self, to_merge: pa.Array, write: Callable[[pa.Table], WrittenFiles]
    ) -> Iterable[WrittenFiles]:
        """
        Write the rows that need no merge into files, on the executors.

        Args:
            to_merge: The hashes of the keys whose rows are merged.
            write: Writes rows; it is called on executors.
        """
        form = TableForm(self._route)
        if form not in self.forms:
            return ()
        write_rest = partial(_write_unmerged, self.table, to_merge, write)
        return self.rows.collect(form.text, write_rest)

    def merges(self, to_merge: pa.Array | None) -> Iterator[str]:
        """
        Register a view of each form's rows, and yield the statement that merges them.

        Args:
            to_merge: The hashes of the keys whose rows are merged; ``None`` for all.
        """
        keep = _all if to_merge is None else partial(_merged, self.table, to_merge)
        for form, summaries in self.forms.items():
            form_table, view = form.table(self.table), f"towpath_{self.table.branch}"
            self.rows.register(form.text, view, form.schema(self.table), keep)
            newest = statements.Newest(
                position=LOG_POSITION if self.is_log else POSITION,
                is_folded=len(summaries) == 1,
                floor=self.floor,
            )
            self.session.sql(statements.batch_view(form_table, BATCH, view, newest))
            span = joined_span([one.span for one in summaries])
            if self.is_log:
                yield statements.insert_new(form_table, BATCH, span)
            else:
                yield statements.upsert(form_table, BATCH, form.kept(self.table), span)

    @property
    def _route(self) -> str:
        return next(iter(self.forms)).route

    def _summaries(self) -> Iterator[EncodedSummary]:
        for summaries in self.forms.values():
            yield from summaries


def _all(rows: pa.Table) -> pa.Table:
    return rows


def _merged(table: LakeTable, to_merge: pa.Array, rows: pa.Table) -> pa.Table:
    """Return the rows that are merged; called on executors."""
    return rows.filter(pc.is_in(key_hashes(table, rows), value_set=to_merge))


def _write_unmerged(
    table: LakeTable,
    to_merge: pa.Array,
    write: Callable[[pa.Table], WrittenFiles],
    rows: pa.Table,
) -> WrittenFiles:
    """Write the rows that are not merged; called on executors."""
    is_merged = pc.is_in(key_hashes(table, rows), value_set=to_merge)
    return write(rows.filter(pc.invert(is_merged)))
