"""
The tables: one for each type of key, with columns that sessions fill and alter.

A row is identified by its number ``nr``, from which SQL computes its key, so this
module neither computes nor compares keys. Each write draws ``v`` from a sequence while
the row is locked, so ``v`` only rises for a given key. ``large`` is stored out of line,
and updates that leave it unchanged do not stream it.
"""

from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from towpath.loadtests.chaos.fold import Row

Session = psycopg.Connection[tuple[Any, ...]]

SCHEMA: Final = "chaos"


@dataclass(frozen=True, slots=True)
class Table:
    """
    One table.

    Attributes:
        name: The name without schema.
        key: The columns of the primary key, in key order.
        make_key: SQL expressions that compute the key's values from ``nr``.
        columns: The definitions of the key's columns, in the table's order.
        is_partitioned: Whether it is hash-partitioned by the key's first column.
        may_be_altered: Whether sessions may alter its columns.
    """

    name: str
    key: tuple[str, ...]
    make_key: LiteralString
    columns: LiteralString
    is_partitioned: bool = False
    may_be_altered: bool = True

    @property
    def may_be_replaced(self) -> bool:
        """Whether a new table may replace it."""
        return self.may_be_altered and not self.is_partitioned

    @property
    def collection(self) -> str:
        """The name in signals."""
        return f"{SCHEMA}.{self.name}"

    @property
    def identifier(self) -> sql.Identifier:
        """The name in SQL."""
        return sql.Identifier(SCHEMA, self.name)

    def statement(self, template: LiteralString) -> sql.Composed:
        """Fill a template's ``{t}``, ``{key}`` and ``{make}`` for this table."""
        return sql.SQL(template).format(
            t=self.identifier,
            key=sql.SQL(", ").join(map(sql.Identifier, self.key)),
            make=sql.SQL(self.make_key),
        )


TABLES: Final = (
    Table("calm", ("id",), "nr::bigint", "id bigint", may_be_altered=False),
    Table(
        "words",
        ("region", "code"),
        "'r' || nr %% 7, md5(nr::text) || chr(192 + nr %% 50)",
        'code text collate "C", region text',
    ),
    Table("token", ("id",), "md5(nr::text)::uuid", "id uuid"),
    Table(
        "parted",
        ("id", "day"),
        "(nr * 7919) %% 100003, nr %% 31",
        "day int, id int",
        is_partitioned=True,
    ),
    Table("amount", ("at",), "(nr / 8.0 - 100)::numeric", "at numeric"),
)

_SCHEMA_SQL: Final = "create schema chaos; create sequence chaos.v cache 1"
_MAKE: Final = """
create table {t} ({columns}, v bigint not null default nextval('chaos.v'),
  nr int not null, note text, n int, tag varchar(20), large text,
  primary key ({key})) {partitions}
"""
_FINISH: Final = "alter table {t} alter large set storage external"
# Not unique on a partitioned table, where it would have to include the partition key.
_INDEX: Final = "create {unique} index on {t} (nr)"
FILL: Final = """
insert into {t} ({key}, nr, note, n, tag, large)
select {make}, nr, %(note)s::text, %(n)s, 'tag',
  case when nr %% 6 = 0 then repeat(md5(nr::text || %(note)s::text), 90) end
from generate_series(%(first)s::int, %(last)s::int, %(step)s::int) nr
on conflict do nothing
"""
# Virtual columns are not published.
_COLUMNS: Final = """
select attname from pg_attribute
where attrelid = %s::regclass and attnum > 0 and not attisdropped
  and attgenerated <> 'v' order by attnum
"""


def make(session: Session, rows: int) -> None:
    """Create the tables with their first rows, which the stream does not contain."""
    session.execute(_SCHEMA_SQL)
    for table in TABLES:
        by_hash = sql.SQL("partition by hash ({})")
        first_key = sql.Identifier(table.key[0])
        statement = sql.SQL(_MAKE).format(
            t=table.identifier,
            columns=sql.SQL(table.columns),
            key=sql.SQL(", ").join(map(sql.Identifier, table.key)),
            partitions=by_hash.format(first_key)
            if table.is_partitioned
            else sql.SQL(""),
        )
        session.execute(statement)
        if table.is_partitioned:
            _make_partitions(session, table)
        session.execute(table.statement(_FINISH))
        unique = sql.SQL("" if table.is_partitioned else "unique")
        session.execute(sql.SQL(_INDEX).format(unique=unique, t=table.identifier))
        arguments = {"note": "old", "n": "1", "first": 1, "last": rows, "step": 1}
        session.execute(table.statement(FILL), arguments)
        session.execute(table.statement("analyze {t}"))


def read(session: Session, table: Table) -> dict[tuple[str | None, ...], Row]:
    """Return all rows of a table by their keys; keys and values are text."""
    names = [name for (name,) in session.execute(_COLUMNS, (table.collection,))]
    texts = sql.SQL(", ").join(
        sql.SQL("{}::text").format(sql.Identifier(name)) for name in names
    )
    statement = sql.SQL("select {} from {}").format(texts, table.identifier)
    rows = [dict(zip(names, row, strict=True)) for row in session.execute(statement)]
    return {tuple(row[name] for name in table.key): row for row in rows}


def _make_partitions(session: Session, table: Table) -> None:
    for remainder in range(3):
        part = sql.Identifier(SCHEMA, f"{table.name}_{remainder}")
        template = (
            "create table {} partition of {} for values with (modulus 3, remainder {})"
        )
        statement = sql.SQL(template).format(part, table.identifier, remainder)
        session.execute(statement)
