"""
The changes between two catalogs, and how a type changed. This module does no I/O.

A type *grows* if every value of the old type is a value of the new one, and is written
the same way in records. It *shrinks* if the reverse holds. Any other change makes it a
different type.
"""

import enum
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from towpath.sinks.contracts.catalog import Catalog, Table, TableColumn

# Labels of enums by their oid.
Labels: TypeAlias = Mapping[int, str]


class ChangeKind(enum.StrEnum):
    """The kind of a change to a column."""

    ADDED = "column added"
    DROPPED = "column dropped"
    RENAMED = "column renamed"
    GROWN = "type grown"
    SHRUNK = "type shrunk"
    RETYPED = "type changed"
    REQUIRED = "not null added"
    RELAXED = "not null dropped"
    LABELS_ADDED = "labels added"
    LABELS_RENAMED = "labels renamed"
    LABELS_REMOVED = "labels removed"


class ColumnChange(NamedTuple):
    """
    A change to one column.

    Attributes:
        kind: The kind of the change.
        before: The column before; None if it was added.
        after: The column after; None if it was dropped.
        detail: Further information, such as the renamed labels.
    """

    kind: ChangeKind
    before: TableColumn | None
    after: TableColumn | None
    detail: str = ""

    @property
    def name(self) -> str:
        """The name before the migration, or that of an added column."""
        column = self.before or self.after
        return column.name if column else ""


class TableChange(NamedTuple):
    """A table that is in both catalogs, with the changes to its columns."""

    before: Table
    after: Table
    columns: tuple[ColumnChange, ...]


def changed_tables(before: Catalog, after: Catalog) -> Iterator[TableChange]:
    """Yield the tables in both catalogs; not views, which have no rows of their own."""
    for oid, table in before.tables.items():
        now = after.tables.get(oid)
        if now is not None and not table.is_view:
            changes = _column_changes(table, now, before, after)
            yield TableChange(table, now, tuple(changes))


def _column_changes(
    before: Table, after: Table, old: Catalog, new: Catalog
) -> Iterator[ColumnChange]:
    for number, column in before.columns.items():
        now = after.columns.get(number)
        if now is None:
            yield ColumnChange(ChangeKind.DROPPED, column, None)
        else:
            yield from _changes(column, now, _labels(column, old), _labels(now, new))
    for number, column in after.columns.items():
        if number not in before.columns:
            yield ColumnChange(ChangeKind.ADDED, None, column)


def _labels(column: TableColumn, catalog: Catalog) -> Labels:
    """Return the labels of all enums in a column's values."""
    enums = map(catalog.enums.get, column.value_type_oids)
    return {oid: text for one in enums if one for oid, text in one.labels.items()}


def _changes(
    before: TableColumn, after: TableColumn, old: Labels, new: Labels
) -> Iterator[ColumnChange]:
    if before.name != after.name:
        yield ColumnChange(ChangeKind.RENAMED, before, after)
    if old and new and _may_differ_only_in_labels(before, after):
        yield from _label_changes(before, after, old, new)
    elif (before.type_oid, before.typmod) != (after.type_oid, after.typmod):
        yield ColumnChange(_type_change(before, after), before, after)
    if before.is_required != after.is_required:
        kind = ChangeKind.REQUIRED if after.is_required else ChangeKind.RELAXED
        yield ColumnChange(kind, before, after)


def _may_differ_only_in_labels(before: TableColumn, after: TableColumn) -> bool:
    """Return whether only labels may differ: the types are the same, or both enums."""
    columns = before, after
    return before.type_oid == after.type_oid or all(
        [column.type_oid] == [*column.value_type_oids] for column in columns
    )


def _label_changes(
    before: TableColumn, after: TableColumn, old: Labels, new: Labels
) -> Iterator[ColumnChange]:
    """Yield the changes to labels; labels of different enums are compared by text."""
    if before.type_oid == after.type_oid:
        renamed = [
            f"{label} to {new[oid]}"
            for oid, label in old.items()
            if new.get(oid, label) != label
        ]
        if renamed:
            detail = ", ".join(renamed)
            yield ColumnChange(ChangeKind.LABELS_RENAMED, before, after, detail)
        added = [label for oid, label in new.items() if oid not in old]
    else:
        one, other = old.values(), new.values()
        gone = [label for label in one if label not in other]
        if gone:
            detail = ", ".join(gone)
            yield ColumnChange(ChangeKind.LABELS_REMOVED, before, after, detail)
        added = [label for label in other if label not in one]
    if added:
        yield ColumnChange(ChangeKind.LABELS_ADDED, before, after, ", ".join(added))


def _type_change(before: TableColumn, after: TableColumn) -> ChangeKind:
    if _grows(before, after):
        return ChangeKind.GROWN
    return ChangeKind.SHRUNK if _grows(after, before) else ChangeKind.RETYPED


# real and double precision are not listed: 0.1 as a real is 0.10000000149011612 as a
# double.
_RANK: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "smallint": ("whole", 0),
        "integer": ("whole", 1),
        "bigint": ("whole", 2),
        "character varying": ("text", 0),
        "text": ("text", 1),
    }
)
# The modifier of an interval has its fields in the bits above its precision.
_FIELDS_SHIFT: Final = 16
# Types whose modifier is a length or a precision.
_SIZED: Final = frozenset(
    {
        *("character varying", "bit varying", "interval"),
        *("time without time zone", "time with time zone"),
        *("timestamp without time zone", "timestamp with time zone"),
    }
)


def _grows(before: TableColumn, after: TableColumn) -> bool:
    """Return whether a type only got wider."""
    if before.type != after.type:
        old, new = _RANK.get(before.type), _RANK.get(after.type)
        return old is not None and new is not None and old[0] == new[0] and old < new
    if before.type == "numeric":
        return _numeric_grows(before, after)
    if before.type == "interval" and _fields(before) != _fields(after):
        return after.typmod == -1
    if before.type in _SIZED:
        return after.typmod == -1 or -1 < before.typmod <= after.typmod
    return False


def _fields(interval: TableColumn) -> int:
    """Return the fields of an interval, such as YEAR TO MONTH, as bits."""
    return interval.typmod >> _FIELDS_SHIFT


def _numeric_grows(before: TableColumn, after: TableColumn) -> bool:
    """Return whether a numeric kept its scale and all its digits."""
    old, new = (each.announced.precision_and_scale for each in (before, after))
    if new is None:
        return True
    if old is None:
        return False
    return old[1] == new[1] and old[0] <= new[0]
