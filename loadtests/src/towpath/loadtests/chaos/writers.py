"""
Sessions that write every kind of change, each to its own rows.

Session ``i`` of ``n`` owns the row numbers that equal ``i`` modulo ``n``, so each key
has one writer (apart from the session that alters tables), and its counter only rises.
A TRUNCATE deletes the rows of all sessions, and its transaction may insert them again.
"""

import contextlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, LiteralString

import psycopg
from psycopg import sql

from towpath.loadtests.chaos.actor import Actor, LateCommit
from towpath.loadtests.chaos.context import ChaosEnvironment, ChaosOptions
from towpath.loadtests.chaos.tables import FILL, TABLES, Session, Table

_PAUSE_S: Final = 0.012
_LATE_SHARE: Final = 0.03
_LATEST_S: Final = 0.7
_HELD_S: Final = 0.5
_ATTEMPTS: Final = 5
# The highest row number, as a multiple of the initial rows: inserts need free numbers.
_HIGHEST_FACTOR: Final = 1.3
_RANGE: Final = 400

_INSERT: Final = FILL
_UPDATE: Final = """
update {t} set v = nextval('chaos.v'), note = %(note)s::text, n = %(n)s,
  tag = %(note)s::text,
  large = case when large is null then null else repeat(md5(%(note)s::text), 90) end
where nr = %(nr)s
"""
_PARTLY: Final = """
update {t} set v = nextval('chaos.v'), note = %(note)s::text, n = %(n)s
where nr = %(nr)s
"""
_DELETE: Final = "delete from {t} where nr = %(nr)s"
_MOVE: Final = """
update {t} set ({key}) = (select {make} from (select %(to)s::int as nr) s),
  nr = %(to)s, v = nextval('chaos.v')
where nr = %(nr)s and not exists (select from {t} where nr = %(to)s)
"""
_MANY: Final = """
update {t} set v = nextval('chaos.v'), note = %(note)s::text
where nr between %(first)s and %(last)s and nr %% %(step)s = %(remainder)s
"""
_DELETE_MANY: Final = """
delete from {t}
where nr between %(first)s and %(last)s and nr %% %(step)s = %(remainder)s
"""


class Writer(Actor):
    """One session that writes."""

    def __init__(
        self,
        environment: ChaosEnvironment,
        options: ChaosOptions,
        remainder: int,
        seed: str,
    ) -> None:
        super().__init__(environment, f"writer{remainder}", seed, _PAUSE_S)
        self._remainder = remainder
        self._count = options.writers
        self._rows = options.rows
        self._late = options.late
        self._prefix = f"{environment.prefix}{remainder}"

    def step(self, session: Session) -> None:
        """Run a random kind of transaction on a random table."""
        table = self.random.choice(TABLES)
        (kind,) = self.random.choices(tuple(_KINDS), [w for w, _ in _KINDS.values()])
        late_s = self.random.uniform(0.1, _LATEST_S)
        if self.random.random() < _LATE_SHARE and self._late:
            with LateCommit(session, late_s):
                _KINDS[kind][1](self, session, table)
            kind = f"{kind}, late"
        else:
            _KINDS[kind][1](self, session, table)
        self.counts[kind] += 1

    # Each kind of transaction ----------------------------------------------------

    def one(self, session: Session, table: Table) -> None:
        """Change one row in one statement."""
        template = self.random.choice((_UPDATE, _PARTLY, _PARTLY, _DELETE, _MOVE))
        self._execute(session, table, template)

    def insert(self, session: Session, table: Table) -> None:
        """Insert one row or many; existing rows are left unchanged."""
        self._execute(session, table, _INSERT, self.random.choice((0, 0, 0, _RANGE)))

    def several(self, session: Session, table: Table) -> None:
        """Change rows of several tables in one transaction."""
        with session.transaction():
            for _ in range(self.random.randint(2, 6)):
                self.one(session, table)
                table = self.random.choice(TABLES)

    def move_on(self, session: Session, table: Table) -> None:
        """Change a row's key several times, then update the row."""
        with session.transaction():
            nr = self._draw()
            for _ in range(self.random.randint(1, 3)):
                to = self._draw()
                arguments = {**self._arguments(), "nr": nr, "to": to}
                session.execute(table.statement(_MOVE), arguments)
                nr = to
            session.execute(table.statement(_PARTLY), {**self._arguments(), "nr": nr})

    def many(self, session: Session, table: Table) -> None:
        """Change or delete a range of rows in one statement."""
        template = self.random.choice((_MANY, _MANY, _DELETE_MANY))
        self._execute(session, table, template, _RANGE)

    def partly_rolled_back(self, session: Session, table: Table) -> None:
        """Change rows in subtransactions, and roll some of them back."""
        with session.transaction():
            self.one(session, table)
            for _ in range(self.random.randint(1, 4)):
                with session.transaction() as inner:
                    self.one(session, table)
                    with session.transaction(
                        force_rollback=self.random.random() < 0.3  # noqa: PLR2004 - a share
                    ):
                        self.one(session, table)
                    inner.force_rollback = self.random.random() < 0.4  # noqa: PLR2004 - a share

    def rolled_back(self, session: Session, table: Table) -> None:
        """Change rows, and roll back."""
        with session.transaction(force_rollback=True):
            self.many(session, table)
            self.one(session, table)

    def prepared(self, session: Session, table: Table) -> None:
        """Prepare a transaction, and commit it or roll it back a while later."""
        name = sql.Literal(f"{self._prefix}.{self.random.getrandbits(64):x}")
        is_kept = self.random.random() < 0.7  # noqa: PLR2004 - a share
        ending = "commit prepared {}" if is_kept else "rollback prepared {}"
        session.execute("begin")
        try:
            self.one(session, table)
            self.one(session, table)
            session.execute(sql.SQL("prepare transaction {}").format(name))
        except BaseException:
            session.execute("rollback")
            raise
        self.rest(_HELD_S)
        # If this statement is canceled, the transaction stays prepared: try again.
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(psycopg.errors.QueryCanceled):
                session.execute(sql.SQL(ending).format(name))
                break

    def truncate(self, session: Session, table: Table) -> None:
        """Empty a table, and sometimes fill it again in the same transaction."""
        is_filled = self.random.random() < 0.6  # noqa: PLR2004 - a share
        with session.transaction():
            session.execute(table.statement("truncate {t}"))
            if is_filled:
                arguments = {
                    **self._arguments(),
                    "first": 1,
                    "last": self._rows,
                    "step": 1,
                }
                session.execute(table.statement(_INSERT), arguments)

    # Statements -------------------------------------------------------

    def _execute(
        self, session: Session, table: Table, template: LiteralString, width: int = 0
    ) -> None:
        session.execute(table.statement(template), self._arguments(width))

    def _arguments(self, width: int = 0) -> dict[str, object]:
        nr = self._draw()
        return {
            "nr": nr,
            "to": self._draw(),
            "note": f"{self.random.getrandbits(40):x}",
            "n": str(self.random.randrange(10**6)),
            "first": nr,
            "last": nr + width,
            "step": self._count,
            "remainder": self._remainder,
        }

    def _draw(self) -> int:
        """Draw one of the session's own row numbers."""
        highest = int(self._rows * _HIGHEST_FACTOR) // self._count
        return self.random.randint(1, highest) * self._count + self._remainder


_Kind = Callable[[Writer, Session, Table], None]
_KINDS: Final[Mapping[str, tuple[float, _Kind]]] = MappingProxyType(
    {
        "one": (40, Writer.one),
        "insert": (14, Writer.insert),
        "several": (12, Writer.several),
        "move on": (6, Writer.move_on),
        "many": (6, Writer.many),
        "partly rolled back": (8, Writer.partly_rolled_back),
        "rolled back": (3, Writer.rolled_back),
        "prepared": (3, Writer.prepared),
        "truncate": (0.15, Writer.truncate),
    }
)
