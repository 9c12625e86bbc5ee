"""
Make a table exist and fit, and look at what its newest commit did.

Everything is safe to repeat, and to be interrupted at any statement.

The tables of one warehouse, by route: made to exist and to fit, or held back.

A table follows its source: it gains columns and width, and keeps what the source drops.
What a default or a rename has put into old rows is read by the sink's driver
(``jobs/reshaping.py``).

A change that no table can follow holds back its own route, and no other: its changes
are refused, with the cure, until the table fits; each batch of it looks again.

How a sink notices that a table is not the one that it has written.

A table gets an id when it is made, as one of its properties; the ids of a sink's tables
stand in a file beside its checkpoint. A table with another id was dropped and made
anew, by whomever: what the old one held is gone, deletes too.

The rows are asked for first, and only then the new id is known: who ends in between
asks once more. A table of which nothing is known is taken as it is.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from towpath.schemas.failure import TowpathError
from towpath.settings import PartitionField, Route, RouteKind, Sink, WarehouseOptions
from towpath.settings.sink import parse_partition
from towpath.sinks.errors import KeylessTableError
from towpath.sinks.ports import RelationSource, Repairs, SqlSession
from towpath.sinks.state.files import KnownIds
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
    settled,
    widens,
)
from towpath.sinks.targets.warehouse.schema import (
    LakeColumn,
    LakeName,
    LakeTable,
    current_state,
    event_log,
    repartition,
    type_of,
)
from towpath.sinks.targets.warehouse.statements import commits, newest_commit

# By the format: files were put together, or rows were only taken away.
_ADDS_NOTHING: Final = ("replace", "delete")


class Commit(NamedTuple):
    """One commit of a table, with the engine's own summary of it."""

    snapshot_id: int
    summary: dict[str, str]

    @property
    def added_rows(self) -> int:
        """How many rows it wrote, new ones and new versions of old ones."""
        return int(self.summary.get("added-records", 0))

    @property
    def is_empty(self) -> bool:
        """Whether the table has no rows at all, not even replaced ones."""
        return self.summary.get("total-records") == "0"


class Found(NamedTuple):
    """
    A table as it stands: its columns and their types, its split, its properties.

    Attributes:
        is_new: Whether it was made just now.
    """

    columns: dict[str, str]
    partition: tuple[PartitionField, ...]
    properties: dict[str, str]
    is_new: bool = False

    @property
    def floor(self) -> str | None:
        """The floor that the table remembers, if it has one."""
        return self.properties.get(FLOOR_PROPERTY)

    @property
    def id(self) -> str:
        """What tells it from another table of its name."""
        return self.properties[ID_PROPERTY]


def ensure(
    session: SqlSession,
    table: LakeTable,
    options: WarehouseOptions,
) -> tuple[LakeTable, Found]:
    """
    Create the table, or add to it what it lacks.

    Args:
        session: The engine.
        table: What is wanted.
        options: Its partitions and properties.

    Returns:
        The table with the columns that it has beside the wanted ones and the types that
        are wider than wanted, and what was found.

    Raises:
        ForeignTableError: It exists with another key or with columns that do not fit.
        PartitionFieldError: It cannot be split as it is configured.
    """
    new_id = uuid.uuid4().hex
    for statement in creation(table, options, new_id):
        session.sql(statement)
    found = look(session, table.name)
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
        *settled(table, options, found.properties),
    ]
    session.sql(identifier_fields(table))
    for statement in statements:
        session.sql(statement)
    return whole, found


def look(session: SqlSession, name: LakeName) -> Found:
    """Read how a table stands."""
    described = session.sql(f"DESCRIBE TABLE {name.sql}").to_pylist()
    pairs = [(row["col_name"], row["data_type"]) for row in described]
    ends = [n for n, (name, _) in enumerate(pairs) if not name or name[0] == "#"]
    end = ends[0] if ends else len(pairs)
    stored = session.sql(f"SHOW TBLPROPERTIES {name.sql}").to_pylist()
    return Found(
        dict(pairs[:end]),
        _partition(pairs[end:]),
        {row["key"]: row["value"] for row in stored},
    )


def newest(session: SqlSession, name: LakeName, branch: str = "main") -> Commit | None:
    """Return a branch's newest commit; a table never written to has none."""
    rows = session.sql(newest_commit(name, branch)).to_pylist()
    if not rows:
        return None
    return Commit(rows[0]["snapshot_id"], dict(rows[0]["summary"]))


def adds_no_key(
    session: SqlSession, name: LakeName, since: Commit | None, until: Commit
) -> bool:
    """
    Tell whether no commit behind one has added a key, up to a newer one and with it.

    Each is looked at, from the newer one back. Where a commit is missing on the way,
    forgotten as an old version or put aside, it may have added any.
    """
    told = session.sql(commits(name)).to_pylist()
    left = {row["snapshot_id"]: row for row in told}
    end = None if since is None else since.snapshot_id
    at: int | None = until.snapshot_id
    while at != end:
        row = None if at is None else left.get(at)
        if row is None or _may_add(row):
            return False
        at = row["parent_id"]
    return True


def _may_add(row: Mapping[str, Any]) -> bool:
    """Tell whether a commit may have added rows."""
    if row["operation"] in _ADDS_NOTHING:
        return False
    # A DELETE that finds no row may call itself an overwrite; who counts the files
    # that are there has counted those that he added.
    summary = dict(row["summary"] or ())
    return "added-data-files" in summary or "total-data-files" not in summary


def _partition(pairs: Sequence[tuple[str, str]]) -> tuple[PartitionField, ...]:
    """
    Read the partition fields behind the columns of a description.

    Bare columns alone are listed like columns; as soon as there is a transform, all
    stand as ``Part 0``, ``Part 1``.
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


def _retained(table: LakeTable, found: Found) -> tuple[LakeColumn, ...]:
    wanted = {column.name for column in table.columns}
    kept = [
        (name, type_of(ddl))
        for name, ddl in found.columns.items()
        if name not in wanted
    ]
    return tuple(LakeColumn(name, kind) for name, kind in kept if kind is not None)


def _as_wide(column: LakeColumn, found: Found) -> LakeColumn:
    """Keep a wider type: records from before it was narrowed can come again."""
    ddl = found.columns.get(column.name)
    kind = None if ddl is None else type_of(ddl)
    if ddl is None or kind is None or not widens(column.type.ddl, ddl):
        return column
    return replace(column, type=kind)


def _check_key(table: LakeTable, found: Found) -> None:
    stored = found.properties.get(KEY_PROPERTY)
    if stored != key_property(table):
        name = f"{table.name.namespace}.{table.name.table}"
        message = f"{name}: its key is {stored}, the source's is {key_property(table)}"
        raise ForeignTableError(message)


_log = structlog.get_logger("towpath.sinks.warehouse")


class TableLosses:
    """The tables of one warehouse, by their ids."""

    def __init__(self, file: Path | None, repairs: Repairs | None) -> None:
        """
        Describe whom to ask; nothing is read yet.

        Args:
            file: Where to keep the ids; without it, they are known while we run.
            repairs: Has rows read anew.
        """
        self._known = KnownIds(file)
        self._repairs = repairs

    def recall(self) -> None:
        """Learn what was known of the tables when the sink ran last."""
        self._known.recall()

    def look(self, route: str, id_: str) -> None:
        """
        Have the rows of a route read anew if its table is another one than before.

        Raises:
            UnavailableError: They are not known to be asked for; try again.
        """
        if self._known.of(route) not in {None, id_}:
            self._ask(route)
        self._known.learn(route, id_)

    def _ask(self, route: str) -> None:
        why = f"the table of {route} is not the one that was written"
        if self._repairs is not None and self._repairs.request_all(route, why):
            _log.warning("table lost rows, all of them asked for", reason=why)
            return
        _log.error("table lost rows that cannot be asked for", reason=why)


# What the source's shape, or a table that is there, makes impossible.
UNFIT: Final = (ForeignTableError, KeylessTableError, ReservedColumnError)


class TableRegistry:
    """The open tables of one warehouse."""

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
        self._wishes: dict[str, LakeTable] = {}
        self._held: dict[str, str] = {}

    def check(self) -> None:
        """
        See that every table that is to be split has a route.

        Raises:
            PartitionFieldError: One has none.
        """
        unknown = sorted(self._options.partition.keys() - self._routes.keys())
        if unknown:
            message = f"warehouse.partition: no route is named {unknown[0]}"
            raise PartitionFieldError(message)

    def open(self, name: str) -> tuple[LakeTable, Found | None]:
        """
        Return a route's table, and what was found if it was opened just now.

        Raises:
            ForeignTableError: It is there and cannot follow; ``UNFIT`` has the others.
            ShapeUnknownError: Its source is not announced yet.
            PartitionFieldError: It cannot be split as it is configured.
        """
        known = self._tables.get(name)
        if known is not None:
            return known, None
        wanted = self._wanted(self._routes[name])
        table, found = self._ensure(self._routes[name], wanted)
        self._tables[name], self._wishes[name] = table, wanted
        if self._held.pop(name, None) is not None:
            _log.info("route goes on: its table fits again", route=name)
        return table, found

    def hold(self, name: str, error: TowpathError) -> None:
        """Hold a route back, and say so once."""
        reason = f"{error}. {error.remedy}"
        if self._held.get(name) != reason:
            _log.error("route held back", route=name, reason=reason)
        self._held[name] = reason

    def reason(self, name: str) -> str:
        """Tell why a route is held back, and what cures it."""
        return self._held[name]

    def follow(self, names: Iterable[str]) -> None:
        """Let go of tables whose source was announced with another shape."""
        mine = [n for n in names if self._routes[n].kind is not RouteKind.EVENT_LOG]
        if not mine:
            return
        self._relations.refresh()
        for name in mine:
            if name in self._tables and self._is_outdated(name):
                del self._tables[name]

    def _is_outdated(self, name: str) -> bool:
        try:
            return self._wanted(self._routes[name]) != self._wishes[name]
        except UNFIT:
            return True

    def _ensure(self, route: Route, table: LakeTable) -> tuple[LakeTable, Found]:
        opened = ensure(self._session, table, self._options)
        self._losses.look(route.name, opened[1].id)
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
