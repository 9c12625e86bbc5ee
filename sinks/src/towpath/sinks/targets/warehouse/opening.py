"""
Create tables, fit them to their sources, read their state, and detect replaced ones.

Each step is safe to repeat, and safe to interrupt at any statement.

A table follows its source: it gains columns and wider types, and keeps columns that the
source drops. The sink's driver requests the values that a default or a rename put into
old rows (``engine/column_changes``). A change of shape that a table cannot follow holds
back only its own route: the changes of the route are refused, with the remedy, until
the table fits, which each batch of the route checks again.

A table gets an id when it is created, as one of its properties; a file next to the
sink's checkpoint has the ids of the sink's tables. A table with a different id was
dropped and recreated: the rows of the old one are lost, including its tombstones. First
the rows are requested, and only then is the new id stored: a process that ends in
between requests the rows again. A table that is not in the file is accepted as it is.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from towpath.settings import PartitionField, Route, RouteKind, Sink, WarehouseOptions
from towpath.settings.sink import parse_partition
from towpath.sinks.errors import KeylessTableError, StatementRefusedError
from towpath.sinks.ports import Commit, RelationSource, Repairs, SqlSession
from towpath.sinks.state.files import KnownIds
from towpath.sinks.targets.routes import HeldBackRoutes
from towpath.sinks.targets.warehouse.client import (
    ForeignTableError,
    PartitionFieldError,
    ReservedColumnError,
)
from towpath.sinks.targets.warehouse.ddl import (
    FLOOR_PROPERTY,
    ID_PROPERTY,
    KEY_PROPERTY,
    creation,
    evolution,
    id_property,
    identifier_fields,
    key_property,
    live_view,
    property_changes,
    widens,
)
from towpath.sinks.targets.warehouse.schema import (
    LakeColumn,
    LakeName,
    LakeTable,
    current_state,
    event_log,
    lake_name,
    repartition,
    type_of,
)
from towpath.sinks.targets.warehouse.statements import commits

# Operations that add no rows: files were merged, or rows were only deleted.
_ADDS_NOTHING: Final = ("replace", "delete")


class TableState(NamedTuple):
    """
    The state of a table: its columns and types, its partitions, its properties.

    Attributes:
        is_new: Whether it has just been created.
    """

    columns: dict[str, str]
    partition: tuple[PartitionField, ...]
    properties: dict[str, str]
    is_new: bool = False

    @property
    def floor(self) -> str | None:
        """The floor that is stored in the table, if there is one."""
        return self.properties.get(FLOOR_PROPERTY)

    @property
    def id(self) -> str:
        """The id that distinguishes it from another table with the same name."""
        return self.properties[ID_PROPERTY]


def ensure(
    session: SqlSession,
    table: LakeTable,
    options: WarehouseOptions,
) -> tuple[LakeTable, TableState]:
    """
    Create the table, or fit it to its source.

    Args:
        session: The engine.
        table: The wanted table.
        options: Its partitions and properties.

    Returns:
        The table, including the columns that its source lacks, and its types if they
        are wider than wanted; and the state that was found.

    Raises:
        ForeignTableError: The table has a different key, or its columns do not fit.
        PartitionFieldError: The table cannot be partitioned as configured.
    """
    new_id = uuid.uuid4().hex
    _create(session, table, options, new_id)
    found = describe_table(session, table.name)
    _check_key(table, found)
    found = found._replace(is_new=found.properties.get(ID_PROPERTY) == new_id)
    if ID_PROPERTY not in found.properties:
        session.sql(id_property(table.name, new_id))
        found = found._replace(properties={**found.properties, ID_PROPERTY: new_id})
    whole = replace(
        table,
        columns=tuple(_as_wide(column, found) for column in table.columns),
        retained=_retained(table, found),
    )
    statements = [
        *evolution(table, found.columns),
        *repartition(whole, found.partition),
        *property_changes(table, options, found.properties),
    ]
    session.sql(identifier_fields(table))
    for statement in statements:
        session.sql(statement)
    return whole, found


def _create(
    session: SqlSession, table: LakeTable, options: WarehouseOptions, id_: str
) -> None:
    """Create a table unless it exists."""
    try:
        statements = creation(table, options, id_)
    except PartitionFieldError:
        # An existing table keeps a partition column that its source has dropped.
        if not _exists(session, table.name):
            raise
        return
    for statement in statements:
        session.sql(statement)


def _exists(session: SqlSession, name: LakeName) -> bool:
    try:
        describe_table(session, name)
    except StatementRefusedError:
        return False
    return True


def describe_table(session: SqlSession, name: LakeName) -> TableState:
    """Read the state of a table."""
    described = session.sql(f"DESCRIBE TABLE {name.sql}").to_pylist()
    pairs = [(row["col_name"], row["data_type"]) for row in described]
    # A heading, such as "# Partitioning"; a column may begin with "#", too.
    ends = [n for n, (name, _) in enumerate(pairs) if not name or name[:2] == "# "]
    end = ends[0] if ends else len(pairs)
    stored = session.sql(f"SHOW TBLPROPERTIES {name.sql}").to_pylist()
    return TableState(
        dict(pairs[:end]),
        _partition(pairs[end:]),
        {row["key"]: row["value"] for row in stored},
    )


def adds_no_key(
    session: SqlSession, name: LakeName, since: Commit | None, until: Commit
) -> bool:
    """
    Return whether no commit after ``since``, up to ``until``, has added a key.

    The commits are checked backwards from ``until``. A missing commit, such as an
    expired version or a commit of another branch, may have added any key.
    """
    rows = session.sql(commits(name)).to_pylist()
    remaining = {row["snapshot_id"]: row for row in rows}
    end = None if since is None else since.snapshot_id
    at: int | None = until.snapshot_id
    while at != end:
        row = None if at is None else remaining.get(at)
        if row is None or _may_add(row):
            return False
        at = row["parent_id"]
    return True


def _may_add(row: Mapping[str, Any]) -> bool:
    """Return whether a commit may have added rows."""
    if row["operation"] in _ADDS_NOTHING:
        return False
    # A DELETE without a match may be recorded as an overwrite. A summary with the total
    # number of files also has the number of added files, if there are any.
    summary = dict(row["summary"] or ())
    return "added-data-files" in summary or "total-data-files" not in summary


def _partition(pairs: Sequence[tuple[str, str]]) -> tuple[PartitionField, ...]:
    """
    Read the partition fields that follow the columns of a description.

    If all of the fields are bare columns, they are listed like columns; if one has a
    transform, all are listed as ``Part 0``, ``Part 1``.
    """
    fields = []
    inside = False
    for name, kind in pairs:
        if name.startswith("# Partition"):
            inside = True
        elif name.startswith("# col_name"):
            continue
        elif not name or name[0] == "#":
            inside = False
        elif inside:
            text = kind if name.startswith("Part ") else name
            fields.append(parse_partition(text.replace("`", "")))
    return tuple(fields)


def _retained(table: LakeTable, found: TableState) -> tuple[LakeColumn, ...]:
    wanted = {column.name for column in table.columns}
    kept = [
        (name, type_of(ddl))
        for name, ddl in found.columns.items()
        if name not in wanted
    ]
    return tuple(LakeColumn(name, kind) for name, kind in kept if kind is not None)


def _as_wide(column: LakeColumn, found: TableState) -> LakeColumn:
    """Keep a wider type: records from before the source narrowed it can be replayed."""
    ddl = found.columns.get(column.name)
    kind = None if ddl is None else type_of(ddl)
    if ddl is None or kind is None or not widens(column.type.ddl, ddl):
        return column
    return replace(column, type=kind)


def _check_key(table: LakeTable, found: TableState) -> None:
    stored = found.properties.get(KEY_PROPERTY)
    if stored != key_property(table):
        name = f"{table.name.namespace}.{table.name.table}"
        message = f"{name}: its key is {stored}, the source's is {key_property(table)}"
        raise ForeignTableError(message)


_log = structlog.get_logger("towpath.sinks.warehouse")


class TableLosses:
    """The ids of one warehouse's tables, and the requests after a loss."""

    def __init__(self, file: Path | None, repairs: Repairs | None) -> None:
        """
        Describe the file; nothing is read yet.

        Args:
            file: The file of the ids; without it, the ids are kept only in memory.
            repairs: Requests snapshots.
        """
        self._known = KnownIds(file)
        self._repairs = repairs

    def load(self) -> None:
        """Read the ids of the tables that the sink has written to."""
        self._known.restore()

    def check(self, route: str, id_: str) -> None:
        """
        Request the rows of a route if its table has been replaced.

        Raises:
            UnavailableError: The request may not have been sent; try again.
        """
        if self._known.of(route) not in {None, id_}:
            self._request_rows(route)
        self._known.learn(route, id_)

    def _request_rows(self, route: str) -> None:
        why = f"the table of {route} is not the one that was written"
        if self._repairs is not None and self._repairs.request_all(route, why):
            _log.warning(
                "warehouse table lost rows: a snapshot of them is requested", reason=why
            )
            return
        _log.error(
            "warehouse table lost rows: no snapshot can be requested", reason=why
        )


# Errors that hold a route back: the source's shape or an existing table does not fit.
HOLDING_BACK_ERRORS: Final = (ForeignTableError, KeylessTableError, ReservedColumnError)


class TableRegistry:
    """
    The open tables of one warehouse, by route.

    Attributes:
        held_back: The routes whose tables do not fit.
    """

    def __init__(
        self,
        sink: Sink,
        relations: RelationSource,
        session: SqlSession,
        losses: TableLosses,
        branch: str,
    ) -> None:
        self._losses = losses
        self._branch = branch
        self._options = sink.warehouse
        self._routes = {route.name: route for route in sink.route}
        self._relations = relations
        self._session = session
        self._tables: dict[str, LakeTable] = {}
        self._wanted_tables: dict[str, LakeTable] = {}
        self.held_back = HeldBackRoutes(_log)

    def check(self) -> None:
        """
        Check that every table with configured partitions has a route.

        Raises:
            PartitionFieldError: A table has no route.
        """
        unknown = sorted(self._options.partition.keys() - self._routes.keys())
        if unknown:
            message = f"warehouse.partition: no route is named {unknown[0]}"
            raise PartitionFieldError(message)

    def open(self, name: str) -> tuple[LakeTable, TableState | None]:
        """
        Return a route's table, and its state if it was opened just now.

        Raises:
            ForeignTableError: The table exists, but does not fit; see also
                ``HOLDING_BACK_ERRORS``.
            ShapeUnknownError: The table's source has not been announced yet.
            PartitionFieldError: The table cannot be partitioned as configured.
        """
        known = self._tables.get(name)
        if known is not None:
            return known, None
        wanted = self._wanted(self._routes[name])
        table, found = self._ensure(self._routes[name], wanted)
        self._tables[name], self._wanted_tables[name] = table, wanted
        self.held_back.resume(name)
        return table, found

    def drop_outdated(self, names: Iterable[str]) -> None:
        """Forget tables whose source was announced with a different shape."""
        tables = [n for n in names if self._routes[n].kind is not RouteKind.EVENT_LOG]
        if not tables:
            return
        self._relations.refresh()
        for name in tables:
            if name in self._tables and self._is_outdated(name):
                del self._tables[name]

    def is_own(self, name: str) -> bool:
        """Return whether a route's table exists, and a sink has created it."""
        try:
            found = describe_table(self._session, lake_name(name))
        except StatementRefusedError:
            return False
        return KEY_PROPERTY in found.properties

    def _is_outdated(self, name: str) -> bool:
        try:
            return self._wanted(self._routes[name]) != self._wanted_tables[name]
        except HOLDING_BACK_ERRORS:
            return True

    def _ensure(self, route: Route, table: LakeTable) -> tuple[LakeTable, TableState]:
        opened = ensure(self._session, table, self._options)
        self._losses.check(route.name, opened[1].id)
        if route.kind is not RouteKind.EVENT_LOG:
            self._session.sql(live_view(table))
        return opened

    def _wanted(self, route: Route) -> LakeTable:
        split = self._partition(route.name)
        if route.kind is RouteKind.EVENT_LOG:
            table = event_log(route.name, split)
        else:
            shape = self._relations.shape(route.topic)
            table = current_state(route.name, shape, split)
        return replace(table, branch=self._branch)

    def _partition(self, name: str) -> tuple[PartitionField, ...]:
        texts = self._options.partition.get(name, ())
        return tuple(parse_partition(text) for text in texts)
