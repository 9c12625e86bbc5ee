"""
Checkpoints: marks are stored in Kafka before an LSN is confirmed to Postgres.

Every tenth of a second the marks that moved and the LSN that may be confirmed go to the
state topic, through the same producer as all records. Only a stored LSN is confirmed to
Postgres, so that the slot is never ahead of the state topic: a slot that is ahead was
moved by somebody else.

A topic's first mark, with its end offsets, is acknowledged before its first streamed
record is produced: after a crash every record behind it is ours.
"""

from dataclasses import dataclass
from typing import Final

from towpath.relay.publish.in_flight import Delivery, DeliveryLedger
from towpath.relay.publish.publisher import WAIT_S, FindEnds, Publisher
from towpath.relay.recovery.marks import Confirmed, Marks
from towpath.relay.recovery.state import StateRecords
from towpath.relay.snapshot.visibility import InvisibleTransactions
from towpath.relay.stats import Stats
from towpath.schemas.clock import Clock
from towpath.schemas.position import parse_position

# Marks trail by this much, and after a crash so much is read again: a fraction of a
# second of records. Ten times more often would be felt as load on the state topic.
MARKS_INTERVAL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class CheckpointStart:
    """
    The known marks and counters at the session's start.

    Attributes:
        marks: Of each topic, exact: read from the topics themselves.
        published_log_lsn: The highest log LSN of any streamed record.
        offset: The lineage's offset.
        heartbeat: The highest heartbeat counter that was streamed.
    """

    marks: Marks
    published_log_lsn: int
    offset: int
    heartbeat: int


class CheckpointWriter:
    """Stores marks and the LSN that may be confirmed to Postgres."""

    def __init__(
        self,
        known: CheckpointStart,
        records: StateRecords,
        publisher: Publisher,
        ledger: DeliveryLedger,
        invisible: InvisibleTransactions,
        clock: Clock,
    ) -> None:
        self.stored_lsn = ledger.acknowledged()
        self.heartbeat = known.heartbeat
        self._marks = known.marks
        self._offset = known.offset
        self._published_log_lsn = known.published_log_lsn
        self._records = records
        self._publisher = publisher
        self._ledger = ledger
        self._invisible = invisible
        self._clock = clock
        self._moved: set[str] = set()
        self._ended: set[str] = set()
        self._writing: Delivery | None = None
        self._writing_lsn = self.stored_lsn
        self._written_at_s = float("-inf")
        publisher.admit = self._admit

    @property
    def stored_log_lsn(self) -> int:
        """The stored LSN, with the lineage's offset."""
        return self._offset + self.stored_lsn

    def turn(self, now_s: float, stats: Stats) -> None:
        """Take in what was acknowledged; write it down when it is time."""
        self._settle()
        if self._writing is not None or now_s - self._written_at_s < MARKS_INTERVAL_S:
            return
        self._collect_acknowledged()
        is_new = self._moved or self.confirmable() > self.stored_lsn
        if is_new or self._publisher.needs_commit:
            self._written_at_s = now_s
            stats.marks += len(self._moved)
            self._write(is_clean=False)

    def unanswered_s(self, now_s: float) -> float:
        """Return for how long Kafka has not stored what was written down."""
        return 0.0 if self._writing is None else now_s - self._written_at_s

    def note_watermark(self, log_lsn: int) -> None:
        """Note a watermark: READ rows may stand there."""
        self._published_log_lsn = max(self._published_log_lsn, log_lsn)

    def finish(self, *, is_clean: bool) -> None:
        """Begin to write everything down, for the last time; ``settled`` follows."""
        self._collect_acknowledged()
        self._write(is_clean=is_clean)

    def settled(self) -> bool:
        """Tell whether what was begun to be written is stored."""
        self._settle()
        return self._writing is None

    def confirmable(self) -> int:
        """Return how far the log may be forgotten, once that is stored."""
        return self._invisible.confirmable(self._ledger.acknowledged())

    def _settle(self) -> None:
        if self._writing is not None and not self._writing.pending:
            self._publisher.commit()
            self._writing = None
            self.stored_lsn = self._writing_lsn

    def _collect_acknowledged(self) -> None:
        ledger = self._ledger
        self._forget_former_counts()
        reached, ledger.reached = ledger.reached, {}
        passed, ledger.passed = ledger.passed, {}
        self._moved |= self._marks.move(reached, passed)
        highest = max((position for position, _ in reached.values()), default=b"")
        if highest:
            log_lsn = parse_position(highest.decode()).log_lsn
            self._published_log_lsn = max(self._published_log_lsn, log_lsn)

    def _write(self, *, is_clean: bool) -> None:
        now = self._clock.now()
        now_ms = int(now.timestamp() * 1000)
        self._writing_lsn = max(self.stored_lsn, self.confirmable())
        confirmed = Confirmed(
            lsn=self._writing_lsn,
            log_lsn=self._offset + self._writing_lsn,
            published_log_lsn=self._published_log_lsn,
            heartbeat=self.heartbeat,
            is_clean=is_clean,
            at=now.isoformat(),
        )
        moved, self._moved = self._moved, set()
        # Held until the last is handed over: this may be looked after in between.
        writing = self._writing = self._ledger.loose()
        writing.pending = 1
        for topic in sorted(moved):
            document = self._marks.document(topic)
            self._publisher.publish_internal(
                self._records.marks(topic, document, now_ms), writing
            )
        self._publisher.publish_internal(
            self._records.confirmed(confirmed, now_ms), writing
        )
        writing.pending -= 1

    def _forget_former_counts(self) -> None:
        """Store marks without a former partition count that no replay needs."""
        self._ended |= set(self._publisher.take_ended())
        passed = {
            topic
            for topic in self._ended
            if self._marks.forget_former(topic, self.stored_log_lsn)
        }
        self._ended -= passed
        self._moved |= passed

    def _admit(self, topic: str, partition_count: int, find_ends: FindEnds) -> None:
        """
        Store the first mark of a topic that is new to us.

        Raises:
            PartitionCountChangedError: One that is known has other partitions.
        """
        self._marks.check_count(topic, partition_count)
        if self._marks.knows(topic):
            return
        self._marks.begin(topic, find_ends())
        now_ms = int(self._clock.now().timestamp() * 1000)
        writing = self._ledger.loose()
        record = self._records.marks(topic, self._marks.document(topic), now_ms)
        self._publisher.publish_internal(record, writing)
        while writing.pending:
            self._publisher.poll(WAIT_S)
            self._publisher.while_waiting()
