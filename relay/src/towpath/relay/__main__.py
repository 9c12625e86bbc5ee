"""
The relay's root: wires the loop to its edges.

``init`` prepares the source, ``run`` follows it until told to stop, ``status`` tells
how far it is.
"""

import json
import os
import signal
import sys
import uuid
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import structlog

from towpath.relay.declared_sinks import DeclaredSinks
from towpath.relay.delivery import DeliveryLedger
from towpath.relay.errors import SlotBusyError, SlotHeldError
from towpath.relay.health import HealthServer
from towpath.relay.kafka.lineage import Lineage, agree
from towpath.relay.kafka.producer import KafkaProducer
from towpath.relay.kafka.state import StateTopic
from towpath.relay.kafka.topics import KafkaTopics
from towpath.relay.pipeline.attempts import Attempts
from towpath.relay.pipeline.core import Core
from towpath.relay.pipeline.follower import Follower
from towpath.relay.pipeline.loop import Pipeline
from towpath.relay.pipeline.outlet import Outlet
from towpath.relay.pipeline.shapes import Shapes
from towpath.relay.pipeline.snapshots import Snapshots
from towpath.relay.postgres import setup
from towpath.relay.postgres.catalog import PostgresCatalog, SlotFacts
from towpath.relay.postgres.connect import connect
from towpath.relay.postgres.replication import SlotStream, Wakeup
from towpath.relay.postgres.snapshots import SnapshotWorker
from towpath.relay.routing.dead import DeadLetters
from towpath.relay.routing.router import Router
from towpath.relay.routing.table import Place
from towpath.relay.snapshot.driver import Limits, SnapshotDriver
from towpath.relay.snapshot.visibility import InvisibleTransactions
from towpath.relay.tally import Tally
from towpath.relay.wal.sequencer import Sequencer
from towpath.schemas.clock import Deadline, SystemClock
from towpath.schemas.failure import TowpathError
from towpath.schemas.position import format_lsn
from towpath.settings import Settings, load
from towpath.settings.logs import configure_logs

_LOG = structlog.get_logger("towpath.relay")

_TAKEOVER_RETRY_S: Final = 0.5


def init(config: Path, dry_run: bool) -> int:  # noqa: FBT001 - the command's flag
    """
    Prepare the source: schema, tables, publications, slot. Safe to repeat.

    Raises:
        TowpathError: It could not be done; the class says why.
    """
    settings = load(config, os.environ)  # noqa: TID251 - a root
    source, outbox = settings.database, settings.relay.outbox
    with connect(source.dsn) as connection:
        facts = setup.read_facts(connection, source)
        setup.check(facts, source)
        steps = setup.plan(facts, source, outbox)
        if not dry_run:
            setup.carry_out(connection, steps)
    for step in steps:
        print(f"-- {step.purpose}\n{step.statement};\n" if dry_run else step.purpose)
    if not steps:
        print("nothing to do: the source is prepared")
    return 0


def status(config: Path, as_json: bool) -> int:  # noqa: FBT001 - the command's flag
    """
    Print how far the relay is, as the source tells it. 1: nobody follows the slot.

    Raises:
        TowpathError: The source cannot be asked.
    """
    source = load(config, os.environ).database  # noqa: TID251 - a root
    with connect(source.dsn) as connection:
        facts = PostgresCatalog(connection).slot(source.slot)
    told: dict[str, object] = {"slot": source.slot, "exists": facts is not None}
    if facts is not None:
        told |= {
            "active": facts.is_active,
            "holder_pid": facts.holder_pid,
            "confirmed_lsn": format_lsn(facts.confirmed_lsn),
            "retained_bytes": facts.retained_bytes,
            "wal_status": facts.wal_status,
        }
    lines = [f"{name:15} {value}" for name, value in told.items()]
    print(json.dumps(told) if as_json else "\n".join(lines))
    return 0 if facts is not None and facts.is_active else 1


def run(config: Path) -> int:
    """
    Follow the source until told to stop by SIGTERM or SIGINT.

    Raises:
        TowpathError: Going on needs a person; the remedy says what to do.
    """
    environ = dict(os.environ)  # noqa: TID251 - a root
    settings = load(config, environ)
    configure_logs()
    relay = Relay(settings, DeclaredSinks(config, environ, settings))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, relay.stop)
    try:
        relay.run()
    except TowpathError as failure:
        _LOG.critical("halted", reason=str(failure), remedy=failure.remedy)
        raise
    return 0


class _Source(NamedTuple):
    """The connections of one attempt, and what they told."""

    stream: SlotStream
    catalog: PostgresCatalog
    lineage: Lineage
    slot: SlotFacts


class Relay:
    """One relay process."""

    def __init__(self, settings: Settings, sinks: DeclaredSinks) -> None:
        self._settings = settings
        self._sinks = sinks
        self._clock = SystemClock()
        self._wakeup = Wakeup()
        self._tally = Tally(on_first=_warn)
        self._topics = KafkaTopics(settings.kafka, settings.topics, self._clock)
        self._is_stopping = False

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """Ask the process to end; a signal handler."""
        self._is_stopping = True
        self._wakeup.wake()

    def run(self) -> None:
        """
        Follow the source, through failures that pass.

        Raises:
            TowpathError: One that does not pass.
        """
        health = HealthServer(self._settings.relay.admin_port, self._tally)
        _LOG.info("relay started", admin_port=health.port, pid=os.getpid())
        attempts = Attempts(self._clock, self._wakeup, lambda: self._is_stopping)
        try:
            attempts.run(self._attempt)
        finally:
            health.close()
        _LOG.info("relay stopped", confirmed_lsn=format_lsn(self._tally.confirmed_lsn))

    def _attempt(self) -> None:
        """Make everything anew, and follow from the slot's confirmed position."""
        settings = self._settings
        with ExitStack() as closing:
            topics = self._topics
            topics.open(settings.database.prefix, settings.database.tables)
            source = self._open_source(closing)
            producer = KafkaProducer(
                settings.kafka,
                max_in_flight_bytes=settings.relay.max_in_flight_bytes,
                batch_bytes=topics.batch_bytes,
                record_bytes=topics.record_bytes,
            )
            closing.callback(producer.close)
            worker = SnapshotWorker(
                settings.database.dsn,
                self._wakeup.wake,
                publication=settings.database.publication,
            )
            closing.callback(worker.close)
            core = self._make_core(source, producer)
            pipeline = self._assemble(core, source, worker)
            self._take_over(source)
            _LOG.info("streaming", confirmed_lsn=format_lsn(source.slot.confirmed_lsn))
            pipeline.run(settings.relay.stop_timeout_s)

    def _open_source(self, closing: ExitStack) -> _Source:
        """Connect, and make sure that server, slot and state belong together."""
        source = self._settings.database
        catalog = PostgresCatalog(closing.enter_context(connect(source.dsn)))
        stream = SlotStream(source.dsn, self._clock, self._wakeup)
        closing.callback(stream.close)
        state = StateTopic(self._settings.kafka, source.prefix)
        stored = state.read_lineage()
        identifier, timeline = stream.identify()
        slot = catalog.slot(source.slot)
        lineage = agree(
            stored,
            Lineage(identifier, timeline, 0, source.slot),
            has_slot=slot is not None,
            has_log=slot is not None and slot.wal_status != "lost",
        )
        if stored is None:
            state.write_lineage(lineage)
        if slot is None:  # agree() has raised
            raise AssertionError
        return _Source(stream, catalog, lineage, slot)

    def _make_core(self, source: _Source, producer: KafkaProducer) -> Core:
        database, tally = self._settings.database, self._tally
        outbox = self._settings.relay.outbox
        ledger = DeliveryLedger(source.slot.confirmed_lsn)
        dead = DeadLetters(database.prefix, tally.bury)
        outlet = Outlet(producer, self._topics, ledger, dead, tally)
        router = Router(
            place=Place(database.prefix, source.stream.database),
            outbox_table=outbox.table,
            outbox_topic=outbox.topic,
            dead=dead,
            on_skipped=tally.skip,
        )
        return Core(
            ledger=ledger,
            invisible=InvisibleTransactions(source.slot.confirmed_lsn),
            outlet=outlet,
            router=router,
            shapes=Shapes(database.prefix, source.catalog, outlet, router.is_captured),
            tally=tally,
            clock=self._clock,
        )

    def _assemble(
        self, core: Core, source: _Source, worker: SnapshotWorker
    ) -> Pipeline:
        settings = self._settings
        driver = SnapshotDriver(
            core.invisible,
            captured=settings.database.tables,
            sinks=self._sinks,
            run_id=uuid.uuid4().hex,
            limits=Limits(settings.relay.chunk_rows),
        )
        snapshots = Snapshots(core, driver, worker)
        follower = Follower(core, Sequencer(source.lineage.offset), snapshots)
        bound = settings.relay.max_in_flight_bytes
        return Pipeline(
            core, source.stream, follower, snapshots, bound, lambda: self._is_stopping
        )

    def _take_over(self, source: _Source) -> None:
        """
        Start the stream; a slot that is held is waited for, but not for ever.

        Raises:
            SlotHeldError: Another process keeps it.
        """
        names = self._settings.database
        publications = (names.publication, names.outbox_publication)
        deadline = Deadline(self._clock, self._settings.relay.takeover_timeout_s)
        is_told = False
        while True:
            try:
                return source.stream.start(names.slot, publications)
            except SlotBusyError as busy:
                if self._is_stopping:
                    raise
                holder = source.catalog.holder(names.slot)
                if not is_told:
                    _LOG.warning("waiting for the slot", slot=names.slot, holder=holder)
                    is_told = True
                if deadline.passed():
                    reason = f"slot {names.slot} is held by {holder}"
                    raise SlotHeldError(reason) from busy
            self._wakeup.wait(min(_TAKEOVER_RETRY_S, deadline.remaining_s()))


def _warn(what: str, reason: str) -> None:
    _LOG.warning(what, reason=reason)


def main() -> int:
    """Run the relay with the configuration that the command line names."""
    try:
        return run(Path(sys.argv[1] if len(sys.argv) > 1 else "towpath.toml"))
    except TowpathError as failure:
        print(f"error: {failure}\nremedy: {failure.remedy}", file=sys.stderr)
        return failure.exit_code


if __name__ == "__main__":
    sys.exit(main())
