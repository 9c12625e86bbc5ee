"""
Tables of the target: their names, columns and types, and the SQL statements for them.

A table has the columns of its source and two of its own: ``_position``, which the guard
compares, and ``_deleted``, because a deleted row remains as a tombstone. Its view
``<table>_live`` leaves out both columns and the tombstones.

No column is ever given a different type, because views of the target's users may depend
on it. So integers and floats get the widest type of their kind from the start, and a
numeric has no precision: a source that widens a column needs no change here.

Each schema has a table ``towpath_tables`` with a row per table of the sink: its id, its
key and its floor. A writer holds a shared lock on this row while it writes, and raising
the floor needs an exclusive one: so no writer, not even an abandoned one, writes below
a floor.

Statements have literals instead of parameters, because a name may contain a percent
sign.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from psycopg import sql

from towpath.schemas.table_name import LONGEST_NAME_BYTES
from towpath.settings import Route, RouteKind
from towpath.sinks.change import RESERVED_COLUMNS
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.errors import KeylessTableError

POSITION: Final = "_position"
IS_DELETED: Final = "_deleted"
# Columns that only the table of a batch has: the names of the columns whose stored
# values a row keeps, and the row's number.
KEPT: Final = "_kept"
ROW_NUMBER: Final = "_row"

REGISTRY: Final = "towpath_tables"
_LIVE: Final = "_live"

# Source types that the target also has, and reads exactly from the text in records.
_SAME: Final = frozenset(
    {
        *("bigint", "numeric", "double precision", "boolean", "text", "uuid", "bytea"),
        *("date", "time without time zone", "time with time zone", "interval"),
        *("timestamp without time zone", "timestamp with time zone"),
        *("json", "jsonb", "inet", "cidr", "macaddr", "macaddr8", "bit varying"),
        *("int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange"),
        *("tsvector", "tsquery"),
    }
)
_WIDEST: Final = {
    **dict.fromkeys(("smallint", "integer", "oid"), "bigint"),
    "real": "double precision",
    "money": "numeric",
    "bit": "bit varying",
}
# Lists and objects remain as in the records: jsonb would reorder an object's fields.
_NESTED: Final = "json"
# Types without an equality operator, which cannot be part of a key.
_UNFIT_FOR_KEYS: Final = frozenset({_NESTED})
_LOG_TEXTS: Final = ("aggregate_type", "aggregate_id", "type", "payload", "headers")


class TargetColumn(NamedTuple):
    """A column and its type in the target."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class TargetTable:
    """
    A table: its columns, without the sink's own, and its key's columns, both in order.

    Attributes:
        is_log: Whether it is an event log, which has no columns of the sink's own.
    """

    schema: str
    name: str
    columns: tuple[TargetColumn, ...]
    key: tuple[str, ...]
    is_log: bool = False

    @property
    def identifier(self) -> sql.Identifier:
        """The quoted name of the table."""
        return sql.Identifier(self.schema, self.name)

    @property
    def live(self) -> sql.Identifier:
        """The quoted name of the table's view."""
        return sql.Identifier(self.schema, live_name(self.name))

    @property
    def registry(self) -> sql.Identifier:
        """The quoted name of the registry of the schema's tables."""
        return sql.Identifier(self.schema, REGISTRY)

    @property
    def stored(self) -> tuple[TargetColumn, ...]:
        """All columns, including the sink's own."""
        if self.is_log:
            return self.columns
        own = TargetColumn(POSITION, "text"), TargetColumn(IS_DELETED, "boolean")
        return (*self.columns, *own)


def live_name(table: str) -> str:
    """Return the name of a table's view of live rows."""
    return table + _LIVE


def table_name(route: str) -> tuple[str, str]:
    """Split a route's name, already checked, into the table's schema and name."""
    schema, _, table = route.partition(".")
    return schema, table


def table_of(route: Route, shape: RelationShape | None) -> TargetTable:
    """
    Describe a route's table.

    Args:
        route: The route.
        shape: The shape of the source's table, if the route carries rows.

    Raises:
        KeylessTableError: The source's table has no key.
    """
    name = table_name(route.name)
    if route.kind is RouteKind.EVENT_LOG:
        texts = [TargetColumn(each, "text") for each in ("id", *_LOG_TEXTS, "position")]
        time = TargetColumn("occurred_at", "timestamp with time zone")
        return TargetTable(*name, (*texts, time), ("id",), is_log=True)
    if shape is None:
        document = TargetColumn("id", "text"), TargetColumn("document", "jsonb")
        return TargetTable(*name, document, ("id",))
    if not shape.key:
        message = f"{shape.name} has no primary key"
        raise KeylessTableError(message)
    columns = (
        TargetColumn(column.name, _type(column, is_key=column.name in shape.key))
        for column in shape.columns
    )
    return TargetTable(*name, tuple(columns), shape.key)


def unfit_name(column: str) -> str:
    """Return why the target cannot have a column of this name; empty if it can."""
    if column in RESERVED_COLUMNS or column in {KEPT, ROW_NUMBER}:
        return "is reserved for the sink"
    if len(column.encode()) > LONGEST_NAME_BYTES:
        return f"has more than {LONGEST_NAME_BYTES} bytes: Postgres would truncate it"
    return ""


def _type(column: Column, *, is_key: bool) -> str:
    if column.is_object or column.type.endswith("[]"):
        kind = _NESTED
    else:
        kind = _WIDEST.get(column.type, column.type)
    if kind not in _SAME or (is_key and kind in _UNFIT_FOR_KEYS):
        return "text"
    return kind


def creation(table: TargetTable) -> list[sql.Composed]:
    """Return the statements that create a table."""
    columns = [_declared(column, table) for column in table.stored]
    key = sql.SQL("primary key ({})").format(_names(table.key))
    made = sql.SQL("create table {} ({})").format(
        table.identifier, sql.SQL(", ").join([*columns, key])
    )
    if table.is_log:
        return [made]
    # With the index, ``purge`` quickly finds the tombstones that no replay needs.
    index = sql.SQL("create index on {} ({}) where {}").format(
        table.identifier, sql.Identifier(POSITION), sql.Identifier(IS_DELETED)
    )
    return [made, index]


def addition(table: TargetTable, column: TargetColumn) -> sql.Composed:
    """Return the statement that adds a column."""
    return sql.SQL("alter table {} add column {}").format(
        table.identifier, _declared(column, table)
    )


def live_view(table: TargetTable, columns: list[str]) -> sql.Composed:
    """Return the statement that creates or extends the view of the live rows."""
    names = [name for name in columns if name not in {POSITION, IS_DELETED}]
    return sql.SQL(
        "create or replace view {} as select {} from {} where not {}"
    ).format(table.live, _names(names), table.identifier, sql.Identifier(IS_DELETED))


def batch_table(table: TargetTable, name: str) -> list[sql.Composed]:
    """Return the statements that create the temporary table of a batch's rows."""
    stored = [
        # Bytes arrive as base64.
        column._replace(type="text") if column.type == "bytea" else column
        for column in table.stored
    ]
    own = TargetColumn(KEPT, "text[]"), TargetColumn(ROW_NUMBER, "integer")
    columns = sql.SQL(", ").join(_typed(column) for column in (*stored, *own))
    temporary = sql.Identifier("pg_temp", name)
    return [
        sql.SQL("drop table if exists {}").format(temporary),
        sql.SQL("create temp table {} ({}) on commit delete rows").format(
            sql.Identifier(name), columns
        ),
    ]


def copy_in(batch: str, columns: list[str]) -> sql.Composed:
    """Return the statement that copies rows into the table of a batch."""
    return sql.SQL("copy {} ({}) from stdin").format(
        sql.Identifier("pg_temp", batch), _names(columns)
    )


def upsert(table: TargetTable, batch: str, floor: str) -> sql.Composed:
    """
    Return the statement that writes the whole rows of a batch, through the guard.

    Only the newest row of each key is written, because keys that differ as text may be
    equal (``1.0`` and ``1.00``). A change from one key to an equal one is a delete and
    a create at the same position: the create wins. Rows are written in the order of
    their keys, so that the upserts of several writers cannot deadlock.
    """
    stored = table.stored
    sets = sql.SQL(", ").join(
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(c.name)) for c in stored
    )
    return sql.SQL(
        "insert into {table} as t ({names})"
        " select distinct on ({keys}) {values} from {batch} as b"
        " where b.{kept} is null and b.{position} >= {floor}"
        " order by {keys}, b.{position} desc, b.{deleted}"
        " on conflict ({key}) do update set {sets}"
        " where (t.{position}, not t.{deleted})"
        " <= (excluded.{position}, not excluded.{deleted})"
    ).format(
        table=table.identifier,
        names=_names([column.name for column in stored]),
        keys=sql.SQL(", ").join(_key_of("b", table)),
        values=sql.SQL(", ").join(map(_value, stored)),
        batch=sql.Identifier("pg_temp", batch),
        kept=sql.Identifier(KEPT),
        position=sql.Identifier(POSITION),
        deleted=sql.Identifier(IS_DELETED),
        floor=sql.Literal(floor),
        key=_names(table.key),
        sets=sets,
    )


def merge(table: TargetTable, batch: str, floor: str, kept: set[str]) -> sql.Composed:
    """
    Return the statement that writes the partial rows of a batch, through the guard.

    Keys that differ as text may be equal: only the oldest partial row of each key is
    written, because a newer one may keep a column that the older one sets. A single
    statement reads and writes each row, so if another writer has changed the row in the
    meantime, the server reads it again.
    """
    sets = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(
            sql.Identifier(column.name),
            _kept_or(column) if column.name in kept else _value(column),
        )
        for column in table.stored
    )
    return sql.SQL(
        "update {table} as t set {sets} from {partial} as b"
        " where {same} and not t.{deleted} and t.{position} <= b.{position}"
    ).format(
        table=table.identifier,
        sets=sets,
        partial=_partial_rows(table, batch, floor),
        position=sql.Identifier(POSITION),
        same=_same_key(table),
        deleted=sql.Identifier(IS_DELETED),
    )


def without_row(table: TargetTable, batch: str, floor: str) -> sql.Composed:
    """Return the statement that lists partial rows without a live row to merge with."""
    return sql.SQL(
        "select b.{row} from {partial} as b left join {table} as t on {same}"
        " where t.{position} is null"
        " or (t.{deleted} and t.{position} <= b.{position})"
    ).format(
        row=sql.Identifier(ROW_NUMBER),
        partial=_partial_rows(table, batch, floor),
        table=table.identifier,
        same=_same_key(table),
        position=sql.Identifier(POSITION),
        deleted=sql.Identifier(IS_DELETED),
    )


def above_partial(table: TargetTable, batch: str, floor: str) -> sql.Composed:
    """Return the statement that lists partial rows above the oldest of their key."""
    return sql.SQL(
        "select {row} from {batch} where {kept} is not null and {position} >= {floor}"
        " except select {row} from {partial} as b"
    ).format(
        row=sql.Identifier(ROW_NUMBER),
        batch=sql.Identifier("pg_temp", batch),
        kept=sql.Identifier(KEPT),
        position=sql.Identifier(POSITION),
        floor=sql.Literal(floor),
        partial=_partial_rows(table, batch, floor),
    )


def _partial_rows(table: TargetTable, batch: str, floor: str) -> sql.Composed:
    """Return the query for the oldest partial row of each key of a batch."""
    return sql.SQL(
        "(select distinct on ({keys}) * from {batch} as b"
        " where b.{kept} is not null and b.{position} >= {floor}"
        " order by {keys}, b.{position})"
    ).format(
        keys=sql.SQL(", ").join(_key_of("b", table)),
        batch=sql.Identifier("pg_temp", batch),
        kept=sql.Identifier(KEPT),
        position=sql.Identifier(POSITION),
        floor=sql.Literal(floor),
    )


def insert_new(table: TargetTable, batch: str) -> sql.Composed:
    """Return the statement that appends the events that a log does not have yet."""
    return sql.SQL(
        "insert into {} ({}) select distinct on ({}) {} from {} as b order by {}"
        " on conflict do nothing"
    ).format(
        table.identifier,
        _names([column.name for column in table.columns]),
        sql.SQL(", ").join(_key_of("b", table)),
        sql.SQL(", ").join(map(_value, table.columns)),
        sql.Identifier("pg_temp", batch),
        sql.SQL(", ").join(_key_of("b", table)),
    )


def sweep(table: TargetTable, floor: str) -> sql.Composed:
    """Return the statement that deletes all rows below a floor, even tombstones."""
    return sql.SQL("delete from {} where {} < {}").format(
        table.identifier, sql.Identifier(POSITION), sql.Literal(floor)
    )


def purge(table: TargetTable, safe: str) -> sql.Composed:
    """Return the statement that deletes the tombstones that no replay needs."""
    return sql.SQL("delete from {} where {} and {} < {}").format(
        *(table.identifier, sql.Identifier(IS_DELETED), sql.Identifier(POSITION)),
        sql.Literal(safe),
    )


def registry_creation(table: TargetTable) -> sql.Composed:
    """Return the statement that creates the registry of a schema's tables."""
    return sql.SQL(
        "create table if not exists {} (name text primary key, id text not null,"
        ' key text[] not null, floor text collate "C")'
    ).format(table.registry)


def registration(table: TargetTable, id_: str) -> sql.Composed:
    """Return the statement that registers a new table, and keeps a known floor."""
    return sql.SQL(
        "insert into {} (name, id, key) values ({}, {}, {}::text[])"
        " on conflict (name) do update set id = excluded.id, key = excluded.key"
    ).format(
        table.registry,
        *map(sql.Literal, (table.name, id_, list(table.key))),
    )


def unregistration(table: TargetTable) -> sql.Composed:
    """Return the statement that unregisters a dropped table, with its floor."""
    return sql.SQL("delete from {} where name = {}").format(
        table.registry, sql.Literal(table.name)
    )


def registered(table: TargetTable, lock: str = "") -> sql.Composed:
    """Return the statement that reads a table's id, key and floor."""
    return sql.SQL("select {}, key, floor from {} where name = {}{}").format(
        _id(table.schema),
        table.registry,
        sql.Literal(table.name),
        sql.SQL(" for share" if lock == "share" else ""),
    )


def all_registered(table: TargetTable) -> sql.Composed:
    """Return the statement that reads the names and ids of a schema's tables."""
    return sql.SQL("select name, {} from {}").format(_id(table.schema), table.registry)


def _id(schema: str) -> sql.Composed:
    """
    Return the expression for a table's id in the registry and its relation's OID.

    The OID is empty if the table was dropped, and differs if someone else has recreated
    the table.
    """
    return sql.SQL(
        "concat(id, ' ', to_regclass(format('%I.%I', {}::text, name))::oid)"
    ).format(sql.Literal(schema))


def raise_floor(table: TargetTable, floor: str) -> sql.Composed:
    """Return the statement that stores a floor if it is above the known one."""
    return sql.SQL(
        "update {} set floor = {} where name = {} and (floor is null or floor < {})"
    ).format(
        table.registry,
        *map(sql.Literal, (floor, table.name, floor)),
    )


def _declared(column: TargetColumn, table: TargetTable) -> sql.Composed:
    is_required = column.name in {*table.key, POSITION, IS_DELETED}
    required = sql.SQL(" not null" if is_required and not table.is_log else "")
    return _typed(column) + required


def _typed(column: TargetColumn) -> sql.Composed:
    """Return a column's name and type; positions are compared byte by byte."""
    collation = sql.SQL(' collate "C"' if column.name == POSITION else "")
    name, type_ = sql.Identifier(column.name), sql.SQL(column.type)
    return sql.SQL("{} {}{}").format(name, type_, collation)


def _value(column: TargetColumn) -> sql.Composed:
    """Return the expression for a batch's value in the column's type."""
    value = sql.Identifier("b", column.name)
    form = "decode({}, 'base64')" if column.type == "bytea" else "{}"
    return sql.SQL(form).format(value)


def _kept_or(column: TargetColumn) -> sql.Composed:
    """Return the expression for a batch's value, or for a stored value that is kept."""
    return sql.SQL("case when {} = any(b.{}) then t.{} else {} end").format(
        sql.Literal(column.name),
        sql.Identifier(KEPT),
        sql.Identifier(column.name),
        _value(column),
    )


def _key_of(alias: str, table: TargetTable) -> list[sql.Composable]:
    return [sql.Identifier(alias, name) for name in table.key]


def _same_key(table: TargetTable) -> sql.Composed:
    """Return the condition that a row of the table has the key of a batch's row."""
    types = {column.name: column for column in table.columns}
    return sql.SQL(" and ").join(
        sql.SQL("t.{} = {}").format(sql.Identifier(name), _value(types[name]))
        for name in table.key
    )


def _names(names: tuple[str, ...] | list[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
