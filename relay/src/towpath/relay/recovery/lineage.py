"""
Lineages: the unbroken histories of the source's log. This module does no I/O.

Lineages are stored in Kafka, in the state topic, because a database may be restored. A
lineage's offset is above everything published before, so that positions never decrease.
A lineage is *pending* until its slot serves it. After a crash, a pending lineage is
resumed.

A new lineage begins

- when the server is a different one, or its timeline has branched off below the
  published LSN;
- when the server went back in time: a restored volume has the same identifier and
  timeline, but its heartbeat counter is below one that was streamed after the last
  published record, or its log ends below the LSN up to which it was read;
- when the slot is missing, has lost its log, or is ahead of the confirmed LSN, which is
  stored in Kafka before it is confirmed to the server.

A promoted standby may lack the last heartbeats. If it has a heartbeat that follows the
last published record, it has every published change, because heartbeats are streamed in
the order of their counters; so nothing is missing, and the lineage continues.

Each new lineage begins with a gap: changes may never have been streamed, and streamed
ones may have vanished from the source. The gap's plan names every captured table.

Only the newest lineage is compared with the source. Recent former ones are kept for the
operator, without their plans, so that the document always fits into a record.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from towpath.relay.errors import (
    HistoryChangedError,
    NotPreparedError,
    SlotLostError,
    StateLostError,
)
from towpath.relay.recovery.marks import known_fields
from towpath.schemas.position import format_lsn

_LOST: Final = "lost"
_NONE: Final[Mapping[str, Any]] = MappingProxyType({"lineages": ()})


@dataclass(frozen=True, slots=True)
class Gap:
    """
    The changes that may be missing where a lineage begins.

    Attributes:
        reason: The event in the source, in one sentence.
        since_lsn: The confirmed LSN of the previous lineage, in its own LSNs.
        at: The time of its detection, as RFC 3339.
        plan: The tables whose snapshots close the gap.
        started: Whether these snapshots were requested.
    """

    reason: str
    since_lsn: int
    at: str
    plan: tuple[str, ...]
    started: bool = False


@dataclass(frozen=True, slots=True)
class Lineage:
    """
    One unbroken history of the source's log.

    Attributes:
        number: 1 for the first. A lineage that was rebuilt without state has a number
            above those of all gaps for which the source has a signal.
        system_identifier: The identifier of the database cluster.
        timeline: The timeline on which it was last followed.
        offset: The offset added to each LSN.
        slot: The slot that follows it.
        gap: The gap that it begins with; None for the first lineage, and for one that
            was rebuilt with its former offset.
        start_lsn: The slot's LSN when it began to serve the lineage, or the LSN of a
            later promotion below it; None if pending.
        started_at: The time at which the slot began to serve the lineage, or a later
            time, as RFC 3339; empty if an earlier release stored the lineage.
    """

    number: int
    system_identifier: str
    timeline: int
    offset: int
    slot: str
    gap: Gap | None = None
    start_lsn: int | None = None
    started_at: str = ""


class StoredHistory(NamedTuple):
    """
    The history stored in Kafka.

    Attributes:
        lineages: The kept lineages, the newest last; empty at first start.
        confirmed_lsn: The highest LSN stored for confirmation; None if none was.
        confirmed_log_lsn: The same LSN with its lineage's offset added.
        published_log_lsn: The highest log LSN of any record, READ rows included.
        heartbeat: The highest counter that was streamed.
        has_records: Whether any of the relay's topics holds records.
        following_heartbeat: A counter that was streamed after the last published
            record; None if none is known.
    """

    lineages: tuple[Lineage, ...] = ()
    confirmed_lsn: int | None = None
    confirmed_log_lsn: int | None = None
    published_log_lsn: int = 0
    heartbeat: int = 0
    has_records: bool = False
    following_heartbeat: int | None = None

    @property
    def has_checkpoint(self) -> bool:
        """Whether the stored confirmed LSN belongs to the newest lineage."""
        log_lsn = self.confirmed_log_lsn
        if log_lsn is None or not self.lineages:
            return False
        return log_lsn >= self.lineages[-1].offset


class Fork(NamedTuple):
    """The point at which the next timeline branched off."""

    timeline: int
    lsn: int


class SlotHistory(NamedTuple):
    """
    The server's facts about the slot.

    ``is_ours`` is False for a slot of another database, kind or plugin, which
    ``kind`` describes. ``has_streamed`` is True if the slot was read before.
    """

    confirmed_lsn: int
    wal_status: str | None = None
    invalidation_reason: str | None = None
    is_active: bool = False
    is_ours: bool = True
    kind: str = ""
    has_streamed: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether the server has dropped log that the slot needs."""
        return self.wal_status == _LOST or self.invalidation_reason is not None


class SourceHistory(NamedTuple):
    """
    The history that the source reports.

    Attributes:
        system_identifier: The identifier of the database cluster.
        timeline: Its current timeline.
        forks: The forks of its timeline, the oldest first.
        current_lsn: The end of its log.
        slot: The slot; None if there is none.
        heartbeat: The counter in its heartbeat table; 0 if it has none.
        slot_name: The slot's name.
    """

    system_identifier: str
    timeline: int
    forks: tuple[Fork, ...]
    current_lsn: int
    slot: SlotHistory | None
    heartbeat: int
    slot_name: str


@dataclass(frozen=True, slots=True)
class LineageDecision:
    """
    The lineage to follow, and the actions to take first.

    Attributes:
        lineages: The kept lineages, the one to follow last.
        gap: The gap to announce; None if the lineage is known already.
        is_new: Whether the lineage begins now.
        needs_slot: Whether a slot must be created, perhaps in place of a lost one.
        is_changed: Whether ``lineages`` differs from the stored ones.
        confirmed_lsn: The slot's confirmed LSN, in the lineage's own LSNs.
        heartbeat: The highest counter that was streamed in this lineage, unless the
            source lacks it.
        following_heartbeat: A counter that was streamed after the last published
            record; None if none is known.
    """

    lineages: tuple[Lineage, ...]
    gap: Gap | None
    is_new: bool
    needs_slot: bool
    is_changed: bool
    confirmed_lsn: int
    heartbeat: int
    following_heartbeat: int | None = None

    @property
    def lineage(self) -> Lineage:
        """The lineage to follow."""
        return self.lineages[-1]


def lineages_document(lineages: Sequence[Lineage]) -> dict[str, Any]:
    """Return the state topic's document of lineages."""
    return {"lineages": [asdict(lineage) for lineage in lineages]}


def parse_lineages(stored: Mapping[str, Any] | None) -> tuple[Lineage, ...]:
    """
    Parse the state topic's document of lineages; return () if there is none.

    Fields that only a later release knows are ignored.

    Raises:
        StateLostError: The document is invalid.
    """
    try:
        chosen = _NONE if stored is None else stored
        return tuple(_lineage(each) for each in chosen["lineages"])
    except (TypeError, KeyError, AttributeError) as error:
        reason = "the state topic holds lineages that cannot be read"
        raise StateLostError(reason) from error


def _lineage(stored: Mapping[str, Any]) -> Lineage:
    gap = stored["gap"]
    if gap is not None:
        fields = known_fields(gap, Gap.__slots__)
        gap = Gap(**{**fields, "plan": tuple(gap["plan"])})
    return Lineage(**{**known_fields(stored, Lineage.__slots__), "gap": gap})


# How many former lineages are kept: at most a few tens of kilobytes.
FORMER_LINEAGES: Final = 50
# Commit LSNs are multiples of 8, and so are offsets.
_ALIGNMENT: Final = 8


class _KnownHistory(NamedTuple):
    """The stored facts of the newest lineage, in its own LSNs."""

    lineage: Lineage
    confirmed_lsn: int | None
    published_lsn: int | None
    heartbeat: int
    following_heartbeat: int | None = None


def choose_lineage(
    stored: StoredHistory, found: SourceHistory, tables: Sequence[str], at: str
) -> LineageDecision:
    """
    Decide which lineage the source's history belongs to.

    Args:
        stored: The history stored in Kafka.
        found: The history that the source reports.
        tables: The captured tables, whose snapshots would close a gap.
        at: The current time, which a gap or a first lineage records.

    Raises:
        NotPreparedError: There never was a slot, or this relay cannot use it.
        SlotLostError: The slot was lost before anything was read from it.
        StateLostError: The slot or the topics have a history that the state topic
            lacks.
    """
    if found.slot is not None and not found.slot.is_ours:
        reason = f"slot {found.slot_name} is {found.slot.kind}: choose another name"
        raise NotPreparedError(reason)
    if not stored.lineages:
        return _first_lineage(stored, found, at)
    known = _known_history(stored)
    cause = next(_reasons(known, found), None)
    if cause is not None:
        return _new_lineage(stored, known, found, Gap(cause, 0, at, tuple(tables)))
    return _continued(stored, known, found)


def gap_error(
    decision: LineageDecision, found: SourceHistory
) -> HistoryChangedError | SlotLostError:
    """Return the error that reports a gap."""
    reason = decision.gap.reason if decision.gap else "the history changed"
    if found.slot is None or decision.needs_slot:
        return SlotLostError(reason)
    return HistoryChangedError(reason)


def _first_lineage(
    stored: StoredHistory, found: SourceHistory, at: str
) -> LineageDecision:
    """Return the first lineage, unless there are signs of an earlier one."""
    if stored.has_records or (found.slot is not None and found.slot.has_streamed):
        what = "topics hold records" if stored.has_records else "the slot was read"
        reason = f"{what}, but the state topic holds no lineage"
        raise StateLostError(reason)
    if found.slot is None:
        reason = f"there is no slot {found.slot_name}"
        raise NotPreparedError(reason)
    if found.slot.is_lost:
        reason = f"{_lost_reason(found, found.slot)} before anything was read from it"
        raise SlotLostError(reason)
    start_lsn = found.slot.confirmed_lsn
    lineage = Lineage(
        1,
        found.system_identifier,
        found.timeline,
        0,
        found.slot_name,
        start_lsn=start_lsn,
        started_at=at,
    )
    return LineageDecision((lineage,), None, True, False, True, start_lsn, 0)  # noqa: FBT003


def _known_history(stored: StoredHistory) -> _KnownHistory:
    """Return the stored facts of the newest lineage."""
    lineage = stored.lineages[-1]
    published_lsn = stored.published_log_lsn - lineage.offset
    if not stored.has_checkpoint:
        return _KnownHistory(
            lineage,
            lineage.start_lsn,
            published_lsn if published_lsn > 0 else None,
            heartbeat=0,
        )
    confirmed_lsn = max(stored.confirmed_lsn or 0, lineage.start_lsn or 0)
    return _KnownHistory(
        lineage,
        confirmed_lsn,
        published_lsn if published_lsn > 0 else None,
        stored.heartbeat,
        stored.following_heartbeat,
    )


def _reasons(known: _KnownHistory, found: SourceHistory) -> Iterator[str]:
    """Yield the reasons why this is a different history, the most serious first."""
    lineage = known.lineage
    if found.system_identifier != lineage.system_identifier:
        yield (
            f"the server's identifier is {found.system_identifier}, "
            f"that of the followed server is {lineage.system_identifier}"
        )
    elif lineage.start_lsn is not None:
        yield from _timeline_reasons(known, found)
        yield from _rollback_reasons(known, found)
        yield from _slot_reasons(known, found)


def _timeline_reasons(known: _KnownHistory, found: SourceHistory) -> Iterator[str]:
    ours = known.lineage.timeline
    if found.timeline == ours:
        return
    fork_lsn = _fork_lsn(known, found)
    if fork_lsn is None:
        yield f"timeline {found.timeline} does not descend from timeline {ours}"
    elif known.published_lsn is not None and fork_lsn <= known.published_lsn:
        # The fork's LSN is the end of the last record that both timelines share, so a
        # commit that starts there is not shared.
        yield (
            f"timeline {found.timeline} branched off timeline {ours} at "
            f"{format_lsn(fork_lsn)}, but changes up to "
            f"{format_lsn(known.published_lsn)} are published"
        )


def _rollback_reasons(known: _KnownHistory, found: SourceHistory) -> Iterator[str]:
    following = known.following_heartbeat
    needed = known.heartbeat if following is None else following
    if found.heartbeat < needed:
        yield (
            f"the database went back in time: its heartbeat is {found.heartbeat}, "
            f"but {known.heartbeat} was streamed"
        )
    confirmed_lsn = (
        known.confirmed_lsn if found.timeline == known.lineage.timeline else None
    )
    highest_lsn = max(confirmed_lsn or 0, known.published_lsn or 0)
    if found.current_lsn < highest_lsn:
        yield (
            "the database went back in time: its log ends at "
            f"{format_lsn(found.current_lsn)}, but it was read up to "
            f"{format_lsn(highest_lsn)}"
        )


def _slot_reasons(known: _KnownHistory, found: SourceHistory) -> Iterator[str]:
    slot, confirmed_lsn = found.slot, _shared_confirmed_lsn(known, found)
    if slot is None:
        yield f"slot {found.slot_name} no longer exists"
    elif slot.is_lost:
        yield _lost_reason(found, slot)
    elif confirmed_lsn is not None and slot.confirmed_lsn > confirmed_lsn:
        yield (
            f"slot {found.slot_name} is at {format_lsn(slot.confirmed_lsn)}, "
            f"but only {format_lsn(confirmed_lsn)} was confirmed: "
            "another program moved or recreated it"
        )


def _shared_confirmed_lsn(known: _KnownHistory, found: SourceHistory) -> int | None:
    """Return the confirmed LSN, or the fork's if that is lower."""
    fork_lsn = _fork_lsn(known, found)
    if fork_lsn is None or known.confirmed_lsn is None:
        return known.confirmed_lsn
    return min(known.confirmed_lsn, fork_lsn)


def _fork_lsn(known: _KnownHistory, found: SourceHistory) -> int | None:
    """Return the LSN where the server left the followed timeline, if known."""
    ours = known.lineage.timeline
    if found.timeline == ours:
        return None
    timelines = [fork.timeline for fork in found.forks]
    if ours not in timelines:
        return None
    return min(fork.lsn for fork in found.forks[timelines.index(ours) :])


def _lost_reason(found: SourceHistory, slot: SlotHistory) -> str:
    cause = f" ({slot.invalidation_reason})" if slot.invalidation_reason else ""
    name = found.slot_name
    return f"slot {name} has lost part of the log that it still needed{cause}"


def _new_lineage(
    stored: StoredHistory, known: _KnownHistory, found: SourceHistory, gap: Gap
) -> LineageDecision:
    """Return the decision for a new lineage, above every position used so far."""
    highest = max(stored.published_log_lsn, stored.confirmed_log_lsn or 0)
    highest = max(highest, known.lineage.offset + (known.confirmed_lsn or 0))
    lineage = Lineage(
        number=known.lineage.number + 1,
        system_identifier=found.system_identifier,
        timeline=found.timeline,
        offset=-(-(highest + _ALIGNMENT) // _ALIGNMENT) * _ALIGNMENT,
        slot=found.slot_name,
        gap=replace(gap, since_lsn=known.confirmed_lsn or 0),
    )
    return LineageDecision(
        lineages=(*_kept(stored.lineages), lineage),
        gap=lineage.gap,
        is_new=True,
        needs_slot=_needs_slot(found),
        is_changed=True,
        confirmed_lsn=0,
        heartbeat=0,
    )


def _kept(former: Sequence[Lineage]) -> Iterator[Lineage]:
    """Yield the former lineages that are kept, without their plans."""
    for lineage in former[-FORMER_LINEAGES:]:
        gap = lineage.gap and replace(lineage.gap, plan=())
        yield replace(lineage, gap=gap)


def _continued(
    stored: StoredHistory, known: _KnownHistory, found: SourceHistory
) -> LineageDecision:
    """Return the decision to follow the newest lineage on the server's timeline."""
    start_lsn, shared_lsn = known.lineage.start_lsn, _shared_confirmed_lsn(known, found)
    if start_lsn is not None and shared_lsn is not None:
        # The new timeline may begin below the slot's start.
        start_lsn = min(start_lsn, shared_lsn)
    lineage = replace(
        known.lineage,
        timeline=found.timeline,
        slot=found.slot_name,
        start_lsn=start_lsn,
    )
    return LineageDecision(
        lineages=(*stored.lineages[:-1], lineage),
        gap=None,
        is_new=False,
        needs_slot=_needs_slot(found),
        is_changed=lineage != known.lineage,
        confirmed_lsn=found.slot.confirmed_lsn if found.slot else 0,
        heartbeat=min(known.heartbeat, found.heartbeat),
        following_heartbeat=known.following_heartbeat,
    )


def _needs_slot(found: SourceHistory) -> bool:
    return found.slot is None or found.slot.is_lost
