"""
The relay's entry point: builds the process and runs its commands.

``init`` prepares the source, ``run`` follows it until stopped by a signal, and
``status`` prints the relay's progress.
"""

import gc
import json
import os
import signal
import sys
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Final

import structlog

from towpath.relay.admin_http import AdminPages, HealthServer, SignalPages
from towpath.relay.commands import compiled
from towpath.relay.commands.status import RunState, relay_status, write_process_state
from towpath.relay.context import DeclaredSinks, ProcessContext
from towpath.relay.encode.captured_tables import CapturedTables
from towpath.relay.encode.codecs.codec import RegisterSchema
from towpath.relay.kafka.lineage import RelayDatasets, RelayLineage
from towpath.relay.kafka.signals import SignalSource, SignalTopicReader
from towpath.relay.kafka.topics import KafkaTopics
from towpath.relay.postgres import setup
from towpath.relay.postgres.connect import connect, parts_of
from towpath.relay.postgres.replication import Wakeup
from towpath.relay.postgres.signals import SignalInbox, SourceSignalService
from towpath.relay.session import Session, SessionLoop
from towpath.relay.snapshot.signals import SignalRefusal
from towpath.relay.stats import Stats
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import (
    TooManyFilesError,
    TowpathError,
    UnavailableError,
    has_no_descriptor,
)
from towpath.schemas.lineage import (
    LineageReporter,
    lineage_folders,
    start_lineage,
)
from towpath.schemas.position import format_lsn
from towpath.schemas.tracing import Tracer, start_tracing
from towpath.settings import Settings, load
from towpath.settings.logs import configure_logs

_LOG = structlog.get_logger("towpath.relay")

# A reader's chunks and the records in flight consist of fewer objects than this. With
# 50,000, a collection at the beginning of a snapshot stopped the loop for 20 ms.
_OBJECTS_BETWEEN_COLLECTIONS: Final = 200_000

# Threads that read chunks compute without a pause, so after each call that releases the
# GIL, such as a read or a poll, the loop waits this long to reacquire it. With Python's
# default of 5 ms, a snapshot is a tenth slower.
_SWITCH_INTERVAL_S: Final = 0.0005


def init(config: Path, dry_run: bool) -> int:  # noqa: FBT001 - the command's flag
    """
    Prepare the source: schema, tables, publications and slot. Safe to repeat.

    Raises:
        TowpathError: The source cannot be prepared.
    """
    settings = load(config, os.environ)  # noqa: TID251 - a root
    with connect(settings.database.dsn) as connection:
        setup.check_version(connection.info.server_version)
        facts = setup.read_source_facts(connection, settings)
        setup.check_source(facts, settings)
        steps = setup.plan_setup(facts, settings)
        if not dry_run:
            setup.run_setup(connection, steps)
    for warning in setup.source_warnings(facts, settings):
        print(f"warning: {warning}", file=sys.stderr)
    for note in setup.setup_notes(facts, settings):
        print(f"-- {note}" if dry_run else note)
    for step in steps:
        print(f"-- {step.purpose}\n{step.statement};\n" if dry_run else step.purpose)
    if not steps:
        print("nothing to do: the source is prepared")
    return 0


def status(config: Path, as_json: bool) -> int:  # noqa: FBT001 - the command's flag
    """
    Print the relay's progress; return 1 if no process is consuming the slot.

    Raises:
        TowpathError: The source cannot be read.
    """
    facts = relay_status(load(config, os.environ))  # noqa: TID251 - a root
    lines = [f"{name:18} {value}" for name, value in facts.items()]
    print(json.dumps(facts) if as_json else "\n".join(lines))
    return 0 if facts.get("active") else 1


def run(config: Path) -> int:
    """
    Follow the source until SIGTERM or SIGINT.

    Returns:
        0; 3 if Kafka had not acknowledged everything; after a halt, the failure's
        exit code.

    Raises:
        ConfigurationError: The file has mistakes.
    """
    environ = dict(os.environ)  # noqa: TID251 - a root
    settings = load(config, environ)
    configure_logs()
    report = partial(write_process_state, settings.state_folder, settings.database.slot)
    clock = SystemClock()
    try:
        tracer = start_tracing("towpath-relay", environ, _warn_of_lost_spans)
        lineage = start_lineage(environ, lineage_folders(), _warn_of_lost_events)
        sinks = DeclaredSinks(config, environ, settings)
        relay = Relay(settings, sinks, tracer, lineage)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, relay.stop)
        report(RunState.RUNNING, clock.now())
        relay.run()
    except OSError as error:
        if not has_no_descriptor(error):
            raise
        return _halted(TooManyFilesError("running the relay"), report, clock)
    except TowpathError as failure:
        return _halted(failure, report, clock)
    report(RunState.STOPPED, clock.now())
    return relay.exit_code


def _schema_ids(url: str) -> RegisterSchema:
    """Return a function that registers schemas; its first call imports the client."""

    @cache
    def registry() -> RegisterSchema:
        from towpath.schemas.registry import SchemaRegistry  # noqa: PLC0415 - see above

        return SchemaRegistry(url)

    def register(subject: str, schema: str) -> int:
        return registry()(subject, schema)

    return register


def _halted(
    failure: TowpathError, report: Callable[..., None], clock: SystemClock
) -> int:
    """Log and store the reason for a halt; return the exit code."""
    why = {"reason": str(failure), "remedy": failure.remedy}
    _LOG.critical("relay halted", **why)
    with suppress(OSError):
        report(RunState.HALTED, clock.now(), **why)
    return failure.exit_code


class Relay:
    """One relay process."""

    def __init__(
        self,
        settings: Settings,
        sinks: DeclaredSinks,
        tracer: Tracer,
        lineage: LineageReporter,
    ) -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._wakeup = Wakeup()
        captured = CapturedTables(settings.capture.names)
        self._stats = Stats(
            on_first=_warn,
            run_id=uuid.uuid4().hex,
            heartbeat_interval_s=settings.relay.heartbeat_interval_s,
            tables=captured,
            max_in_flight_bytes=settings.relay.max_in_flight_bytes,
        )
        refusals: deque[SignalRefusal] = deque()
        self._inbox = SignalInbox(
            settings.database.dsn, self._wakeup.wake, refusals.append
        )
        self._process = ProcessContext(
            settings=settings,
            sinks=sinks,
            topics=KafkaTopics(settings.kafka, settings.topics, self._clock),
            schema_ids=_schema_ids(settings.registry.url),
            stats=self._stats,
            clock=self._clock,
            wakeup=self._wakeup,
            captured=captured,
            signal_store=self._inbox,
            refusals=refusals,
            lineage=RelayLineage(
                lineage,
                RelayDatasets(settings, parts_of(settings.database.dsn), captured),
            ),
            tracer=tracer,
        )
        self._is_stopping = False

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGTERM and SIGINT: end the session and the process."""
        self._is_stopping = True
        self._wakeup.wake()

    def run(self) -> None:
        """
        Follow the source; retry after retryable failures.

        Raises:
            TowpathError: A failure that is not retryable.
        """
        relay, source = self._settings.relay, self._settings.database
        signals = SourceSignalService(source.dsn, source.slot)
        pages = AdminPages(self._stats, self._clock, SignalPages(signals))
        health = HealthServer(relay.admin_port, pages, relay.admin_host)
        code, pid = compiled.running().value, os.getpid()
        _LOG.info("relay started", admin_port=health.port, pid=pid, code=code)
        # Records in flight are many small objects without cycles: a garbage collection
        # after every few hundred objects would cost several percent of the CPU time.
        gc.freeze()
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 20, 100)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        sessions = SessionLoop(self._clock, self._wakeup, lambda: self._is_stopping)
        topic = self._signal_topic(signals)
        try:
            sessions.run(Session(self._process, lambda: self._is_stopping).run)
        finally:
            if topic is not None:
                topic.close()
            self._inbox.close()
            health.close()
            self._process.lineage.close()
            self._close_tracer()
        _LOG.info("relay stopped", confirmed_lsn=format_lsn(self._stats.confirmed_lsn))

    def _close_tracer(self) -> None:
        """Export the last spans, and log the counts of all spans."""
        tracer = self._process.tracer
        tracer.close()
        if tracer.is_on:
            _LOG.info("traces closed", **asdict(tracer.counts))

    def _signal_topic(self, signals: SourceSignalService) -> SignalTopicReader | None:
        """Start reading signals from Kafka, if a topic is configured."""
        settings = self._settings
        name, source = settings.signal_topic, settings.database
        if not name:
            return None
        topic = SignalTopicReader(
            (settings.kafka, settings.topics),
            SignalSource(name, source.prefix, f"{source.slot}-signals"),
            signals.store,
            self._process.refusals.append,
        )
        topic.start()
        return topic

    @property
    def exit_code(self) -> int:
        """0, or 3 if Kafka had not acknowledged everything at the stop deadline."""
        return UnavailableError.exit_code if self._stats.unacknowledged_bytes else 0


def _warn_of_lost_spans(reason: str) -> None:
    """Log why spans are not exported; the relay keeps running."""
    _LOG.warning("traces not exported", reason=reason)


def _warn_of_lost_events(reason: str) -> None:
    """Log why lineage events are not sent; the relay keeps running."""
    _LOG.warning("lineage not reported", reason=reason)


def _warn(event: str, reason: str) -> None:
    _LOG.warning(event, reason=reason)


def main() -> int:
    """Run the relay with the configuration that the command line names."""
    try:
        return run(Path(sys.argv[1] if len(sys.argv) > 1 else "towpath.toml"))
    except TowpathError as failure:
        print(f"error: {failure}\nremedy: {failure.remedy}", file=sys.stderr)
        return failure.exit_code


if __name__ == "__main__":
    sys.exit(main())
