"""
The arranged interleavings, which show whether a method is reliable.

Under the load they occur by chance. Here they are the same in every run: each step
begins when the previous one has ended, and ``settle`` gives the method time to capture
where a scenario needs that. A, B and C are sessions; a session *publishes* with the
part of the method that runs in the writer.

==============  =====================================================================
``delete``      a row is inserted; later it is deleted
``late``        A inserts and stays open; B begins, inserts and commits; A commits
``race``        A updates and commits, B updates the same row and commits; B publishes,
                then A does
``overtaking``  B and then C begin and change other rows; A updates a row and commits; B
                updates the same row and commits, while C is still open
``crash``       a writer's process inserts and commits, and is killed with SIGKILL
                before it publishes
==============  =====================================================================
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

import psycopg

from towpath.loadtests.capture import CREATE, DELETE, UPDATE
from towpath.loadtests.capture.load import PlannedTransaction, RowChange
from towpath.loadtests.capture.methods import CaptureMethod, CaptureRun
from towpath.loadtests.capture.writers import (
    ChangePublisher,
    Session,
    WriterSetup,
    apply,
    kill_after_commit,
)

DELETED: Final = "delete"
LATE: Final = "late"
RACE: Final = "race"
OVERTAKING: Final = "overtaking"
CRASH: Final = "crash"

# Above the hot keys of the load, and below the keys of its writers.
_FIRST: Final = 1000
_KEYS_EACH: Final = 10


class Scenarios:
    """The scenarios of one run, on its own connections."""

    def __init__(self, run: CaptureRun, method: CaptureMethod) -> None:
        self._run = run
        self._method = method
        self._publisher: ChangePublisher = method.publisher.open()

    def play(self) -> None:
        """
        Play all scenarios, one after the other.

        Raises:
            BenchError: The method or a writer failed.
            psycopg.Error: The server failed.
        """
        for play in (
            self._delete,
            self._late,
            self._race,
            self._overtaking,
            self._crash,
        ):
            play()
            self._method.settle()

    def _delete(self) -> None:
        first = _first(DELETED)
        self._commit(RowChange(CREATE, first, first))
        self._method.settle()
        self._commit(RowChange(DELETE, first, first + 1))

    def _late(self) -> None:
        first = _first(LATE)
        late = RowChange(CREATE, first, first)
        with self._session() as session:
            apply(session, [late])
            # A worker that treats everything up to now as final advances here.
            self._method.settle()
            self._commit(RowChange(CREATE, first + 1, first + 1))
            self._method.settle()
            session.commit()
        self._publisher.publish([late])

    def _race(self) -> None:
        first = _first(RACE)
        self._commit(RowChange(CREATE, first, first))
        self._method.settle()
        updates = [
            RowChange(UPDATE, first, number) for number in (first + 1, first + 2)
        ]
        for update in updates:
            with self._session() as session:
                apply(session, [update])
                session.commit()
        for update in reversed(updates):
            self._publisher.publish([update])

    def _overtaking(self) -> None:
        first = _first(OVERTAKING)
        self._commit(RowChange(CREATE, first, first))
        self._method.settle()
        slow = [
            RowChange(CREATE, first + 1, first + 1),
            RowChange(UPDATE, first, first + 4),
        ]
        open_one = RowChange(CREATE, first + 2, first + 2)
        with self._session() as b, self._session() as c:
            apply(b, slow[:1])
            apply(c, [open_one])
            self._commit(RowChange(UPDATE, first, first + 3))
            self._method.settle()
            apply(b, slow[1:])
            b.commit()
            self._publisher.publish(slow)
            self._method.settle()
            c.commit()
            self._publisher.publish([open_one])

    def _crash(self) -> None:
        first = _first(CRASH)
        transaction = PlannedTransaction(
            at_s=0.0, changes=(RowChange(CREATE, first, first),)
        )
        kill_after_commit(
            WriterSetup(
                dsn=self._run.dsn,
                publisher=self._method.publisher,
                transactions=(transaction,),
            )
        )

    def _commit(self, *changes: RowChange) -> None:
        """Commit changes and publish them, as a writer does."""
        with self._session() as session:
            apply(session, changes)
            session.commit()
        self._publisher.publish(changes)

    @contextmanager
    def _session(self) -> Iterator[Session]:
        """Open a session; uncommitted changes are rolled back at the end."""
        session = psycopg.connect(self._run.dsn)
        try:
            yield session
        finally:
            session.close()


_NAMES: Final = (DELETED, LATE, RACE, OVERTAKING, CRASH)


def _first(scenario: str) -> int:
    """Return the first key and the first number of a scenario."""
    return _FIRST + _NAMES.index(scenario) * _KEYS_EACH


KEYS: Final[Mapping[str, range]] = MappingProxyType(
    {name: range(_first(name), _first(name) + _KEYS_EACH) for name in _NAMES}
)
LATE_NUMBERS: Final = frozenset({_first(LATE)})
