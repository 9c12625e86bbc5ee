"""
Table contracts: what a migration does to row topics and to each sink. No I/O.

A sink's route sees the table as the relay announces it, through its own exclusions and
renames. Types are judged by the same functions that the sink itself uses to choose the
field of an index, or the column of a warehouse or Postgres table.

Statements that change rows of captured tables are judged too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from towpath.schemas.failure import HaltError
from towpath.settings import Route, RouteKind, Settings, Sink, SinkKind
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.changes.routing import Routing
from towpath.sinks.contracts.catalog import Catalog, RowStatement, Table, TableColumn
from towpath.sinks.contracts.changes import (
    ChangeKind,
    ColumnChange,
    TableChange,
    changed_tables,
)
from towpath.sinks.contracts.findings import (
    ContractFinding,
    Level,
    Published,
    column_name,
    gone_tables,
    is_captured,
    new_tables,
    outbox_findings,
    topic_findings,
    topic_of,
)
from towpath.sinks.kinds import kind_of, route_mistakes


def evaluate(
    before: Catalog, after: Catalog, settings: Settings
) -> list[ContractFinding]:
    """
    Judge a migration by the catalogs before and after it.

    Tables that the relay neither captures nor reads have no findings.
    """
    found = [
        *gone_tables(before, after, settings),
        *new_tables(before, after, settings),
        *outbox_findings(before, after, settings),
    ]
    for change in changed_tables(before, after):
        if is_captured(change.before, settings):
            found += topic_findings(change, settings)
            found += sink_findings(change, settings)
    return found


def row_findings(
    statements: Sequence[RowStatement], before: Catalog, settings: Settings
) -> list[ContractFinding]:
    """Judge statements that change rows of captured tables."""
    found = []
    for statement in statements:
        table = before.tables[statement.table]
        if is_captured(table, settings):
            change, sentence, step = _JUDGED[statement.operation]
            place = topic_of(table, settings), table.name.text
            found.append(
                ContractFinding(Level.NOTICE, *place, change, sentence, (step,))
            )
    return found


class _RouteView(NamedTuple):
    """
    A route's view of a table.

    Attributes:
        sink: The sink.
        route: The route.
        before: The table before the migration, as the route shapes it.
        after: The table after the migration, as the route shapes it.
    """

    sink: Sink
    route: Route
    before: RelationShape
    after: RelationShape

    @property
    def place(self) -> str:
        """The sink and its route, as text."""
        return f"sink {self.sink.name}, route {self.route.name}"


def sink_findings(change: TableChange, settings: Settings) -> list[ContractFinding]:
    """Judge the changes to a captured table for every route that reads its topic."""
    published = Published(settings.relay.rows)
    topic = topic_of(change.before, settings)
    return [
        finding
        for sink in settings.sink
        for route in sink.route
        if route.kind is RouteKind.TABLE and route.topic == topic
        for finding in _route_findings(sink, route, change, published)
    ]


def _route_findings(
    sink: Sink, route: Route, change: TableChange, published: Published
) -> Iterator[ContractFinding]:
    before, after = (
        announced(table, published) for table in (change.before, change.after)
    )
    routing = Routing(route)
    view = _RouteView(sink, route, routing.shape(before), routing.shape(after))
    table = change.before.name.text
    yield from _mistakes(view, before, after, table)
    for each in change.columns:
        old = _outputs(routing, before, each.before)
        new = _outputs(routing, after, each.after)
        name = column_name(change.before, each.name)
        for level, sentence, steps in _judge(view, each, old, new):
            yield ContractFinding(level, view.place, name, each.kind, sentence, steps)


def announced(table: Table, published: Published) -> RelationShape:
    """Return a table as the relay announces it."""
    key = published.key(table)
    columns = tuple(
        column.announced
        for column in table.columns.values()
        if published.carries(table, column)
    )
    return RelationShape(table.name.schema, table.name.table, columns, key, "")


def _outputs(
    routing: Routing, shape: RelationShape, column: TableColumn | None
) -> list[Column]:
    """Return the sink's columns that have, or are computed from, a column's values."""
    if column is None:
        return []
    names = (
        routing.name(one.name)
        for one in routing.transformed(shape.columns).columns
        if column.name in one.inputs
    )
    routed = routing.shape(shape)
    found = (routed.column(name) for name in names if name is not None)
    return [one for one in found if one is not None]


def _mistakes(
    view: _RouteView, before: RelationShape, after: RelationShape, table: str
) -> Iterator[ContractFinding]:
    """Yield the mistakes that a migration causes in a route."""
    unfit = kind_of(view.sink).unfit_name
    former = set(route_mistakes(view.route, before, unfit))
    for mistake in route_mistakes(view.route, after, unfit):
        if mistake not in former:
            yield ContractFinding(
                Level.REFUSED,
                view.place,
                table,
                "route broken",
                f"The route no longer fits the table: {mistake}.",
                ("Change the route in towpath.toml before the migration runs.",),
            )
    if before.key and not after.key:
        yield ContractFinding(
            Level.REFUSED,
            view.place,
            table,
            "key lost",
            "A sink writes rows by their key, and the table has none.",
            ("Keep a key, or name one in relay.rows.key_columns.",),
        )
    if view.sink.kind == SinkKind.WAREHOUSE:
        yield from _unfit_names(view, table)


def _unfit_names(view: _RouteView, table: str) -> Iterator[ContractFinding]:
    """Yield a finding if new names are reserved or ambiguous in the warehouse."""
    try:
        _lake_types(view.before)
    except HaltError:
        return
    try:
        _lake_types(view.after)
    except HaltError as error:
        yield ContractFinding(
            Level.REFUSED,
            view.place,
            table,
            "name refused",
            f"{str(error).rstrip('.')}.",
            (error.remedy,),
        )


_Judged = tuple[Level, str, tuple[str, ...]]


def _judge(
    view: _RouteView, change: ColumnChange, old: list[Column], new: list[Column]
) -> Iterator[_Judged]:
    """Yield judgments of a change to a column; none if the sink lacks the column."""
    kind = change.kind
    if not old and not new:
        return
    if kind in _TYPE_CHANGES:
        for one, other in zip(old, new, strict=False):
            judged = _TYPE_JUDGES.get(view.sink.kind, _untyped)(view, one, other)
            if judged is not None:
                yield judged
    elif kind is ChangeKind.ADDED and not (change.after and change.after.is_filled):
        yield Level.FINE, "The column is added, and no row is delivered for it.", ()
    elif kind in _JUDGMENTS:
        sentence, step = _JUDGMENTS[kind]
        if kind in _LEAVES_A_COLUMN:
            step = _COLUMN_REMOVALS.get(view.sink.kind, step)
        yield Level.NOTICE, sentence, (step.format(sink=view.sink.name),)


_JUDGMENTS: Final[Mapping[ChangeKind, tuple[str, str]]] = MappingProxyType(
    {
        ChangeKind.ADDED: (
            "The column is added; the sink reads the rows with a value in it again.",
            "Wait until towpath status lists no incomplete route of {sink}.",
        ),
        ChangeKind.DROPPED: (
            "Rows that do not change keep the value of the dropped column.",
            "Remove these values: towpath sink refill {sink}",
        ),
        ChangeKind.RENAMED: (
            (
                "The sink gets a new column, filled as its rows are read again; the "
                "former column keeps its values."
            ),
            "Remove the former column: towpath sink refill {sink}",
        ),
        ChangeKind.LABELS_RENAMED: (
            "Rows that do not change keep the former label.",
            "Read these rows again: towpath sink refill {sink}",
        ),
    }
)
# A refill sets only the columns that the source has: a table's former columns remain.
_COLUMN_REMOVALS: Final[Mapping[str, str]] = MappingProxyType(
    {
        SinkKind.WAREHOUSE: (
            "Remove the column in the warehouse: ALTER TABLE ... DROP COLUMN"
        ),
        SinkKind.POSTGRES: (
            "Remove the column in the target: ALTER TABLE ... DROP COLUMN ... CASCADE"
        ),
    }
)
_LEAVES_A_COLUMN: Final = frozenset({ChangeKind.DROPPED, ChangeKind.RENAMED})
_TYPE_CHANGES: Final = frozenset(
    {ChangeKind.GROWN, ChangeKind.SHRUNK, ChangeKind.RETYPED}
)


def _untyped(view: _RouteView, _old: Column, _new: Column) -> _Judged:
    sentence = "The sink stores values as they arrive; it reads the older rows again."
    if kind_of(view.sink).has_types:
        sentence = "The sink's columns have types: read its package's documentation."
    return Level.NOTICE, sentence, (f"Check: towpath verify {view.sink.name}",)


def _search(view: _RouteView, old: Column, new: Column) -> _Judged:
    from towpath.sinks.targets.search.schema import field_of  # noqa: PLC0415 - see kinds

    before, after = field_of(old.type), field_of(new.type)
    if before == after:
        return Level.FINE, f"The index field stays {before['type']}.", ()
    sentence = (
        f"The index field stays {before['type']} instead of becoming "
        f"{after['type']}: values that it does not accept become dead letters."
    )
    name = view.sink.name
    steps = (
        f"After the migration: towpath sink rebuild {name}",
        f"Then: towpath dead-letters replay --sink {name} --all",
    )
    return Level.NOTICE, sentence, steps


def _lake_types(shape: RelationShape) -> Mapping[str, str]:
    """Return the types of a table's columns in the warehouse."""
    from towpath.sinks.targets.warehouse.schema import current_state  # noqa: PLC0415

    table = current_state("schema.table", shape)
    return {column.name: column.type.ddl for column in table.columns}


def _warehouse(view: _RouteView, old: Column, new: Column) -> _Judged | None:
    from towpath.sinks.targets.warehouse.ddl import widens  # noqa: PLC0415 - see kinds

    try:
        before = _lake_types(view.before)[old.name]
        after = _lake_types(view.after)[new.name]
    except HaltError:
        return None
    if before == after:
        return Level.FINE, f"The warehouse column stays {before}.", ()
    if widens(before, after):
        return Level.FINE, f"The column grows from {before} to {after}.", ()
    if widens(after, before):
        return Level.NOTICE, f"The column keeps its width, and stays {before}.", ()
    sentence = (
        f"A warehouse column cannot change from {before} to {after}: all changes of "
        "the route become dead letters (ForeignTableError)."
    )
    steps = (
        "Add a column with the new type instead of changing this one.",
        (
            "Or drop the warehouse table, and run towpath sink refill "
            f"{view.sink.name} --route {view.route.name} after the migration."
        ),
    )
    return Level.REFUSED, sentence, steps


def _postgres(view: _RouteView, old: Column, new: Column) -> _Judged | None:
    from towpath.sinks.targets.postgres.schema import table_of  # noqa: PLC0415

    try:
        before, after = (
            {column.name: column.type for column in table_of(view.route, shape).columns}
            for shape in (view.before, view.after)
        )
    except HaltError:
        return None
    kept, wanted = before[old.name], after[new.name]
    if kept == wanted:
        return Level.FINE, f"The target's column stays {kept}.", ()
    sentence = (
        f"The target's column stays {kept} instead of becoming {wanted}: "
        "rows with values that it does not accept become dead letters."
    )
    name = view.sink.name
    steps = (
        "After the migration, in the target: ALTER TABLE ... DROP COLUMN ... CASCADE",
        f"Then: towpath sink refill {name}",
        f"Then: towpath dead-letters replay --sink {name} --all",
    )
    return Level.NOTICE, sentence, steps


_TYPE_JUDGES: Final[
    Mapping[str, Callable[[_RouteView, Column, Column], _Judged | None]]
] = MappingProxyType(
    {
        SinkKind.SEARCH: _search,
        SinkKind.WAREHOUSE: _warehouse,
        SinkKind.POSTGRES: _postgres,
    }
)
_IN_BATCHES: Final = (
    "If many rows change, change them in batches outside the migration: readers of "
    "the topic lag until they have read all of these records."
)
_JUDGED: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "UPDATE": (
            "rows updated",
            "Each updated row adds a record to the topic, and each sink writes it.",
            _IN_BATCHES,
        ),
        "DELETE": (
            "rows deleted",
            (
                "Each deleted row adds a record and a tombstone to the topic, and each "
                "sink deletes the row."
            ),
            _IN_BATCHES,
        ),
        "TRUNCATE": (
            "table truncated",
            (
                "The topic gets one truncation for each partition, and each sink "
                "deletes all rows of the table."
            ),
            'First set on_truncate = "keep" in each route that must keep the rows.',
        ),
    }
)
