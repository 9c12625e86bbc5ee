"""
Random snapshot signals: requests, stops and pauses.

Snapshots are requested for tables by name and by pattern, for keys, with a condition,
for one sink, in the order of another key, at a slow rate, blocking, and with a sweep.
"""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import psycopg

from towpath.loadtests.chaos.actor import Actor
from towpath.loadtests.chaos.context import ChaosEnvironment, ChaosOptions
from towpath.loadtests.chaos.relay import SINK, TARGETED
from towpath.loadtests.chaos.tables import TABLES, Session

ENDED: Final = ("completed", "incomplete", "failed", "rejected", "stopped")

_PAUSE_S: Final = 0.6
_PAUSED_S: Final = 1.5
_RETRY_AFTER_S: Final = 0.1
_MAX_OPEN: Final = 4
_INSERT: Final = "insert into towpath.signal (id, type, data) values (%s, %s, %s)"
_OPEN: Final = """
select count(*) from towpath.signal
where type = 'execute-snapshot' and coalesce(status, '') <> all(%s)
"""
# Watermarks may be rows of the same table.
_READ: Final = """
select id, coalesce(status, ''), detail, type from towpath.signal
where type like '%-snapshot'
"""
_KEYS: Final = "select {make} from unnest(%(numbers)s::int[]) nr"


class SignalAnswer(NamedTuple):
    """A signal and its status."""

    signal_id: str
    status: str
    detail: Mapping[str, Any]
    type: str

    @property
    def has_ended(self) -> bool:
        """Whether the status is final."""
        return self.status in ENDED


def send(session: Session, signal_id: str, kind: str, **data: object) -> None:
    """Insert a signal into the source's signal table."""
    fields = {name.replace("_", "-"): value for name, value in data.items()}
    session.execute(_INSERT, (signal_id, kind, json.dumps(fields)))


def _is_sent(session: Session, signal_id: str, kind: str) -> bool:
    """Insert a signal; return whether the server accepted it."""
    try:
        send(session, signal_id, kind)
    except psycopg.Error:
        if session.closed:
            raise
        return False
    return True


def answers(session: Session) -> list[SignalAnswer]:
    """Return all signals with their current status."""
    return [
        SignalAnswer(row[0], row[1], row[2] or {}, row[3])
        for row in session.execute(_READ)
    ]


class SnapshotRequester(Actor):
    """Sends signals unless too many snapshots are open."""

    def __init__(
        self,
        environment: ChaosEnvironment,
        options: ChaosOptions,
        seed: str,
        label: str,
    ) -> None:
        super().__init__(environment, "asker", seed, _PAUSE_S)
        self._label = label
        self._number = 0
        self._highest = options.rows * 3 // 2

    def step(self, session: Session) -> None:
        """Send a signal, unless too many snapshots are open."""
        row = session.execute(_OPEN, (list(ENDED),)).fetchone()
        if row and row[0] >= _MAX_OPEN:
            return
        (kind,) = self.random.choices(tuple(_KINDS), [w for w, _ in _KINDS.values()])
        _KINDS[kind][1](self, session)
        self.counts[kind] += 1

    def whole(self, session: Session) -> None:
        """Request a snapshot of one table."""
        self._request(session, [self.random.choice(TABLES).collection])

    def several(self, session: Session) -> None:
        """Request a snapshot of several tables."""
        some = self.random.sample(TABLES, 3)
        self._request(session, [table.collection for table in some])

    def pattern(self, session: Session) -> None:
        """Request a snapshot of all tables that match a pattern."""
        self._request(session, [r"chaos\.[a-t].*"])

    def slow(self, session: Session) -> None:
        """Request a slow snapshot of a table, so that kills hit it."""
        rate = self.random.choice((500, 1500, 4000))
        chosen = [self.random.choice(TABLES).collection]
        self._request(session, chosen, max_rows_per_second=rate)

    def keys(self, session: Session) -> None:
        """Request the rows of random keys, some of which may have no row."""
        table = self.random.choice(TABLES)
        count = self.random.choice((1, 5, 60))
        numbers = [self.random.randint(1, self._highest) for _ in range(count)]
        rows = session.execute(table.statement(_KEYS), {"numbers": numbers})
        keys = [[str(part) for part in row] for row in rows]
        self._request(session, [table.collection], keys=keys)

    def target(self, session: Session) -> None:
        """Request a snapshot for one sink only."""
        self._request(session, [TARGETED.collection], target=SINK)

    def filtered(self, session: Session) -> None:
        """Request the rows of a table that match a condition."""
        name = self.random.choice(TABLES).collection
        condition = {"data-collection": name, "filter": "nr % 3 = 0 or note = 'old'"}
        self._request(session, [name], additional_conditions=[condition])

    def by_number(self, session: Session) -> None:
        """Request a snapshot of a table in the order of another unique column."""
        table = self.random.choice([t for t in TABLES if not t.is_partitioned])
        self._request(session, [table.collection], surrogate_key="nr")

    def blocking(self, session: Session) -> None:
        """Request a blocking snapshot of tables."""
        some = self.random.sample(TABLES, 2)
        self._request(session, [table.collection for table in some], type="blocking")

    def sweep(self, session: Session) -> None:
        """Request a snapshot of a table, with a sweep of rows that it no longer has."""
        self._request(session, [self.random.choice(TABLES).collection], sweep=True)

    def stop_some(self, session: Session) -> None:
        """Stop the snapshots of one table, or of all tables."""
        chosen = self.random.choice([[], [self.random.choice(TABLES).collection]])
        send(session, self._id(), "stop-snapshot", data_collections=chosen)

    def pause(self, session: Session) -> None:
        """Pause all snapshots, and resume them a while later."""
        send(session, self._id(), "pause-snapshot")
        self.rest(_PAUSED_S)
        resume = self._id()
        # Without this signal, all later snapshots of the round would wait.
        while not _is_sent(session, resume, "resume-snapshot"):
            self.environment.clock.wait(_RETRY_AFTER_S)

    def _request(self, session: Session, names: list[str], **more: object) -> None:
        kind = "execute-snapshot"
        send(session, self._id(), kind, data_collections=names, **more)

    def _id(self) -> str:
        self._number += 1
        return f"{self._label}-{self._number}"


_Kind = Callable[[SnapshotRequester, Session], None]
_KINDS: Final[Mapping[str, tuple[int, _Kind]]] = MappingProxyType(
    {
        "whole": (30, SnapshotRequester.whole),
        "several": (10, SnapshotRequester.several),
        "pattern": (4, SnapshotRequester.pattern),
        "slow": (20, SnapshotRequester.slow),
        "keys": (20, SnapshotRequester.keys),
        "target": (10, SnapshotRequester.target),
        "filtered": (8, SnapshotRequester.filtered),
        "by number": (6, SnapshotRequester.by_number),
        "blocking": (8, SnapshotRequester.blocking),
        "sweep": (8, SnapshotRequester.sweep),
        "stop": (5, SnapshotRequester.stop_some),
        "pause": (5, SnapshotRequester.pause),
    }
)
