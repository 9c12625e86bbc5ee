"""
Aggregate views: their shape, and checks that snapshots can read them.

A view has no key, no identity and no changes in the log; events announce changes to
an aggregate. So the relations below the view must change only in transactions, and the
view's rows only with those relations.

The checks examine the stored queries of the view and of views below it: the relations
that they name, and the functions that they call. The tables that a function reads are
unknown and not locked with the view; ``view_findings`` warns of that.

``CollectionCatalog`` finds all collections: tables of a publication and declared views.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from towpath.relay.postgres import tables
from towpath.relay.postgres.connect import Connection, translated_errors
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.tables import TableRefusedError
from towpath.relay.snapshot.shape import DeclaredView, TableShape
from towpath.relay.wal.messages import Column, Relation
from towpath.schemas.findings import CheckFinding, error_finding, warning_finding
from towpath.schemas.table_name import TableName
from towpath.settings.outbox import COLLECTION_SCHEMA, AggregateView, IdForm

COLUMNS: Final = ("aggregate_id", "type", "payload")

_INTEGERS: Final = frozenset({20, 21, 23})
_UUID: Final = 2950
_TEXTS: Final = frozenset({25, 1043})
_BYTEA: Final = 17
_JSON: Final = frozenset({114, 3802})

# COPY writes these types in the form of the ids.
_ID_TYPES: Final = MappingProxyType(
    {
        IdForm.INTEGER: _INTEGERS,
        IdForm.UUID: frozenset({_UUID}),
        IdForm.TEXT: _TEXTS | _INTEGERS | {_UUID},
    }
)
_ID_TEXTS: Final = MappingProxyType(
    {
        IdForm.INTEGER: "smallint, integer or bigint",
        IdForm.UUID: "uuid",
        IdForm.TEXT: "text, varchar, an integer or uuid",
    }
)
_PAYLOAD_TYPES: Final = _JSON | _TEXTS | {_BYTEA}

_SERVER: Final = frozenset({"pg_catalog", "information_schema"})
_KINDS: Final = MappingProxyType(
    {
        "m": "a materialized view, whose rows change when it is refreshed",
        "f": "a foreign table, whose changes are not in the log",
        "S": "a sequence, whose value belongs to no transaction",
    }
)
_PERSISTENCES: Final = MappingProxyType({"u": "unlogged", "t": "temporary"})
_VOLATILE: Final = "v"
_COMPILED: Final = frozenset({"internal", "c"})
# Stable within a transaction, but the result changes later without an event.
_TIME: Final = frozenset({"now", "transaction_timestamp", "statement_timestamp"})
_AGE: Final = ("age", 1)


class _ViewColumn(NamedTuple):
    name: str
    type_oid: int
    typmod: int
    type_name: str
    is_deterministic: bool
    has_plain_order: bool


class _ReadRelation(NamedTuple):
    """A relation that the view reads, or the view itself."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str


class _Function(NamedTuple):
    schema: str
    name: str
    volatility: str
    argument_count: int
    language: str

    @property
    def is_own(self) -> bool:
        return self.schema not in _SERVER

    @property
    def called(self) -> str:
        name = TableName(self.schema, self.name).text if self.is_own else self.name
        return f"{name}()"

    @property
    def may_read(self) -> bool:
        """Whether it may read unknown tables."""
        return self.is_own and self.language not in _COMPILED

    @property
    def returns_time(self) -> bool:
        signature = (self.name, self.argument_count)
        return not self.is_own and (self.name in _TIME or signature == _AGE)


class _Clauses(NamedTuple):
    """Facts about clauses of the queries, apart from their relations and functions."""

    returns_time: bool
    samples: bool
    locks: bool


def describe_view(connection: Connection, view: AggregateView) -> TableShape:
    """
    Return the shape of a declared view.

    Raises:
        TableRefusedError: The view is missing or cannot be read.
    """
    shape, _ = _inspect(connection, view)
    return shape


def view_findings(
    connection: Connection, views: Sequence[AggregateView]
) -> list[CheckFinding]:
    """
    Return the problems with the declared views: reads that fail, or may miss rows.

    Raises:
        SourceUnavailableError: The source does not answer.
    """
    with translated_errors("reading the aggregate views"):
        return [f for view in views for f in _findings_of(connection, view)]


def _findings_of(connection: Connection, view: AggregateView) -> list[CheckFinding]:
    collection = view.collection
    try:
        _, own = _inspect(connection, view)
    except TableRefusedError as refusal:
        remedy = f"correct the view, or replace {view.view} in [[relay.outbox.view]]"
        what = f"the view {view.view} cannot be read: {refusal}"
        return [
            error_finding(
                "view-unreadable", what, f"{collection} cannot be filled", remedy
            )
        ]
    if not own:
        return []
    return [
        warning_finding(
            "view-functions",
            f"the view {view.view} calls {', '.join(own)}",
            "the tables that a function reads are not locked while the view is read: "
            "a table that is rewritten meanwhile looks empty",
            "write the function's query into the view, or do not alter its tables "
            f"while {collection} is filled",
        )
    ]


def _inspect(
    connection: Connection, view: AggregateView
) -> tuple[TableShape, list[str]]:
    """Return the view's shape, and the functions that may read unknown tables."""
    execute = connection.execute
    oid = _find(connection, view.view)
    columns = {
        column.name: column
        for row in execute(query("describe_view_columns"), {"oid": oid})
        for column in (_ViewColumn(*row),)
    }
    below = [
        _ReadRelation(*row) for row in execute(query("read_below_view"), {"oid": oid})
    ]
    views = {"oids": [each.oid for each in below if each.kind == "v"]}
    functions = [_Function(*r) for r in execute(query("read_view_functions"), views)]
    clauses = execute(query("read_view_clauses"), views).fetchone()
    reason = (
        _columns_refusal(columns, view.id_form)
        or _below_refusal(below)
        or _functions_refusal(functions, _Clauses(*clauses or (False,) * 3))
    )
    if reason:
        raise TableRefusedError(reason)
    shape = _shape(oid, view, [columns[name] for name in COLUMNS])
    return shape, [each.called for each in functions if each.may_read]


def _find(connection: Connection, name: str) -> int:
    """Return the oid of a view that this role may read."""
    view = TableName.parse(name)
    found = connection.execute(
        query("describe_view"), {"schema": view.schema, "table": view.table}
    ).fetchone()
    oid, kind, may_read = found or (0, "", False)
    reason = ""
    if found is None:
        reason = f"there is no view {name}"
    elif kind != "v":
        reason = f"{name} is {_KINDS.get(kind, 'not a view')}"
    elif not may_read:
        reason = (
            f"the relay's role may not read {name}: grant it select, and usage on the "
            "schema"
        )
    if reason:
        raise TableRefusedError(reason)
    return int(oid)


def _shape(oid: int, view: AggregateView, columns: Sequence[_ViewColumn]) -> TableShape:
    relation = Relation(
        oid=oid,
        schema=COLLECTION_SCHEMA,
        table=view.collection.removeprefix(f"{COLLECTION_SCHEMA}."),
        columns=tuple(Column(c.name, c.type_oid, c.typmod) for c in columns),
        key=(0,),
        identity="d",
    )
    return TableShape(
        relation,
        (columns[0].type_name,),
        view=DeclaredView(view.aggregate_type, view.view),
    )


def _columns_refusal(columns: dict[str, _ViewColumn], form: IdForm) -> str:
    """Return why the columns are wrong; empty if they are right."""
    if set(columns) != set(COLUMNS):
        found = ", ".join(columns)
        return f"its columns must be {', '.join(COLUMNS)}, but are {found}"
    key, kind, payload = (columns[name] for name in COLUMNS)
    refusals = {
        f"aggregate_id is {key.type_name}; for id_form {form} it must be "
        f"{_ID_TEXTS[form]}: cast it in the view": key.type_oid not in _ID_TYPES[form],
        f"type is {kind.type_name}, and must be text or varchar: cast it in the view": (
            kind.type_oid not in _TEXTS
        ),
        f"payload is {payload.type_name}, and must be json, jsonb, text, varchar or "
        "bytea: cast it in the view": payload.type_oid not in _PAYLOAD_TYPES,
        "the collation of aggregate_id is not deterministic": not key.is_deterministic,
        "the order of aggregate_id is defined outside pg_catalog": (
            not key.has_plain_order
        ),
    }
    return next((reason for reason, holds in refusals.items() if holds), "")


def _below_refusal(below: Sequence[_ReadRelation]) -> str:
    """Return why a relation below the view cannot be read; empty if all can."""
    for each in below:
        name = TableName(each.schema, each.name).text
        if each.kind in _KINDS:
            return f"it reads {name}, {_KINDS[each.kind]}"
        if each.persistence in _PERSISTENCES:
            return (
                f"it reads {name}, which is {_PERSISTENCES[each.persistence]}: "
                "its changes are not in the log"
            )
        if each.schema in _SERVER:
            return f"it reads {name}, which changes without events"
    return ""


def _functions_refusal(functions: Sequence[_Function], clauses: _Clauses) -> str:
    """Return why a function or clause is refused; empty if none is."""
    for each in functions:
        if each.volatility == _VOLATILE:
            remedy = ": alter function ... stable, if it is" if each.is_own else ""
            return f"it calls {each.called}, which is volatile{remedy}"
        if each.returns_time:
            return (
                f"it calls {each.called}, which returns the time: "
                "a value that changes without events"
            )
    refusals = {
        "it uses the current date or time, which changes without events": (
            clauses.returns_time
        ),
        "it reads a random sample (tablesample)": clauses.samples,
        "it locks rows (for update), but is read in a read-only transaction": (
            clauses.locks
        ),
    }
    return next((reason for reason, holds in refusals.items() if holds), "")


class CollectionCatalog(NamedTuple):
    """
    The tables and views in which collections are found.

    Attributes:
        publication: The publication that streams the tables' changes.
        views: The declared views, by collection: ``outbox.<aggregate_type>``.
    """

    publication: str
    views: Mapping[str, AggregateView]

    def describe(
        self, connection: Connection, collection: str, order_by: Sequence[str] = ()
    ) -> TableShape:
        """
        Return a collection's shape.

        Raises:
            TableRefusedError: The collection is missing or cannot be read.
        """
        view = self.views.get(collection)
        if view is None:
            return tables.describe(connection, collection, self.publication, order_by)
        if order_by:
            reason = "it is read by its aggregate ids, not by a surrogate key"
            raise tables.TableRefusedError(reason)
        return describe_view(connection, view)

    def locate(
        self, connection: Connection, collection: str, order_by: Sequence[str]
    ) -> TableShape:
        """
        Return a shape that suffices for a lock; a table's has no columns and no key.

        Raises:
            TableRefusedError: The collection is missing or cannot be read.
        """
        if collection in self.views:
            return self.describe(connection, collection, order_by)
        return tables.locate(connection, collection, self.publication)

    def describe_all(
        self,
        connection: Connection,
        collections: Sequence[str],
        order_by: Sequence[str],
    ) -> Mapping[str, TableShape | tables.TableRefusedError]:
        """Return the shapes of tables, described together; views are omitted."""
        wanted = [each for each in collections if each not in self.views]
        return tables.describe_all(connection, wanted, self.publication, order_by)

    def describe_again(self, connection: Connection, planned: TableShape) -> TableShape:
        """
        Return the current shape of a planned collection, under its lock.

        Raises:
            TableRefusedError: The collection is no longer readable, or its key changed.
        """
        name, order_by = planned.collection, tables.order_names(planned)
        shape = self.describe(connection, name, order_by)
        if not shape.has_same_key(planned):
            kind = "table" if planned.view is None else "view"
            reason = f"its key changed, or it is a different {kind} now"
            raise tables.TableRefusedError(reason)
        return shape
