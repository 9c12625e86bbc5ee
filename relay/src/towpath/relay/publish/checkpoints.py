"""
Checkpoints: marks are stored in Kafka before an LSN is confirmed to Postgres.

Every tenth of a second the marks that moved and the LSN that may be confirmed are
written to the state topic, with the same producer as all other records. Only a stored
LSN is confirmed to Postgres, so the slot is never ahead of the state topic: a slot that
is ahead was moved by another program.

A topic's first mark, with its end offsets, is acknowledged before its first streamed
record is produced: after a crash every record beyond that mark is the relay's own.
"""

from dataclasses import dataclass
from typing import Final

from towpath.relay.publish.in_flight import Delivery, DeliveryLedger
from towpath.relay.publish.sender import RecordSender
from towpath.relay.recovery.marks import Confirmed, Marks
from towpath.relay.recovery.state import StateRecords
from towpath.relay.snapshot.visibility import InvisibleTransactions
from towpath.relay.stats import Stats
from towpath.schemas.clock import Clock
from towpath.schemas.position import parse_position

# Marks lag by about this much, so a restart after a crash reads the records of a
# fraction of a second again. A tenth of this interval would put a noticeable load on
# the state topic.
MARKS_INTERVAL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class CheckpointStart:
    """
    The known marks and counters at the session's start.

    Attributes:
        marks: The exact marks, read from the topics.
        published_log_lsn: The highest log LSN of any record, READ rows included.
        offset: The lineage's offset.
        heartbeat: The highest heartbeat counter that was streamed.
        following_heartbeat: A heartbeat counter that was streamed after the last
            published record; None if none is known.
    """

    marks: Marks
    published_log_lsn: int
    offset: int
    heartbeat: int
    following_heartbeat: int | None = None


class CheckpointWriter:
    """Stores marks and the LSN that may be confirmed to Postgres."""

    def __init__(
        self,
        known: CheckpointStart,
        records: StateRecords,
        sender: RecordSender,
        ledger: DeliveryLedger,
        invisible: InvisibleTransactions,
        clock: Clock,
    ) -> None:
        self.stored_lsn = ledger.acknowledged()
        self._heartbeat = known.heartbeat
        # A heartbeat that was streamed at this log LSN or a higher one.
        self._following_heartbeat = known.following_heartbeat
        self._following_log_lsn = known.published_log_lsn + 1
        self._marks = known.marks
        self._offset = known.offset
        self._published_log_lsn = known.published_log_lsn
        self._records = records
        self._sender = sender
        self._ledger = ledger
        self._invisible = invisible
        self._clock = clock
        self._moved: set[str] = set()
        # By topic, the barriers that follow the records of its former partition count.
        self._barriers: dict[str, Delivery] = {}
        self._writing: Delivery | None = None
        self._writing_lsn = self.stored_lsn
        self._written_at_s = float("-inf")

    @property
    def stored_log_lsn(self) -> int:
        """The stored LSN, with the lineage's offset added."""
        return self._offset + self.stored_lsn

    def turn(self, now_s: float, stats: Stats) -> None:
        """Write a checkpoint with the newest marks if it is due and none is pending."""
        if self._writing is not None and not self._settle():
            return
        if now_s - self._written_at_s < MARKS_INTERVAL_S:
            return
        self._collect_acknowledged()
        is_new = self._moved or self.confirmable() > self.stored_lsn
        if is_new or self._sender.needs_commit:
            self._written_at_s = now_s
            stats.marks += len(self._moved)
            self._write(is_clean=False)

    def write_age_s(self, now_s: float) -> float:
        """Return the age of the unstored checkpoint; 0 if there is none."""
        return 0.0 if self._writing is None else now_s - self._written_at_s

    def note_watermark(self, log_lsn: int) -> None:
        """Note a watermark's log LSN, which may be the position of READ rows."""
        self._published_log_lsn = max(self._published_log_lsn, log_lsn)

    def note_heartbeat(self, counter: int, log_lsn: int) -> None:
        """Note the counter of a heartbeat that was streamed, and its log LSN."""
        # Any role can write a heartbeat, so only a rising counter is proof.
        if counter <= self._heartbeat:
            return
        self._heartbeat = counter
        if self._following() is None:
            self._following_heartbeat, self._following_log_lsn = counter, log_lsn

    def admit(self, topic: str, partition_count: int) -> Delivery | None:
        """
        Write the first mark of a topic; return None if the topic already has one.

        Returns:
            The mark's delivery, to be acknowledged before the first streamed record.

        Raises:
            PartitionCountChangedError: The topic's partition count differs from
                that of its marks.
            UnavailableError: The topic is new and Kafka cannot be reached.
        """
        self._marks.check_count(topic, partition_count)
        if self._marks.knows(topic):
            return None
        self._marks.begin(topic, self._sender.end_offsets(topic))
        writing = self._ledger.begin_untracked()
        document, now_ms = self._marks.document(topic), self._now_ms()
        self._sender.send(self._records.marks(topic, document, now_ms), writing)
        return writing

    def end_former_count(self, topic: str, barriers: Delivery) -> None:
        """
        Note that a topic's former partition count has ended, to forget it later.

        It is forgotten once no replay needs it: the topic's barriers, and a checkpoint
        beyond the last position of the former count, must be stored first.
        """
        self._barriers[topic] = barriers

    def finish(self, *, is_clean: bool) -> None:
        """Write the last checkpoint; ``is_stored`` reports when Kafka has it."""
        self._collect_acknowledged()
        self._write(is_clean=is_clean)

    def is_stored(self) -> bool:
        """Return whether Kafka has stored the written checkpoint."""
        return self._writing is None or self._settle()

    def confirmable(self) -> int:
        """Return the LSN that may be confirmed once it is stored."""
        return self._invisible.confirmable(self._ledger.acknowledged())

    def _settle(self) -> bool:
        """Complete the written checkpoint if it is stored; return whether it is."""
        if self._writing is None or self._writing.pending:
            return False
        self._sender.commit()
        self._writing = None
        self.stored_lsn = self._writing_lsn
        return True

    def _collect_acknowledged(self) -> None:
        ledger = self._ledger
        if self._barriers:
            self._forget_former_counts()
        ordered, ledger.ordered_acks = ledger.ordered_acks, {}
        unordered, ledger.unordered_acks = ledger.unordered_acks, {}
        self._moved |= self._marks.move(ordered, unordered)
        highest = max((position for position, _ in ordered.values()), default=b"")
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
            heartbeat=self._heartbeat,
            is_clean=is_clean,
            at=now.isoformat(),
            following_heartbeat=self._following(),
        )
        moved, self._moved = self._moved, set()
        writing = self._writing = self._ledger.begin_untracked()
        for topic in sorted(moved):
            document = self._marks.document(topic)
            self._sender.send(self._records.marks(topic, document, now_ms), writing)
        self._sender.send(self._records.confirmed(confirmed, now_ms), writing)

    def _following(self) -> int | None:
        """Return a heartbeat counter streamed after the last published record."""
        is_after = self._following_log_lsn > self._published_log_lsn
        return self._following_heartbeat if is_after else None

    def _forget_former_counts(self) -> None:
        """Forget former counts that no replay needs; their topics are written next."""
        forgotten = {
            topic
            for topic, barriers in self._barriers.items()
            if not barriers.pending
            and self._marks.forget_former(topic, self.stored_log_lsn)
        }
        for topic in forgotten:
            del self._barriers[topic]
        self._moved |= forgotten

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)
