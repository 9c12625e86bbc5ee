"""
Log-based capture: Towpath's relay, as a process with its own configuration file.

The relay runs with its defaults. The writers do nothing for it; the database
additionally has the relay's slot, publications and tables.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Self

import psycopg

from towpath.loadtests.bench import publishers
from towpath.loadtests.bench.context import RELAY, BenchRun
from towpath.loadtests.bench.source import BenchSource
from towpath.loadtests.capture.methods import CaptureRun
from towpath.loadtests.capture.writers import (
    TABLE,
    NoPublisher,
    PublisherFactory,
    Session,
)
from towpath.schemas.clock import Deadline

_WITHIN_S: Final = 60.0
_POLL_INTERVAL_S: Final = 0.02
_SLOT: Final = """
select active, confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots
where slot_name = %s
"""


class _SlotState(NamedTuple):
    """Whether the relay reads its slot, and whether it has confirmed an LSN."""

    is_active: bool
    is_confirmed: bool


class RelayMethod:
    """The method: a relay's process, and its slot."""

    publisher: PublisherFactory = NoPublisher()

    def __init__(self, run: CaptureRun) -> None:
        self._run = run
        environment, clock = run.bench.environment, run.bench.clock
        self._source = BenchSource(environment, run.name, clock)
        self._bench_run = BenchRun(system=RELAY, name=run.name, source=self._source)
        self._pid = 0

    def prepare(self, session: Session) -> None:
        """Run ``towpath relay init``: publications, tables and slot."""
        del session
        publishers.prepare_source(self._run.bench, self._bench_run, (TABLE,))

    def __enter__(self) -> Self:
        """
        Start the relay, and wait until it reads its slot.

        Raises:
            BenchError: The relay ended, or does not read its slot in time.
        """
        bench = self._run.bench
        self._pid = publishers.start_relay(bench, self._bench_run, (TABLE,))
        try:
            self._wait(lambda state: state.is_active, "it does not read its slot")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._run.bench.environment.launcher.stop(self._run.name)
        self._source.close()

    def settle(self) -> None:
        """
        Wait until the relay has confirmed the log up to its current end.

        Raises:
            BenchError: The relay ended, or does not confirm the log in time.
        """
        self._wait(lambda state: state.is_confirmed, "it does not confirm the log")

    def finish(self) -> None:
        """Do the same as ``settle``: the relay confirms only changes that Kafka has."""
        self.settle()

    def _wait(self, holds: Callable[[_SlotState], bool], reason: str) -> None:
        bench = self._run.bench
        end_lsn = self._source.end_lsn()
        deadline = Deadline(bench.clock, _WITHIN_S)
        with psycopg.connect(self._run.dsn, autocommit=True) as session:
            while not holds(_slot_state(session, self._run.name, end_lsn)):
                publishers.check(bench, self._bench_run, self._pid)
                if deadline.passed():
                    raise publishers.failure(bench.environment, self._run.name, reason)
                bench.clock.wait(_POLL_INTERVAL_S)


def _slot_state(session: Session, slot: str, lsn: str) -> _SlotState:
    row = session.execute(_SLOT, (lsn, slot)).fetchone()
    return _SlotState(False, False) if row is None else _SlotState(*row)  # noqa: FBT003 - named by the class
