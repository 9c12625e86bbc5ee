"""
What the source's catalog says of a table: its columns, what is in them, and its keys.

A domain is what it is over, through every level; an array, a composite and an hstore
are told with all that is inside them.
"""

from typing import Any, Final, LiteralString, TypeAlias

import psycopg

from towpath.sinks.relations import Column
from towpath.sinks.verify.nested import HSTORE, SourceType
from towpath.sinks.verify.table import SourceColumn

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_COLUMNS: Final[LiteralString] = """
    select attname, atttypid::bigint, atttypmod, typtype = 'd'
    from pg_attribute join pg_type t on t.oid = atttypid
    where attrelid = %s::regclass and attnum > 0 and not attisdropped
      and (attgenerated = '' or exists (
          select from pg_publication p
          left join pg_publication_rel r on prpubid = p.oid and prrelid = attrelid
          where pubname = %s and current_setting('server_version_num')::int >= 180000
            and (attnum = any (prattrs::smallint[]) or prattrs is null
                 and attgenerated = 's' and to_jsonb(p) ->> 'pubgencols' = 's')))
    order by attnum
"""
# Of an extension's type the operators are not found by their plain names, and those of
# what it can be cast to would be taken for them.
_TYPE: Final[LiteralString] = """
    select oid::regtype::text, typname::text, typdelim::text, typbasetype::bigint,
           (select e.oid::bigint from pg_type e where e.typarray = t.oid),
           (select json_agg(json_build_array(attname, atttypid::bigint) order by attnum)
            from pg_attribute
            where t.typtype = 'c' and attrelid = t.typrelid and attnum > 0
              and not attisdropped),
           not exists (
               select from pg_opclass c
               join pg_am m on m.oid = opcmethod and amname = 'btree'
               join pg_amop on amopfamily = opcfamily and amopstrategy = 5
                   and amoplefttype = opcintype and amoprighttype = opcintype
               where opcdefault and opcintype = t.oid
                 and not pg_operator_is_visible(amopopr))
    from pg_type t where oid = %s
"""
_PRIMARY_KEY: Final[LiteralString] = """
    select attname
    from pg_index, unnest(indkey) with ordinality as place(attnum, ordinal)
    join pg_attribute using (attnum)
    where indrelid = %s::regclass and indisprimary and attrelid = indrelid
    order by ordinal
"""
_IS_UNIQUE: Final[LiteralString] = """
    select exists (
        select from pg_index i
        where indrelid = %(table)s::regclass and indisunique and indisvalid
          and indpred is null and indexprs is null
          and not exists (
              select from unnest(indkey) with ordinality as place(attnum, ordinal)
              join pg_attribute a using (attnum)
              where a.attrelid = indrelid and ordinal <= indnkeyatts
                and (not attnotnull or attname <> all (%(names)s::text[]))))
       and not exists (
        select from pg_attribute
        where attrelid = %(table)s::regclass and attname = any (%(names)s::text[])
          and not attnotnull)
"""
_IS_PARTITIONED: Final[LiteralString] = (
    "select relkind = 'p' from pg_class where oid = %s::regclass"
)

# Of the widest decimal that a warehouse has.
_MOST_DIGITS: Final = 38


def columns_of(
    connection: Connection, table: str, publication: str
) -> tuple[SourceColumn, ...]:
    """Return the columns, without generated ones that the publication leaves out."""
    found = connection.execute(_COLUMNS, [table, publication]).fetchall()
    columns = []
    for name, oid, typmod, is_domain in found:
        kind = _type(connection, oid)
        column = SourceColumn(
            name,
            kind.name,
            inside=kind if kind.is_nested else None,
            has_plain_order=kind.has_plain_order,
            is_kept_as_text=is_domain or _is_too_wide(kind, typmod),
        )
        columns.append(column)
    return tuple(columns)


def primary_key_of(connection: Connection, table: str) -> tuple[str, ...]:
    """Return the columns of a table's primary key, in key order."""
    found = connection.execute(_PRIMARY_KEY, [table]).fetchall()
    return tuple(name for (name,) in found)


def is_unique(connection: Connection, table: str, names: tuple[str, ...]) -> bool:
    """Tell whether a table has at most one row with these values, none of them null."""
    asked = {"table": table, "names": list(names)}
    return connection.execute(_IS_UNIQUE, asked).fetchone() == (True,)


def is_partitioned(connection: Connection, table: str) -> bool:
    """Tell whether a table's rows are those of its partitions."""
    return connection.execute(_IS_PARTITIONED, [table]).fetchone() == (True,)


def _is_too_wide(kind: SourceType, typmod: int) -> bool:
    """Tell whether it is a numeric for which no decimal of a warehouse is enough."""
    if kind.name != "numeric":
        return False
    digits = Column("", kind.name, typmod).precision_and_scale
    return digits is None or digits[0] > _MOST_DIGITS or digits[1] > digits[0]


def _type(connection: Connection, oid: int) -> SourceType:
    row = connection.execute(_TYPE, [oid]).fetchone()
    if row is None:
        return SourceType("text")
    name, bare_name, delimiter, base_oid, element_oid, fields, is_plain = row
    if base_oid:
        return _type(connection, base_oid)
    if element_oid:
        return SourceType(name, _type(connection, element_oid), delimiter)
    inside = [(field, _type(connection, of)) for field, of in fields or ()]
    is_hstore = bare_name == HSTORE and name.endswith(HSTORE)
    return SourceType(
        HSTORE if is_hstore else name, fields=tuple(inside), has_plain_order=is_plain
    )
