"""
The loop: one thread between the stream and Kafka.

::

    read frames -> consume -> acknowledgements -> snapshots -> checkpoint -> feedback

Every wait in the loop is bounded: by a constant, and during a stop by the stop's
deadline. At the limit of bytes in flight, the loop stops reading the socket, so that
back-pressure reaches the server, but keeps running its duties: feedback above all,
which has its own timer.
"""

from collections.abc import Callable, Sequence, Sized
from typing import Final

import structlog

from towpath.relay.errors import BrokerUnavailableError
from towpath.relay.ports import ReplicationStream
from towpath.relay.publish.checkpoints import MARKS_INTERVAL_S, CheckpointWriter
from towpath.relay.publish.in_flight import DeliveryLedger
from towpath.relay.publish.publisher import WAIT_S
from towpath.relay.stats import Stats
from towpath.relay.stream.consumer import StreamConsumer
from towpath.relay.stream.context import LoopContext
from towpath.relay.stream.snapshot_runner import TICK_INTERVAL_S
from towpath.relay.wal.pgoutput import WAL_DATA, parse_keepalive, sent_us
from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.position import format_lsn

# A sixth of wal_sender_timeout's default of 60 s, so that several missed status updates
# do not end the connection. A lower value only costs traffic; a higher one risks
# reconnects.
STATUS_INTERVAL_S: Final = 10.0

# The shortest time between two feedback messages that the server has not requested.
# Checkpoints are stored ten times a second, so this only limits a burst after a pause.
PROGRESS_INTERVAL_S: Final = 0.02

# While records are in flight the client must be polled for acknowledgements: rarely
# enough to cost nothing, often enough that the confirmed LSN keeps up.
POLL_INTERVAL_S: Final = 0.01

# How long a server that requests replies may wait for a checkpoint: longer than a
# leader election in Kafka, far shorter than a service manager's stop timeout.
CHECKPOINT_TIMEOUT_S: Final = 15.0

# The maximum number of transactions behind a held one (while a signal cannot be stored,
# for instance): tens of megabytes.
MAX_UNSETTLED: Final = 200_000

# The shortest time between two reads of whole transactions, so that at a high rate
# several are handed over together: at 2,000 per second this saves a quarter of the
# relay's CPU time. At a low rate this time has already passed when the next transaction
# arrives.
GATHER_S: Final = 0.002

# A read of this many frames is part of a backlog, which fills the next read without a
# wait. Outside a backlog, that many frames do not arrive within ``GATHER_S``.
BACKLOG_FRAMES: Final = 1000

# How long an idle loop sleeps on its socket.
IDLE_INTERVAL_S: Final = 1.0


_LOG = structlog.get_logger("towpath.relay")


class _StopTimeoutError(Exception):
    """The time for a clean stop has passed."""


class StopDeadline:
    """The stop request of the session, and the one deadline of a clean stop."""

    def __init__(
        self, clock: Clock, is_stopping: Callable[[], bool], timeout_s: float
    ) -> None:
        self.clock = clock
        self.is_stopping = is_stopping
        self._timeout_s = timeout_s
        self._deadline: Deadline | None = None

    def deadline(self) -> Deadline:
        """Return the deadline; its time starts with the first call."""
        if self._deadline is None:
            self._deadline = Deadline(self.clock, self._timeout_s)
        return self._deadline


class LoopDuties:
    """
    The loop's other duties: checkpoints, feedback to the server, and gauges.

    They run in every turn of the loop, and between the publisher's waits. None of them
    waits, except to commit a Kafka transaction.
    """

    def __init__(
        self,
        stop: StopDeadline,
        stream: ReplicationStream,
        checkpoints: CheckpointWriter,
        ledger: DeliveryLedger,
        stats: Stats,
        parked: Sized,
    ) -> None:
        self.stop = stop
        self._clock = stop.clock
        self._stream = stream
        self._checkpoints = checkpoints
        self._ledger = ledger
        self._stats = stats
        self._parked = parked
        self._confirmed_lsn = 0
        self._confirmed_at_s = float("-inf")

    def run(self) -> None:
        """
        Write a checkpoint and send feedback, each if it is due.

        Raises:
            _StopTimeoutError: The session is stopping and its deadline has passed.
        """
        if self.stop.is_stopping() and self.stop.deadline().passed():
            raise _StopTimeoutError
        now_s, stats = self._clock.monotonic_s(), self._stats
        stats.last_turn_at_s = now_s
        self._checkpoints.turn(now_s, stats)
        self._send_feedback(now_s)
        self._ledger.acknowledged()
        if self._ledger.settled_count:
            self._observe_latency()

    def confirm(self, lsn: int) -> None:
        """Send the confirmed LSN to the server; it never decreases."""
        self._confirmed_lsn = max(self._confirmed_lsn, lsn)
        self._confirmed_at_s = self._clock.monotonic_s()
        self._stream.confirm(self._confirmed_lsn)
        self._stats.confirmed_lsn = self._confirmed_lsn

    def reply(self) -> None:
        """
        Reply to a server that requests feedback.

        A server that is shutting down waits until its readers have confirmed
        everything, so the connection must end if Kafka stores no checkpoint.

        Raises:
            BrokerUnavailableError: Kafka has not stored a checkpoint in time.
        """
        self.confirm(self._checkpoints.stored_lsn)
        age_s = self._checkpoints.write_age_s(self._clock.monotonic_s())
        if age_s > CHECKPOINT_TIMEOUT_S:
            reason = f"Kafka has stored nothing for {CHECKPOINT_TIMEOUT_S:g} s"
            raise BrokerUnavailableError(reason)

    def _send_feedback(self, now_s: float) -> None:
        """Send feedback on its own timer, or sooner if there is progress."""
        waited_s = now_s - self._confirmed_at_s
        if waited_s < PROGRESS_INTERVAL_S:
            return
        self._stats.in_flight_bytes = self._ledger.in_flight_bytes
        self._stats.parked_keys = len(self._parked)
        lsn = self._checkpoints.stored_lsn
        if lsn > self._confirmed_lsn or waited_s >= STATUS_INTERVAL_S:
            self.confirm(lsn)

    def _observe_latency(self) -> None:
        count, committed_us = self._ledger.take_settled()
        if count:
            now_us = int(self._clock.now().timestamp() * 1_000_000)
            self._stats.settled(committed_us, count, now_us)


class Pipeline:
    """
    Runs the loop until the session stops.

    Attributes:
        max_unsettled: The number of unsettled transactions at which reading stops.
    """

    def __init__(
        self,
        context: LoopContext,
        stream: ReplicationStream,
        consumer: StreamConsumer,
        checkpoints: CheckpointWriter,
        duties: LoopDuties,
        max_in_flight_bytes: int,
    ) -> None:
        self._context = context
        self._stream = stream
        self._consumer = consumer
        self._snapshots = consumer.snapshots
        self._checkpoints = checkpoints
        self._duties = duties
        self._stop = duties.stop
        self._max_in_flight_bytes = max_in_flight_bytes
        self.max_unsettled = MAX_UNSETTLED
        self._has_unread_frames = False
        self._gathers_until_s = float("-inf")

    def run(self) -> None:
        """
        Consume the stream until the session stops, then finish what is in flight.

        Raises:
            TowpathError: The loop failed; the error's disposition decides what follows.
        """
        context = self._context
        context.stats.unacknowledged_bytes = 0
        self._snapshots.resume()
        context.stats.last_turn_at_s = context.clock.monotonic_s()
        context.stats.is_streaming = True
        try:
            while not self._stop.is_stopping():
                self._turn()
            self._finish(self._stop.deadline())
        except _StopTimeoutError:
            context.stats.unacknowledged_bytes = context.ledger.in_flight_bytes
            _LOG.warning(
                "relay stopped before Kafka had acknowledged everything",
                in_flight_bytes=context.ledger.in_flight_bytes,
                stored_lsn=format_lsn(self._checkpoints.stored_lsn),
                remedy="Start the relay again: it reads the rest from the log, and "
                "nothing is lost.",
            )
        finally:
            context.stats.is_streaming = False

    def _turn(self) -> None:
        context = self._context
        is_active = self._snapshots.is_active
        if is_active and self._is_stream_paused():
            context.sender.poll(0.0 if self._snapshots.has_ready else POLL_INTERVAL_S)
        elif self._has_room() and not (is_active and self._snapshots.is_full):
            self._read(self._read_timeout_s(is_active=is_active))
            context.sender.poll(0)
        else:
            context.sender.poll(WAIT_S)
        self._snapshots.turn(context.clock.monotonic_s())
        self._duties.run()
        if context.spans is not None:
            context.spans.turn()

    def _is_stream_paused(self) -> bool:
        """Return whether the stream is waiting for a snapshot, between transactions."""
        return self._snapshots.blocks_stream and not self._consumer.is_inside

    def _has_room(self) -> bool:
        ledger = self._context.ledger
        return (
            ledger.in_flight_bytes < self._max_in_flight_bytes
            and ledger.unsettled_count < self.max_unsettled
        )

    def _read(self, timeout_s: float) -> None:
        clock = self._context.clock
        gathering_s = self._gathers_until_s - clock.monotonic_s()
        if gathering_s > 0 and not self._consumer.is_inside:
            clock.wait(gathering_s)
        frames = self._stream.read(timeout_s)
        if not frames:
            return
        if len(frames) < BACKLOG_FRAMES:
            self._gathers_until_s = clock.monotonic_s() + GATHER_S
        now_us = self._context.now_us()
        # Once per read is enough, and costs nothing per frame.
        self._context.stats.source_clock.observe(sent_us(frames[-1]), now_us)
        if self._stop.is_stopping():
            self._consume_open_transaction(frames, now_us)
        else:
            self._consume(frames, now_us)
        self._context.publisher.flush()

    def _consume(self, frames: Sequence[bytes], now_us: int) -> None:
        at = 0
        while at < len(frames):
            at = self._consumer.consume_all(frames, at, now_us)
            if at < len(frames):
                self._on_keepalive(frames[at])
                at += 1

    def _consume_open_transaction(self, frames: Sequence[bytes], now_us: int) -> None:
        """Consume the rest of the open transaction, but no later one."""
        consumer = self._consumer
        for frame in frames:
            if frame[0] != WAL_DATA:
                self._on_keepalive(frame)
            elif consumer.is_inside:
                consumer.consume(frame, now_us)
            else:
                # The next start streams this transaction again. A later keepalive must
                # not confirm it, although the keepalive's LSN covers it.
                self._has_unread_frames = True
                return

    def _read_timeout_s(self, *, is_active: bool) -> float:
        """Return the wait for the stream, which depends on whether a snapshot runs."""
        if is_active and self._snapshots.has_ready:
            return self._snapshots.read_timeout_s
        if self._context.ledger.in_flight_bytes:
            return POLL_INTERVAL_S
        if self._checkpoints.confirmable() > self._checkpoints.stored_lsn:
            return MARKS_INTERVAL_S
        is_waiting = is_active or self._context.invisible.count
        return TICK_INTERVAL_S if is_waiting else IDLE_INTERVAL_S

    def _on_keepalive(self, frame: bytes) -> None:
        """Acknowledge a keepalive's LSN, if nothing is open, in flight or invisible."""
        context = self._context
        keepalive = parse_keepalive(frame)
        context.stats.received_lsn = max(context.stats.received_lsn, keepalive.wal_end)
        is_open = self._consumer.is_inside or self._has_unread_frames
        if not is_open and not context.invisible.count:
            context.ledger.idle_until(keepalive.wal_end)
        if keepalive.reply_requested:
            self._duties.reply()

    def _finish(self, deadline: Deadline) -> None:
        """Complete the open transaction, then store and confirm the last checkpoint."""
        context = self._context
        # The next start streams the whole transaction again, but publishes only the
        # records that Kafka does not hold yet.
        completing = Deadline(context.clock, deadline.remaining_s() / 2)
        while self._consumer.is_inside and not completing.passed():
            self._turn()
        context.publisher.drain(deadline)
        if context.spans is not None:
            context.spans.turn()
        if context.ledger.in_flight_bytes:
            raise _StopTimeoutError
        while not self._is_visible() and not deadline.passed():
            self._snapshots.probe(context.clock.monotonic_s())
            context.sender.poll(POLL_INTERVAL_S)
            self._snapshots.turn(context.clock.monotonic_s())
        self._checkpoints.finish(is_clean=context.ledger.is_idle)
        while not self._checkpoints.is_stored():
            if deadline.passed():
                raise _StopTimeoutError
            context.sender.poll(POLL_INTERVAL_S)
        self._duties.confirm(self._checkpoints.stored_lsn)

    def _is_visible(self) -> bool:
        return self._context.ledger.acknowledged() <= self._checkpoints.confirmable()
