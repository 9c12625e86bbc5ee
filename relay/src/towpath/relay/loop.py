"""
The loop: one thread between the stream and Kafka.

::

    read frames -> follow each -> acknowledgements -> marks -> snapshots -> feedback

It never blocks for longer than a wait that is written here. At the bound of bytes in
flight it stops reading the socket, so that back-pressure reaches the server, and
continues everything else: feedback above all, which has its own timer.
"""

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from towpath.relay.errors import BrokerUnavailableError
from towpath.relay.ports import ReplicationStream
from towpath.relay.publish.checkpoints import MARKS_INTERVAL_S, CheckpointWriter
from towpath.relay.publish.publisher import WAIT_S
from towpath.relay.stream.consumer import StreamConsumer
from towpath.relay.stream.context import LoopContext
from towpath.relay.stream.snapshot_runner import TICK_INTERVAL_S
from towpath.relay.wal.frames import WAL_DATA, parse_keepalive, sent_us
from towpath.schemas.clock import Deadline
from towpath.schemas.position import format_lsn

# A sixth of wal_sender_timeout's default of 60 s, so that several lost updates
# do not disconnect us. Lower only costs traffic; higher risks reconnects.
STATUS_INTERVAL_S: Final = 10.0

# Progress is told at most this often; it is stored ten times a second, so that this
# only spreads what follows a pause.
PROGRESS_INTERVAL_S: Final = 0.02

# While records are on their way the client must be polled for acknowledgements:
# rarely enough to cost nothing, often enough that the confirmed position keeps up.
POLL_INTERVAL_S: Final = 0.01

# For how long the server may ask in vain: longer than an election of Kafka's takes, far
# less than what a service manager gives a database to stop.
UNANSWERED_S: Final = 15.0

# How many transactions may wait behind one that is held, for a signal that cannot be
# stored for instance: some tens of megabytes.
MAX_UNSETTLED: Final = 200_000

# With nothing to do, how long the loop sleeps on its socket.
IDLE_INTERVAL_S: Final = 1.0


_LOG = structlog.get_logger("towpath.relay")


class _OutOfTimeError(Exception):
    """The process is to end, and the time for ending well is over."""


class Pipeline:
    """Runs the loop until it is told to stop."""

    def __init__(
        self,
        context: LoopContext,
        stream: ReplicationStream,
        consumer: StreamConsumer,
        checkpoints: CheckpointWriter,
        max_in_flight_bytes: int,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._context = context
        self._stream = stream
        self._consumer = consumer
        self._snapshots = consumer.snapshots
        self._checkpoints = checkpoints
        self._max_in_flight_bytes = max_in_flight_bytes
        self._is_stopping = is_stopping
        self._has_left_out = False
        self._confirmed_lsn = 0
        self._confirmed_at_s = float("-inf")
        self._stop_timeout_s = 0.0
        self._deadline: Deadline | None = None
        context.publisher.while_waiting = self._run_duties

    def run(self, stop_timeout_s: float) -> None:
        """
        Follow the stream until told to stop; then finish what is begun.

        Raises:
            TowpathError: The error that ended it; its disposition says what to do.
        """
        context = self._context
        self._stop_timeout_s = stop_timeout_s
        context.stats.left_bytes = 0
        self._snapshots.resume()
        context.stats.turned_at_s = context.clock.monotonic_s()
        context.stats.is_streaming = True
        try:
            while not self._is_stopping():
                self._turn()
            self._finish(self._ending())
        except _OutOfTimeError:
            context.stats.left_bytes = context.ledger.in_flight_bytes
            _LOG.warning(
                "relay stopped before Kafka had acknowledged everything",
                in_flight_bytes=context.ledger.in_flight_bytes,
                stored_lsn=format_lsn(self._checkpoints.stored_lsn),
                remedy="Nothing is lost: the next start reads it from the log again.",
            )
        finally:
            context.stats.is_streaming = False

    def _ending(self) -> Deadline:
        """Return the one deadline of everything that is still to be done."""
        if self._deadline is None:
            self._deadline = Deadline(self._context.clock, self._stop_timeout_s)
        return self._deadline

    def _turn(self) -> None:
        context = self._context
        is_active = self._snapshots.is_active
        if is_active and self._stands_still():
            context.publisher.poll(
                0.0 if self._snapshots.has_ready else POLL_INTERVAL_S
            )
        elif self._has_room() and not (is_active and self._snapshots.is_full):
            self._read(self._patience_s(is_active=is_active))
            context.publisher.poll(0)
        else:
            context.publisher.poll(WAIT_S)
        self._snapshots.turn(context.clock.monotonic_s())
        self._run_duties()

    def _stands_still(self) -> bool:
        """Tell whether the stream waits for a snapshot, between two transactions."""
        return self._snapshots.holds_stream and not self._consumer.is_inside

    def _has_room(self) -> bool:
        ledger = self._context.ledger
        return (
            ledger.in_flight_bytes < self._max_in_flight_bytes
            and ledger.unsettled_count < MAX_UNSETTLED
        )

    def _run_duties(self) -> None:
        """Do what must not wait, whatever else does; also while there is no room."""
        context = self._context
        if self._is_stopping() and self._ending().passed():
            raise _OutOfTimeError
        now_s = context.clock.monotonic_s()
        context.stats.turned_at_s = now_s
        self._checkpoints.turn(now_s, context.stats)
        self._send_feedback(now_s)
        ledger = context.ledger
        ledger.acknowledged()
        if ledger.settled_count:
            if ledger.settled_us:
                context.stats.settled(
                    ledger.settled_us, ledger.settled_count, context.now_us()
                )
            ledger.settled_count = 0

    def _read(self, timeout_s: float) -> None:
        frames = self._stream.read(timeout_s)
        if not frames:
            return
        now_us = self._context.now_us()
        # Once per read is enough, and costs nothing per frame.
        self._context.stats.source_clock.observe(sent_us(frames[-1]), now_us)
        if self._is_stopping():
            self._follow_to_the_end(frames, now_us)
        else:
            self._follow(frames, now_us)
        self._context.publisher.flush()

    def _follow(self, frames: Sequence[bytes], now_us: int) -> None:
        at = 0
        while at < len(frames):
            at = self._consumer.follow_all(frames, at, now_us)
            if at < len(frames):
                self._keep_alive(frames[at])
                at += 1

    def _follow_to_the_end(self, frames: Sequence[bytes], now_us: int) -> None:
        """Take what completes the open transaction, and leave out what follows it."""
        consumer = self._consumer
        for frame in frames:
            if frame[0] != WAL_DATA:
                self._keep_alive(frame)
            elif consumer.is_inside:
                consumer.follow(frame, now_us)
            else:
                # It is streamed again at next start; a later word of the server would
                # say that it has been read.
                self._has_left_out = True
                return

    def _patience_s(self, *, is_active: bool) -> float:
        """Return how long to wait for the stream; ``is_active``: a snapshot is."""
        if is_active and self._snapshots.has_ready:
            return self._snapshots.patience_s
        if self._context.ledger.in_flight_bytes:
            return POLL_INTERVAL_S
        if self._checkpoints.confirmable() > self._checkpoints.stored_lsn:
            return MARKS_INTERVAL_S
        is_waiting = is_active or self._context.invisible.count
        return TICK_INTERVAL_S if is_waiting else IDLE_INTERVAL_S

    def _keep_alive(self, frame: bytes) -> None:
        """Take the server's word of its progress only while nothing at all is open."""
        context = self._context
        keepalive = parse_keepalive(frame)
        context.stats.received_lsn = max(context.stats.received_lsn, keepalive.wal_end)
        is_open = self._consumer.is_inside or self._has_left_out
        if not is_open and not context.invisible.count:
            context.ledger.idle_until(keepalive.wal_end)
        if keepalive.reply_requested:
            self._confirm(self._checkpoints.stored_lsn)
            self._check_server_shutdown()

    def _check_server_shutdown(self) -> None:
        """
        End the connection if the server waits for what Kafka does not store.

        A server that shuts down waits until its readers have confirmed everything.
        """
        now_s = self._context.clock.monotonic_s()
        if self._checkpoints.unanswered_s(now_s) > UNANSWERED_S:
            reason = f"Kafka has stored nothing for {UNANSWERED_S:g} s"
            raise BrokerUnavailableError(reason)

    def _send_feedback(self, now_s: float) -> None:
        """Send feedback by its own timer, and sooner when there is progress."""
        waited_s = now_s - self._confirmed_at_s
        if waited_s < PROGRESS_INTERVAL_S:
            return
        self._context.stats.in_flight_bytes = self._context.ledger.in_flight_bytes
        self._context.stats.parked_keys = len(self._context.router.parked)
        lsn = self._checkpoints.stored_lsn
        if lsn > self._confirmed_lsn or waited_s >= STATUS_INTERVAL_S:
            self._confirm(lsn)

    def _confirm(self, lsn: int) -> None:
        context = self._context
        self._confirmed_lsn = max(self._confirmed_lsn, lsn)
        self._confirmed_at_s = context.clock.monotonic_s()
        self._stream.confirm(self._confirmed_lsn)
        context.stats.confirmed_lsn = self._confirmed_lsn

    def _finish(self, deadline: Deadline) -> None:
        """Complete the open transaction, wait for Kafka, store it, confirm."""
        context = self._context
        # What is left of a long transaction comes again, without what Kafka has of it.
        completing = Deadline(context.clock, deadline.remaining_s() / 2)
        while self._consumer.is_inside and not completing.passed():
            self._turn()
        context.publisher.drain(deadline.remaining_s())
        if context.ledger.in_flight_bytes:
            raise _OutOfTimeError
        while not self._is_visible() and not deadline.passed():
            self._snapshots.probe(context.clock.monotonic_s())
            self._turn_without_reading()
        self._checkpoints.finish(is_clean=context.ledger.is_idle)
        while not self._checkpoints.settled():
            if deadline.passed():
                raise _OutOfTimeError
            context.publisher.poll(POLL_INTERVAL_S)
        self._confirm(self._checkpoints.stored_lsn)

    def _turn_without_reading(self) -> None:
        self._context.publisher.poll(POLL_INTERVAL_S)
        self._snapshots.turn(self._context.clock.monotonic_s())

    def _is_visible(self) -> bool:
        return self._context.ledger.acknowledged() <= self._checkpoints.confirmable()
