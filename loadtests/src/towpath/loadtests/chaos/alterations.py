"""
The session that alters tables, with and without rewriting them.

Columns are added, dropped and renamed, types change, tables are rewritten, and indexes
are created and dropped. No snapshot may fail because of that. Now and then a
table is replaced by a new one with the same name and rows; then its snapshot may fail.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, LiteralString

from psycopg import sql

from towpath.loadtests.chaos.actor import Actor, LateCommit
from towpath.loadtests.chaos.context import ChaosEnvironment, ChaosOptions
from towpath.loadtests.chaos.tables import SCHEMA, TABLES, Session, Table

_PAUSE_S: Final = 0.9
_LATE_SHARE: Final = 0.15
_LATEST_S: Final = 1.0

# Used in turn; the step from text back to int is also a cast. Each rewrites the table.
_TYPES: Final[tuple[LiteralString, ...]] = ("bigint", "numeric(12,2)", "text", "int")
# Used in turn; the first two leave the rows as they are.
_WIDTHS: Final[tuple[LiteralString, ...]] = ("varchar(60)", "text", "varchar(50)")

_ADDED: Final[tuple[LiteralString, ...]] = (
    "alter table {t} add column {c} int",
    "alter table {t} add column {c} int default 7",
    "alter table {t} add column {c} text default md5(random()::text)",
    "alter table {t} add column {c} boolean not null default true",
    "alter table {t} add column {c} int generated always as (nr %% 10) stored",
)
_SET: Final = """
update {t} set v = nextval('chaos.v'), note = 'shaped' where nr %% 9 = %(remainder)s
"""
_REWRITES: Final[tuple[LiteralString, ...]] = (
    "vacuum full {t}",
    "cluster {t} using {k}",
    "vacuum {t}",
    "reindex table {t}",
    "create index concurrently if not exists {i} on {t} (note)",
    "drop index if exists chaos.{i}",
)


# In one transaction, including the publication, so that every change is in the stream.
_SWAP: Final[tuple[LiteralString, ...]] = (
    "lock table {t} in access exclusive mode",
    "create table {new} (like {t} including all)",
    "alter table {new} alter large set storage external",
    "insert into {new} select * from {t}",
    "drop table {t}",
    "alter table {new} rename to {name}",
    "alter publication towpath add table {t}",
)
SWAP: Final = "swap"
_SWAP_SHARE: Final = 0.05


class TableAlterer(Actor):
    """Alters the tables that may be altered, and rewrites any table."""

    def __init__(
        self,
        environment: ChaosEnvironment,
        options: ChaosOptions,
        seed: str,
        round_number: int,
    ) -> None:
        super().__init__(environment, "shaper", seed, _PAUSE_S)
        self._late = options.late
        self._prefix = f"x{round_number}_"
        self._number = 0
        self._types = dict.fromkeys(TABLES, 0)
        self._widths = dict.fromkeys(TABLES, 0)

    def step(self, session: Session) -> None:
        """Alter a random table in a random way."""
        table = self.random.choice(TABLES)
        kinds = _USUAL_KINDS if table.may_be_altered else ("rewrite",)
        kind = self.random.choice(kinds)
        late_s = self.random.uniform(0.1, _LATEST_S)
        if self.random.random() < _SWAP_SHARE and table.may_be_replaced:
            kind = SWAP
        if self.random.random() < _LATE_SHARE and self._late:
            with LateCommit(session, late_s):
                _KINDS[kind](self, session, table)
            kind = f"{kind}, late"
        else:
            _KINDS[kind](self, session, table)
        self.counts[kind] += 1

    def add(self, session: Session, table: Table) -> None:
        """Add a column, with or without a value for existing rows."""
        self._execute(session, table, self.random.choice(_ADDED), self._new_name())

    def add_and_write(self, session: Session, table: Table) -> None:
        """Add a column and change rows in one transaction."""
        template = self.random.choice(_ADDED)
        remainder = {"remainder": self.random.randrange(9)}
        with session.transaction():
            session.execute(table.statement(_SET), remainder)
            self._execute(session, table, template, self._new_name())
            session.execute(table.statement(_SET), remainder)

    def drop(self, session: Session, table: Table) -> None:
        """Drop a column that was added."""
        name = self._some_column(session, table)
        if name is not None:
            self._execute(session, table, "alter table {t} drop column {c}", name)

    def rename(self, session: Session, table: Table) -> None:
        """Rename a column that was added."""
        name = self._some_column(session, table)
        if name is not None:
            statement = sql.SQL("alter table {} rename column {} to {}").format(
                table.identifier, sql.Identifier(name), sql.Identifier(self._new_name())
            )
            session.execute(statement)

    def retype(self, session: Session, table: Table) -> None:
        """Change a column's type in a way that rewrites the table."""
        wanted = _TYPES[self._types[table] % len(_TYPES)]
        statement = sql.SQL("alter table {} alter n type {} using n::numeric::{}")
        kind = sql.SQL(wanted)
        session.execute(statement.format(table.identifier, kind, kind))
        self._types[table] += 1

    def widen(self, session: Session, table: Table) -> None:
        """Change a column's type in a way that mostly keeps the rows as they are."""
        wanted = _WIDTHS[self._widths[table] % len(_WIDTHS)]
        statement = sql.SQL("alter table {} alter tag type {}")
        session.execute(statement.format(table.identifier, sql.SQL(wanted)))
        self._widths[table] += 1

    def rewrite(self, session: Session, table: Table) -> None:
        """Rewrite rows or indexes without changing columns."""
        template = self.random.choice(_REWRITES)
        if table.is_partitioned and "concurrently" in template:
            template = "analyze {t}"
        statement = sql.SQL(template).format(
            t=table.identifier,
            k=sql.Identifier(f"{table.name}_pkey"),
            i=sql.Identifier(f"{table.name}_note"),
        )
        session.execute(statement)

    def swap(self, session: Session, table: Table) -> None:
        """Replace the table with a new one that has all its rows."""
        new = f"{table.name}_new"
        with session.transaction():
            for template in _SWAP:
                statement = sql.SQL(template).format(
                    t=table.identifier,
                    new=sql.Identifier(SCHEMA, new),
                    name=sql.Identifier(table.name),
                )
                session.execute(statement)

    def _new_name(self) -> str:
        self._number += 1
        return f"{self._prefix}{self._number}"

    def _some_column(self, session: Session, table: Table) -> str | None:
        """Pick one of the added columns at random; None if there is none."""
        statement = (
            "select attname from pg_attribute where attrelid = %s::regclass"
            " and attname ~ '^x[0-9]+_[0-9]+$' and not attisdropped order by attnum"
        )
        names = [n for (n,) in session.execute(statement, (table.collection,))]
        at = self.random.random()
        return str(names[int(at * len(names))]) if names else None

    def _execute(
        self, session: Session, table: Table, template: LiteralString, column: str
    ) -> None:
        statement = sql.SQL(template.replace("%%", "%")).format(
            t=table.identifier, c=sql.Identifier(column)
        )
        session.execute(statement)


_Kind = Callable[[TableAlterer, Session, Table], None]
_KINDS: Final[Mapping[str, _Kind]] = MappingProxyType(
    {
        "add": TableAlterer.add,
        "add and write": TableAlterer.add_and_write,
        "drop": TableAlterer.drop,
        "rename": TableAlterer.rename,
        "retype": TableAlterer.retype,
        "widen": TableAlterer.widen,
        "rewrite": TableAlterer.rewrite,
        SWAP: TableAlterer.swap,
    }
)
_USUAL_KINDS: Final = tuple(kind for kind in _KINDS if kind != SWAP)
