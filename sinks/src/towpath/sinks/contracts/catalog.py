"""
The catalog of a scratch database, and the statements that change rows of its tables.

Tables, columns and labels of enums keep their numbers (oid and attnum) when they are
renamed, so the catalogs before and after a migration show a rename as a rename.

The scratch database has no rows. A statement-level trigger on each table fires anyway,
and reveals the statements of any tool, including those inside functions. The triggers
are dropped before the catalog is read again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString, NamedTuple

from psycopg import sql

from towpath.schemas.table_name import TableName
from towpath.sinks.changes.relations import Column
from towpath.sinks.postgres import Connection

_IDENTITY_DEFAULT: Final = "d"
_IDENTITY_INDEX: Final = "i"
FULL: Final = "f"


class EnumType(NamedTuple):
    """The labels of an enum by their oid, in order."""

    labels: Mapping[int, str]


class TableColumn(NamedTuple):
    """
    A column of a table.

    Attributes:
        number: Its ``attnum``.
        name: Its name.
        type: The type without its modifier, as the relay announces it.
        typmod: The modifier; -1 for none.
        full_type: The type with its modifier, for display.
        type_oid: The oid of the type.
        value_type_oids: The oids of the types of its scalar values: for an array, its
            element type; for a domain, its base type; for a composite, the types of its
            attributes.
        is_required: Whether it is NOT NULL.
        is_filled: Whether the column gets a value even if a statement provides none:
            from a default, an identity or an expression.
        is_object: Whether its values are objects, or lists of objects.
        has_no_nulls: Whether a validated CHECK ensures that the column is not null.
    """

    number: int
    name: str
    type: str
    typmod: int
    full_type: str
    type_oid: int
    value_type_oids: Sequence[int]
    is_required: bool
    is_filled: bool
    is_object: bool
    has_no_nulls: bool

    @property
    def announced(self) -> Column:
        """The column as the relay announces it."""
        return Column(
            self.name, self.type, self.typmod, not self.is_required, self.is_object
        )


class UniqueKey(NamedTuple):
    """The columns of a unique index, in the order of the index."""

    numbers: tuple[int, ...]
    is_primary: bool
    is_identity: bool


@dataclass(frozen=True, slots=True)
class Table:
    """
    A table or a view.

    Attributes:
        oid: The oid, which the table keeps when it is renamed.
        name: Schema and table.
        is_view: Whether it is a view, materialized or not.
        identity: The replica identity: ``d``, ``n``, ``f`` or ``i``.
        columns: The columns by number.
        keys: Unique indexes over columns that are NOT NULL: the primary key's, then
            the others, oldest first.
    """

    oid: int
    name: TableName
    is_view: bool
    identity: str
    columns: Mapping[int, TableColumn]
    keys: tuple[UniqueKey, ...]

    @property
    def key(self) -> tuple[int, ...]:
        """
        The numbers of the key columns of the table's records; empty without a key.

        The key is that of the replica identity's index, or else the primary key, or
        else that of the oldest unique index.
        """
        chosen = [
            *(k for k in self.keys if k.is_identity and self._has_index_identity),
            *(k for k in self.keys if k.is_primary),
            *self.keys,
        ]
        return chosen[0].numbers if chosen else ()

    @property
    def is_identified(self) -> bool:
        """Whether the server can identify the row of an update or a delete."""
        if self.identity == FULL:
            return True
        if self._has_index_identity:
            return any(key.is_identity for key in self.keys)
        has_primary = any(key.is_primary for key in self.keys)
        return self.identity == _IDENTITY_DEFAULT and has_primary

    @property
    def _has_index_identity(self) -> bool:
        return self.identity == _IDENTITY_INDEX

    def names(self, numbers: tuple[int, ...]) -> tuple[str, ...]:
        """Return the names of columns."""
        return tuple(self.columns[number].name for number in numbers)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The tables and views by oid, and the enums by the oid of their type."""

    tables: Mapping[int, Table]
    enums: Mapping[int, EnumType]

    def named(self, name: str) -> Table | None:
        """Find a table by the text of its name."""
        return next((t for t in self.tables.values() if t.name.text == name), None)


class RowStatement(NamedTuple):
    """The oid of a table, and an operation on its rows, such as ``UPDATE``."""

    table: int
    operation: str


_TABLES: Final[LiteralString] = """
    select c.oid::bigint, n.nspname::text, c.relname::text, c.relkind in ('v', 'm'),
           c.relreplident::text
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p', 'v', 'm') and not c.relispartition
      and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
    order by c.oid
"""
_COLUMNS: Final[LiteralString] = """
    select a.attrelid::bigint, a.attnum::int, a.attname::text,
           format_type(a.atttypid, null), a.atttypmod,
           format_type(a.atttypid, a.atttypmod), a.atttypid::bigint,
           -- Arrays, domains and composites may contain one another.
           (with recursive inner_type as (
                select t.oid, t.typtype, t.typcategory, t.typbasetype, t.typelem,
                       t.typrelid
                union
                select i.oid, i.typtype, i.typcategory, i.typbasetype, i.typelem,
                       i.typrelid
                from inner_type o join pg_type i on i.oid = any (
                    case when o.typtype = 'd' then array[o.typbasetype]
                         when o.typcategory = 'A' then array[o.typelem]
                         when o.typtype = 'c' then array(
                             select atttypid from pg_attribute
                             where attrelid = o.typrelid and attnum > 0
                               and not attisdropped) end)
            )
            select coalesce(array_agg(oid::bigint order by oid), '{}') from inner_type
            where typtype not in ('d', 'c') and typcategory <> 'A'),
           a.attnotnull,
           a.atthasdef or a.attidentity <> '',
           coalesce(element.typtype, t.typtype) = 'c',
           exists (select from pg_constraint k
                   where k.conrelid = a.attrelid and k.contype = 'c' and k.convalidated
                     and pg_get_constraintdef(k.oid)
                         = format('CHECK ((%%I IS NOT NULL))', a.attname))
    from pg_attribute a join pg_type t on t.oid = a.atttypid
    left join pg_type element on element.oid = t.typelem and t.typcategory = 'A'
    where a.attnum > 0 and not a.attisdropped and a.attrelid = any(%s)
    order by a.attrelid, a.attnum
"""
_KEYS: Final[LiteralString] = """
    select i.indrelid::bigint, k.numbers, i.indisprimary, i.indisreplident
    from pg_index i,
         lateral (select array_agg(number order by ordinal) as numbers
                  from unnest(i.indkey::int2[]) with ordinality as u(number, ordinal)
                  where ordinal <= i.indnkeyatts) k
    where i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
      -- A deferrable key cannot identify the rows in the WAL.
      and i.indimmediate
      and i.indrelid = any(%s)
      and not exists (select from pg_attribute a
                      where a.attrelid = i.indrelid and not a.attnotnull
                        and a.attnum = any(k.numbers))
    -- The order in which the relay tries them: a migration's index is the newest.
    order by i.indrelid, not i.indisprimary, i.indexrelid
"""
_ENUMS: Final[LiteralString] = """
    select enumtypid::bigint, oid::bigint, enumlabel::text from pg_enum
    order by enumtypid, enumsortorder
"""


def read_catalog(connection: Connection) -> Catalog:
    """
    Read the tables and enums of a database, except the server's own tables.

    Raises:
        psycopg.Error: The catalog cannot be read.
    """
    rows = connection.execute(_TABLES).fetchall()
    oids = [row[0] for row in rows]
    columns: dict[int, dict[int, TableColumn]] = {oid: {} for oid in oids}
    for oid, *column in connection.execute(_COLUMNS, (oids,)):
        made = TableColumn(*column)
        columns[oid][made.number] = made
    keys: dict[int, list[UniqueKey]] = {oid: [] for oid in oids}
    for oid, numbers, *kind in connection.execute(_KEYS, (oids,)):
        keys[oid].append(UniqueKey(tuple(numbers), *kind))
    tables = {row[0]: _table(row, columns[row[0]], keys[row[0]]) for row in rows}
    labels: dict[int, dict[int, str]] = {}
    for type_oid, oid, label in connection.execute(_ENUMS):
        labels.setdefault(type_oid, {})[oid] = label
    return Catalog(tables, {oid: EnumType(found) for oid, found in labels.items()})


def _table(
    row: tuple[Any, ...], columns: dict[int, TableColumn], keys: list[UniqueKey]
) -> Table:
    oid, schema, name, is_view, identity = row
    return Table(oid, TableName(schema, name), is_view, identity, columns, tuple(keys))


# The migration may run as any role, and may change the search path.
_PREPARE: Final[LiteralString] = """
create schema towpath_contract;
create table towpath_contract.statement (
    relation oid, operation text, primary key (relation, operation)
);
create function towpath_contract.record() returns trigger
    language plpgsql security definer as $$
begin
    insert into towpath_contract.statement values (tg_argv[0]::oid, tg_op)
        on conflict do nothing;
    return null;
end $$;
"""
_TRIGGER: Final[LiteralString] = """
create trigger towpath_contract after update or delete or truncate on {table}
    for each statement execute function towpath_contract.record({root})
"""
# A statement that names a partition fires only that partition's triggers.
_RELATIONS: Final[LiteralString] = """
    select root::bigint, n.nspname::text, c.relname::text
    from unnest(%s::oid[]) as root
    cross join lateral (select root as relid
                        union select relid::oid from pg_partition_tree(root)) as each
    join pg_class c on c.oid = each.relid join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p')
"""


def record_statements(connection: Connection, catalog: Catalog) -> None:
    """Record the statements that change rows of a catalog's tables from now on."""
    connection.execute(_PREPARE)
    roots = [table.oid for table in catalog.tables.values() if not table.is_view]
    for root, *name in connection.execute(_RELATIONS, (roots,)).fetchall():
        made = sql.SQL(_TRIGGER).format(table=sql.Identifier(*name), root=root)
        connection.execute(made)


def recorded_statements(connection: Connection) -> list[RowStatement]:
    """Return the recorded statements, and drop everything that recorded them."""
    rows = connection.execute(
        "select relation, operation from towpath_contract.statement order by 1, 2"
    ).fetchall()
    connection.execute("set client_min_messages = error")
    connection.execute("drop schema towpath_contract cascade")
    return [RowStatement(*row) for row in rows]
