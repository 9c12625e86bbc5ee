"""
Rebuilds a lost state from the records in Kafka and the source, without I/O.

Marks that do not match their topics are replaced. A deleted or truncated topic has lost
records: a deleted one is recreated, and snapshots fill both. A topic with added
partitions uses them from the next position on.

Without a stored lineage the whole state is rebuilt, and the lineage's offset must be
found. If a row change proves it, or if everything published is within the server's log,
the lineage continues and no record is published twice. Otherwise a new lineage begins
above everything published, with a gap that snapshots of every captured table close.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from towpath.relay.errors import StateRefusedError
from towpath.relay.recovery.lineage import (
    Gap,
    Lineage,
    SlotHistory,
    SourceHistory,
    lineages_document,
)
from towpath.relay.recovery.marks import (
    Confirmed,
    FormerCount,
    FormerCounts,
    Mark,
    TopicMarks,
    marks_document,
)
from towpath.relay.recovery.state import (
    CONFIRMED_KEY,
    LINEAGE_KEY,
    MARKS_KEY,
    SETTINGS_KEY,
)
from towpath.schemas.position import format_lsn, format_position, parse_position

_ALIGNMENT: Final = 8
_NO_TOPICS: Final[Mapping[str, int]] = MappingProxyType({})
# Above every ordinal, as all of a transaction has the same partition count.
_LAST_ORDINAL: Final = 9_999_999_999
_SIGNAL: Final = "repair"
_REPUBLISHED_FROM: Final = (
    "records that these topics lack are published from the confirmed position on"
)
_COUNT_CHANGED: Final = (
    "topic {topic} uses {count} partitions after position {until}: keys change "
    "partitions. Sinks compare positions and need no change; a consumer that needs the "
    "order of each key reads every partition up to its barrier (header "
    "towpath-partition-count) before it reads past any barrier"
)
_REQUESTED: Final = "signal {signal} requests snapshots of {tables}, with a sweep"
_UNREAD: Final = (
    "the lost records of topic {topic} cannot be read from a table: fill its readers "
    "from another source (docs/runbook.md, TopicTruncatedError)"
)
_SETTINGS: Final = (
    "the file's settings are assumed to be those of the last run: if they differ, "
    "records that Kafka has may be published again"
)
_REPUBLISHED: Final = "records that Kafka has are published again, at new positions"
_CLOSED_BY: Final = (
    "snapshots of every captured table close the gap: relay.on_gap decides whether "
    "the relay requests them"
)
LOST: Final = "the state topic was lost, and no record proves its lineage's offset"


class Evidence(NamedTuple):
    """
    The evidence that remains without the state.

    Attributes:
        marks: The exact marks.
        published_log_lsn: The highest log LSN of any record, READ rows included.
        offsets: Proven lineage offsets, by the log LSN of their proof.
        found: The history that the source reports.
        highest_gap: The highest number of a lineage whose gap has a signal in the
            source; 0 if there is none.
        settings: The file's settings that determine ordinals, routes, keys and
            partitions.
        tables: The captured tables.
        at: The time, as RFC 3339.
    """

    marks: Mapping[str, TopicMarks]
    published_log_lsn: int
    offsets: Mapping[int, int]
    found: SourceHistory
    highest_gap: int
    settings: Mapping[str, Any]
    tables: Sequence[str]
    at: str


class RepairPlan(NamedTuple):
    """
    The records to write, in this order, and notes for the operator.

    Attributes:
        documents: The documents, by key; None deletes a key. The lineage comes last, so
            that an interrupted repair can be repeated.
        notes: The notes, one sentence each.
        is_whole: Whether every other key is deleted too.
        recreated: Topics to recreate first, with their partition counts.
        signal_id: The id of the signal that requests snapshots of ``requested``.
        requested: The tables and views whose records were lost.
    """

    documents: Mapping[str, Mapping[str, Any] | None]
    notes: tuple[str, ...]
    is_whole: bool
    recreated: Mapping[str, int] = _NO_TOPICS
    signal_id: str = ""
    requested: tuple[str, ...] = ()


class MarkMismatch(NamedTuple):
    """
    A topic that does not match its marks.

    Attributes:
        reason: The mismatch, as text.
        partition_count: Its current partition count; 0 if it was deleted.
        has_lost: Whether records were lost; otherwise partitions were added.
    """

    reason: str
    partition_count: int
    has_lost: bool


class MismatchFacts(NamedTuple):
    """
    The facts about topics that do not match their marks.

    Attributes:
        mismatches: The mismatches, by topic.
        stored: Their marks as stored.
        former: Their former partition counts, as stored.
        current: Their marks as read from the topics now; topics without records of the
            relay are omitted.
        collections: The table or view that can fill a topic, for each topic that the
            relay still writes; None if there is none.
        at: The time, as RFC 3339.
    """

    mismatches: Mapping[str, MarkMismatch]
    stored: Mapping[str, TopicMarks]
    former: FormerCounts
    current: Mapping[str, TopicMarks]
    collections: Mapping[str, str | None]
    at: str


def plan_repair(evidence: Evidence) -> RepairPlan:
    """
    Return the records that rebuild the state.

    Raises:
        StateRefusedError: There is no usable slot, or it is in use.
    """
    slot = _usable_slot(evidence.found)
    offset, offset_notes = _offset(evidence)
    lineage = _lineage(evidence, slot, offset)
    documents: dict[str, Mapping[str, Any] | None] = {
        f"{MARKS_KEY}{topic}": marks_document(marks)
        for topic, marks in sorted(evidence.marks.items())
    }
    documents[SETTINGS_KEY] = evidence.settings
    if offset is not None:
        documents[CONFIRMED_KEY] = Confirmed(
            lsn=slot.confirmed_lsn,
            log_lsn=offset + slot.confirmed_lsn,
            published_log_lsn=evidence.published_log_lsn,
            heartbeat=0,
            is_clean=False,
            at=evidence.at,
        )._asdict()
    documents[LINEAGE_KEY] = lineages_document([lineage])
    notes = (offset_notes, *_notes(slot, is_exact=offset is not None))
    return RepairPlan(documents, notes, is_whole=True)


def find_mismatches(
    marks: Mapping[str, TopicMarks],
    counts: Mapping[str, int],
    ends: Mapping[tuple[str, int], int],
) -> dict[str, MarkMismatch]:
    """
    Return the topics that no longer match their marks.

    Args:
        marks: The stored marks.
        counts: The partition count of each existing topic.
        ends: The end offset of each marked partition; -1 if it does not exist.
    """
    found = {}
    for topic, of_topic in sorted(marks.items()):
        had, count = len(of_topic), counts.get(topic, 0)
        short = [n for n, mark in of_topic.items() if ends[topic, n] < mark.next_offset]
        changed = f"changed from {had} to {count} partitions"
        if not count:
            found[topic] = MarkMismatch("was deleted", 0, has_lost=True)
        elif short:
            reason = f"ends below its mark in partition {short[0]}"
            found[topic] = MarkMismatch(reason, count, has_lost=True)
        elif count != had:
            found[topic] = MarkMismatch(changed, count, has_lost=count < had)
    return found


def plan_marks(topics: MismatchFacts, found: SourceHistory) -> RepairPlan:
    """
    Return the repair plan for topics that were truncated, recreated or extended.

    Args:
        topics: The facts about these topics.
        found: The history that the source reports.

    Raises:
        StateRefusedError: The slot is in use.
    """
    _refuse_in_use(found)
    documents: dict[str, Mapping[str, Any] | None] = {}
    mismatches, stored = topics.mismatches, topics.stored
    notes = [f"topic {topic} {each.reason}" for topic, each in mismatches.items()]
    for topic, each in mismatches.items():
        now = topics.current.get(topic)
        former: tuple[FormerCount, ...] = ()
        if now is not None and not each.has_lost:
            now = _kept(now, stored[topic])
            former = (*topics.former.get(topic, ()), *_former(now, stored[topic]))
            notes += [
                _COUNT_CHANGED.format(
                    topic=topic, count=each.partition_count, until=last.until.decode()
                )
                for last in former[-1:]
            ]
        document = None if now is None else marks_document(now, former)
        documents[f"{MARKS_KEY}{topic}"] = document
    lost = [topic for topic, each in mismatches.items() if each.has_lost]
    written = [topic for topic in lost if topic in topics.collections]
    requested = [name for topic in written if (name := topics.collections[topic])]
    signal_id = f"{_SIGNAL}-{topics.at}"
    if requested:
        notes.append(_REQUESTED.format(tables=", ".join(requested), signal=signal_id))
    unread = [topic for topic in written if topics.collections[topic] is None]
    notes += [_UNREAD.format(topic=topic) for topic in unread]
    return RepairPlan(
        documents,
        (*notes, _REPUBLISHED_FROM),
        is_whole=False,
        recreated={
            topic: len(stored[topic])
            for topic in written
            if not mismatches[topic].partition_count
        },
        signal_id=signal_id,
        requested=tuple(requested),
    )


def _kept(now: TopicMarks, stored: TopicMarks) -> TopicMarks:
    """Return the current marks, with the stored positions of emptied partitions."""
    return {
        partition: Mark(
            mark.next_offset,
            mark.position
            or (stored[partition].position if partition in stored else None),
        )
        for partition, mark in now.items()
    }


def _former(now: TopicMarks, stored: TopicMarks) -> tuple[FormerCount, ...]:
    """Return the former partition count of the published records; empty if none."""
    positions = [mark.position for mark in now.values() if mark.position]
    if not positions:
        return ()
    log_lsn = parse_position(max(positions).decode()).log_lsn
    until = format_position(log_lsn, _LAST_ORDINAL).encode()
    return (FormerCount(len(stored), until),)


def _refuse_in_use(found: SourceHistory) -> None:
    if found.slot is not None and found.slot.is_active:
        reason = f"slot {found.slot_name} is in use: stop the relay first"
        raise StateRefusedError(reason)


def _usable_slot(found: SourceHistory) -> SlotHistory:
    slot = found.slot
    if slot is None or not slot.is_ours or slot.is_lost:
        reason = (
            f"slot {found.slot_name} is missing or unusable: drop it if it exists, "
            "run towpath relay init, then repair the state"
        )
        raise StateRefusedError(reason)
    _refuse_in_use(found)
    return slot


def _offset(evidence: Evidence) -> tuple[int | None, str]:
    """Return the lineage's offset (None if it is unknown), and an explanation."""
    highest, end_lsn = evidence.published_log_lsn, evidence.found.current_lsn
    if evidence.offsets:
        log_lsn = max(evidence.offsets)
        offset = evidence.offsets[log_lsn]
        if offset >= 0 and offset % _ALIGNMENT == 0 and highest - offset <= end_lsn:
            return offset, f"a row change proves the lineage's offset {offset}"
    elif highest <= end_lsn:
        return 0, (
            "no published record lies beyond the server's log, which ends at "
            f"{format_lsn(end_lsn)}: the lineage is assumed to be the first"
        )
    return None, (
        f"records up to {format_lsn(highest)} are published, but the server's log ends "
        f"at {format_lsn(end_lsn)}: a new lineage begins above the published records"
    )


def _lineage(evidence: Evidence, slot: SlotHistory, offset: int | None) -> Lineage:
    found = evidence.found
    gap = None
    if offset is None:
        above = evidence.published_log_lsn + _ALIGNMENT
        offset = -(-above // _ALIGNMENT) * _ALIGNMENT
        gap = Gap(LOST, slot.confirmed_lsn, evidence.at, tuple(evidence.tables))
    return Lineage(
        # The number is part of the id of the gap's signal: an id that already exists
        # would request nothing.
        number=evidence.highest_gap + 1,
        system_identifier=found.system_identifier,
        timeline=found.timeline,
        offset=offset,
        slot=found.slot_name,
        gap=gap,
        start_lsn=None if gap else slot.confirmed_lsn,
        started_at="" if gap else evidence.at,
    )


def _notes(slot: SlotHistory, *, is_exact: bool) -> tuple[str, ...]:
    begin = f"the log is streamed from {format_lsn(slot.confirmed_lsn)} on"
    if is_exact:
        return f"{begin}; records that Kafka has are skipped", _SETTINGS
    return f"{begin}; {_REPUBLISHED}", _CLOSED_BY, _SETTINGS
