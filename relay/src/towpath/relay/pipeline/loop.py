"""
The loop: one thread between the stream and Kafka.

::

    read frames -> follow each -> acknowledgements -> snapshots -> feedback -> again

It never blocks for longer than a wait that is written here. At the bound of bytes on
their way it stops reading the socket, so that back-pressure reaches the server, and
goes on with everything else: feedback above all, which has its own timer.
"""

from collections.abc import Callable
from typing import Final

from towpath.relay.pipeline.core import Core
from towpath.relay.pipeline.follower import Follower
from towpath.relay.pipeline.outlet import WAIT_S
from towpath.relay.pipeline.snapshots import TICK_INTERVAL_S, Snapshots
from towpath.relay.ports import ReplicationStream
from towpath.relay.wal.frames import KEEPALIVE, parse_keepalive
from towpath.schemas.clock import Deadline

# A sixth of wal_sender_timeout's default of 60 s, so that several lost updates
# do not disconnect us. Lower only costs traffic; higher risks reconnects.
STATUS_INTERVAL_S: Final = 10.0

# Progress is told at most this often. Each update costs the server a little; a
# hundred a second would be felt, one a second would keep log for longer.
PROGRESS_INTERVAL_S: Final = 0.02

# While records are on their way the client must be polled for acknowledgements:
# rarely enough to cost nothing, often enough that the confirmed position keeps up.
POLL_INTERVAL_S: Final = 0.01

# With nothing to do, how long the loop sleeps on its socket.
IDLE_INTERVAL_S: Final = 1.0


class Pipeline:
    """Runs the loop until it is told to stop."""

    def __init__(
        self,
        core: Core,
        stream: ReplicationStream,
        follower: Follower,
        snapshots: Snapshots,
        max_in_flight_bytes: int,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._core = core
        self._stream = stream
        self._follower = follower
        self._snapshots = snapshots
        self._max_in_flight_bytes = max_in_flight_bytes
        self._is_stopping = is_stopping
        self._has_left_out = False
        self._told_lsn = 0
        self._told_at_s = float("-inf")
        core.outlet.while_waiting = self._tell_progress

    def run(self, stop_timeout_s: float) -> None:
        """
        Follow the stream until told to stop; then finish what is begun.

        Raises:
            TowpathError: What ended it; its disposition says what to do.
        """
        self._snapshots.resume()
        self._core.tally.is_streaming = True
        try:
            while not self._is_stopping():
                self._turn()
        finally:
            self._core.tally.is_streaming = False
        self._finish(Deadline(self._core.clock, stop_timeout_s))

    def _turn(self) -> None:
        core = self._core
        if core.ledger.in_flight_bytes < self._max_in_flight_bytes:
            self._read()
            core.outlet.poll(0)
        else:
            core.outlet.poll(WAIT_S)
        self._snapshots.turn(core.clock.monotonic_s())
        self._tell_progress()

    def _read(self) -> None:
        frames = self._stream.read(self._patience_s())
        if not frames:
            return
        now_us = self._core.now_us()
        follower = self._follower
        follow = follower.follow
        is_ending = self._is_stopping()
        for frame in frames:
            if frame[0] == KEEPALIVE:
                self._keep_alive(frame)
            elif is_ending and not follower.is_inside:
                # The rest is streamed again at next start; a later word of the server
                # would say that it has been read.
                self._has_left_out = True
                return
            else:
                follow(frame, now_us)

    def _patience_s(self) -> float:
        core = self._core
        if core.ledger.in_flight_bytes:
            return POLL_INTERVAL_S
        return TICK_INTERVAL_S if self._snapshots.is_busy else IDLE_INTERVAL_S

    def _keep_alive(self, frame: bytes) -> None:
        """Take the server's word of its progress only while nothing at all is open."""
        core = self._core
        keepalive = parse_keepalive(frame)
        core.tally.received_lsn = max(core.tally.received_lsn, keepalive.wal_end)
        is_open = self._follower.is_inside or self._has_left_out
        if not is_open and not core.invisible.count:
            core.ledger.idle_until(keepalive.wal_end)
        if keepalive.reply_requested:
            self._tell(self._confirmable())

    def _confirmable(self) -> int:
        return self._core.invisible.confirmable(self._core.ledger.acknowledged())

    def _tell_progress(self) -> None:
        """Send feedback by its own timer, and sooner when there is progress."""
        waited_s = self._core.clock.monotonic_s() - self._told_at_s
        if waited_s < PROGRESS_INTERVAL_S:
            return
        self._core.tally.in_flight_bytes = self._core.ledger.in_flight_bytes
        lsn = self._confirmable()
        if lsn > self._told_lsn or waited_s >= STATUS_INTERVAL_S:
            self._tell(lsn)

    def _tell(self, lsn: int) -> None:
        core = self._core
        self._told_lsn = max(self._told_lsn, lsn)
        self._told_at_s = core.clock.monotonic_s()
        self._stream.confirm(self._told_lsn)
        core.tally.confirmed_lsn = self._told_lsn

    def _finish(self, deadline: Deadline) -> None:
        """Complete the open transaction, wait for Kafka, confirm."""
        core = self._core
        while self._follower.is_inside and not deadline.passed():
            self._turn()
        core.outlet.flush(deadline.remaining_s())
        while not self._is_settled() and not deadline.passed():
            self._snapshots.probe(core.clock.monotonic_s())
            self._turn_without_reading()
        self._tell(self._confirmable())

    def _turn_without_reading(self) -> None:
        self._core.outlet.poll(POLL_INTERVAL_S)
        self._snapshots.turn(self._core.clock.monotonic_s())

    def _is_settled(self) -> bool:
        core = self._core
        return core.ledger.acknowledged() <= self._confirmable()
