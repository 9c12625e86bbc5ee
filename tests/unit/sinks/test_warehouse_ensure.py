"""Changes to an existing table before anything is written to it."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from towpath.settings import PartitionField, WarehouseOptions
from towpath.settings.sink import parse_partition
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.errors import StatementRefusedError
from towpath.sinks.ports import Commit
from towpath.sinks.targets.warehouse.client import (
    ForeignTableError,
    PartitionFieldError,
)
from towpath.sinks.targets.warehouse.ddl import (
    FLOOR_PROPERTY,
    ID_PROPERTY,
    KEY_PROPERTY,
    properties_of,
)
from towpath.sinks.targets.warehouse.opening import ensure
from towpath.sinks.targets.warehouse.schema import current_state

OPTIONS = WarehouseOptions()
SHAPE = RelationShape(
    *("shop", "orders", (Column("id", "bigint"), Column("n", "integer"))),
    *(("id",), "0"),
)
TABLE = current_state("shop.orders", SHAPE)
COLUMNS = {"id": "bigint", "n": "int", "_position": "string", "_is_deleted": "boolean"}


class Session:
    """An engine with a table as described, which records alterations."""

    def __init__(self, columns=COLUMNS, split=(), key=("id",), **properties):
        self.altered = []
        self.is_missing = False
        self._columns = columns
        self._split = split
        self._properties = {
            KEY_PROPERTY: json.dumps(key),
            ID_PROPERTY: "an id",
            **properties_of(TABLE, OPTIONS),
            **properties,
        }

    def sql(self, text):
        """Describe the table, or record a statement."""
        if text.startswith("DESCRIBE"):
            if self.is_missing:
                message = "there is no such table"
                raise StatementRefusedError(message)
            pairs = [*self._columns.items()]
            if self._split:
                pairs += [("# Partitioning", ""), *self._split, ("", "")]
            names, kinds = zip(*pairs, strict=True)
            return pa.table({"col_name": names, "data_type": kinds})
        if text.startswith("SHOW"):
            names, values = zip(*self._properties.items(), strict=True)
            return pa.table({"key": names, "value": values})
        if text.startswith("ALTER"):
            self.altered.append(text.split(" ", 3)[3])
        return pa.table({})

    def missing(self):
        """Remove the table."""
        self.is_missing = True
        return self

    def without(self, name):
        """Remove a property of the table."""
        self._properties.pop(name)
        return self


IDENTIFIED = "SET IDENTIFIER FIELDS `id`"


def opened(session, table=TABLE):
    """Open the table."""
    return ensure(session, table, OPTIONS)


def test_a_table_that_fits_is_left_as_it_is():
    """
    It keeps its id, does not count as new, and has no floor.
    """
    session = Session()
    table, found = opened(session)

    assert ([IDENTIFIED], TABLE) == (session.altered, table)
    assert ("an id", False, None, ()) == (
        *(found.id, found.is_new, found.floor),
        found.partition,
    )


def test_a_table_remembers_its_floor():
    """
    Rows below the floor never reappear.
    """
    assert "5" == opened(Session(**{FLOOR_PROPERTY: "5"}))[1].floor


def test_a_table_with_a_different_key_is_foreign():
    """
    Its rows belong to another program.
    """
    with pytest.raises(ForeignTableError, match="its key is"):
        opened(Session(key=("n",)))


def test_a_table_without_an_id_is_given_one():
    """
    An earlier version created it; it does not count as new.
    """
    session = Session().without(ID_PROPERTY)
    _, found = opened(session)

    assert (True, False) == (
        f"SET TBLPROPERTIES ('towpath.id' = '{found.id}')" in session.altered,
        found.is_new,
    )


def test_a_table_gains_columns_and_properties():
    """
    A column that the source no longer has is retained.
    """
    columns = {**COLUMNS, "old": "string"}
    columns.pop("n")
    changed = {"write.merge.mode": "copy-on-write"}
    session = Session(columns, **changed)
    table, _ = opened(session)

    assert [
        IDENTIFIED,
        "ADD COLUMN `n` int",
        "SET TBLPROPERTIES ('write.merge.mode' = 'merge-on-read')",
    ] == session.altered
    assert [("old", "string")] == [(c.name, c.type.ddl) for c in table.retained]


@pytest.mark.parametrize(
    ("found", "kept", "altered"),
    [("bigint", "bigint", []), ("int", "int", []), ("", "int", ["ADD COLUMN `n` int"])],
)
def test_a_column_that_is_wider_than_wanted_is_kept(found, kept, altered):
    """
    Records from before the narrowing may arrive again.
    """
    columns = {name: kind for name, kind in (COLUMNS | {"n": found}).items() if kind}
    session = Session(columns)
    table, _ = opened(session)

    assert (kept, [IDENTIFIED, *altered]) == (
        next(c.type.ddl for c in table.columns if c.name == "n"),
        session.altered,
    )


def test_a_narrower_column_is_widened_and_an_unfit_one_refused():
    """
    An int becomes a bigint; a string does not become a number.
    """
    wide = (Column("id", "bigint"), Column("n", "bigint"))
    table = current_state("shop.orders", replace(SHAPE, columns=wide))
    session = Session()
    widened, _ = opened(session, table)

    assert [IDENTIFIED, "ALTER COLUMN `n` TYPE bigint"] == session.altered
    assert table == widened
    with pytest.raises(ForeignTableError):
        opened(Session(COLUMNS | {"n": "string"}))


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ([("Part 0", "bucket(4, `id`)"), ("Part 1", "n")], ("bucket(4, id)", "n")),
        ([("n", "int")], ("n",)),
    ],
)
def test_the_partitions_of_a_table_are_read(split, expected):
    """
    Plain columns are listed as columns; with a transform, all are listed as parts.
    """
    fields = tuple(parse_partition(text) for text in expected)
    table = replace(TABLE, partition=fields)
    mode = {"write.distribution-mode": "hash", "write.merge.distribution-mode": "hash"}
    session = Session(split=split, **mode)
    _, found = opened(session, table)

    assert (fields, [IDENTIFIED]) == (found.partition, session.altered)


def test_a_table_with_different_partitions_is_repartitioned():
    """
    Existing rows remain in their files.
    """
    field: PartitionField = parse_partition("n")
    session = Session()
    opened(session, replace(TABLE, partition=(field,)))

    assert any("PARTITION FIELD" in each for each in session.altered)


def test_a_table_remains_partitioned_by_a_column_that_the_source_drops():
    """
    The sink does not halt, and its other routes continue.
    """
    columns = COLUMNS | {"day": "date"}
    mode = {"write.distribution-mode": "hash", "write.merge.distribution-mode": "hash"}
    session = Session(columns, split=[("day", "date")], **mode)
    table, _ = opened(session, replace(TABLE, partition=(parse_partition("day"),)))

    assert ([IDENTIFIED], ["day"]) == (
        session.altered,
        [column.name for column in table.retained],
    )


def test_a_new_table_needs_the_columns_of_its_partitions():
    """
    A partition field that is new in an existing table needs its column too.
    """
    table = replace(TABLE, partition=(parse_partition("gone"),))

    for session in (Session(), Session().missing()):
        with pytest.raises(PartitionFieldError, match="no column gone"):
            opened(session, table)


@pytest.mark.parametrize(
    ("summary", "added", "is_empty"),
    [
        ({"added-records": "3", "total-records": "3"}, 3, False),
        ({"total-records": "0"}, 0, True),
        ({}, 0, False),
    ],
)
def test_a_commit_reports_how_many_rows_it_added(summary, added, is_empty):
    """
    A summary without a row count does not mean that there are no rows.
    """
    commit = Commit(1, summary)

    assert (added, is_empty) == (commit.added_rows, commit.is_empty)
