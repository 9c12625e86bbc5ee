"""
Whether the history at hand is the one that was followed before. Pure.

A new lineage begins

- when the server is another one, or its timeline left ours below what was published;
- when the server went back in time: a restored volume has the identifier and timeline
  of before, but its heartbeat counter, or its log, ends below what was streamed;
- when the slot is gone, has lost its log, or stands beyond what we ever confirmed:
  what we confirm is stored in Kafka before the server is told.

Each new lineage is a gap: changes may never have been streamed, and streamed ones may
have vanished from the source.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from towpath.relay.errors import (
    HistoryChangedError,
    NotPreparedError,
    SlotLostError,
    StateLostError,
)
from towpath.relay.lineage import (
    Decision,
    Found,
    FoundSlot,
    Gap,
    Lineage,
    Remembered,
)
from towpath.schemas.position import format_lsn

# Commit LSNs are multiples of 8, and so are offsets.
_ALIGNMENT: Final = 8


class _Known(NamedTuple):
    """What Kafka tells of the newest lineage, in its own LSNs."""

    lineage: Lineage
    told_lsn: int | None
    published_lsn: int | None
    heartbeat: int


def decide(
    remembered: Remembered, found: Found, tables: Sequence[str], at: str
) -> Decision:
    """
    Decide which lineage the source's history belongs to.

    Args:
        remembered: What Kafka tells.
        found: What the source tells.
        tables: The captured tables, whose snapshots would close a gap.
        at: The time of a gap that is found.

    Raises:
        NotPreparedError: There is no slot and never was; or it is somebody else's.
        StateLostError: Slot or topics tell of a past that the state topic lacks.
    """
    if found.slot is not None and not found.slot.is_ours:
        reason = f"slot {found.slot_name} is {found.slot.kind}: choose another name"
        raise NotPreparedError(reason)
    if not remembered.lineages:
        return _first(remembered, found)
    known = _known(remembered)
    cause = next(_reasons(known, found), None)
    if cause is not None:
        return _new(remembered, known, found, Gap(cause, 0, at, tuple(tables)))
    return _go_on(remembered, known, found)


def refusal(decision: Decision, found: Found) -> HistoryChangedError | SlotLostError:
    """Return the error of a gap that is not to be passed by itself."""
    reason = decision.gap.reason if decision.gap else "the history changed"
    if found.slot is None or decision.needs_slot:
        return SlotLostError(reason)
    return HistoryChangedError(reason)


def _first(remembered: Remembered, found: Found) -> Decision:
    """Begin the first lineage, unless something tells of one before."""
    if remembered.has_records or (found.slot is not None and found.slot.has_streamed):
        what = "topics hold records" if remembered.has_records else "the slot was read"
        reason = f"{what}, but the state topic holds no lineage"
        raise StateLostError(reason)
    if found.slot is None:
        reason = f"there is no slot {found.slot_name}"
        raise NotPreparedError(reason)
    if found.slot.is_lost:
        reason = f"{_lost(found, found.slot)} before anything was read from it"
        raise SlotLostError(reason)
    start_lsn = found.slot.confirmed_lsn
    lineage = Lineage(
        1,
        found.system_identifier,
        found.timeline,
        0,
        found.slot_name,
        start_lsn=start_lsn,
    )
    return Decision((lineage,), None, True, False, True, start_lsn, 0)  # noqa: FBT003


def _known(remembered: Remembered) -> _Known:
    """Take for the newest lineage's what was confirmed and published in it."""
    lineage = remembered.lineages[-1]
    published_lsn = remembered.published_log_lsn - lineage.offset
    told_log_lsn = remembered.confirmed_log_lsn
    if told_log_lsn is None or told_log_lsn < lineage.offset:
        return _Known(
            lineage,
            lineage.start_lsn,
            published_lsn if published_lsn > 0 else None,
            heartbeat=0,
        )
    told_lsn = max(remembered.confirmed_lsn or 0, lineage.start_lsn or 0)
    return _Known(
        lineage,
        told_lsn,
        published_lsn if published_lsn > 0 else None,
        remembered.heartbeat,
    )


def _reasons(known: _Known, found: Found) -> Iterator[str]:
    """Say what tells that the history at hand is another, the gravest first."""
    lineage = known.lineage
    if found.system_identifier != lineage.system_identifier:
        yield (
            f"the server is {found.system_identifier}, "
            f"followed so far was {lineage.system_identifier}"
        )
    elif lineage.start_lsn is not None:
        yield from _timeline_reasons(known, found)
        yield from _regress_reasons(known, found)
        yield from _slot_reasons(known, found)


def _timeline_reasons(known: _Known, found: Found) -> Iterator[str]:
    ours = known.lineage.timeline
    if found.timeline == ours:
        return
    fork_lsn = _fork_lsn(known, found)
    if fork_lsn is None:
        yield f"timeline {found.timeline} does not descend from timeline {ours}"
    elif known.published_lsn is not None and fork_lsn <= known.published_lsn:
        # A fork is the end of the last record that both share, so a commit that
        # stands at the fork is not shared.
        yield (
            f"timeline {found.timeline} left timeline {ours} at "
            f"{format_lsn(fork_lsn)}, published is {format_lsn(known.published_lsn)}"
        )


def _regress_reasons(known: _Known, found: Found) -> Iterator[str]:
    if found.heartbeat < known.heartbeat:
        yield (
            f"the database went back in time: its heartbeat is {found.heartbeat}, "
            f"streamed was {known.heartbeat}"
        )
    told_lsn = known.told_lsn if found.timeline == known.lineage.timeline else None
    highest_lsn = max(told_lsn or 0, known.published_lsn or 0)
    if found.current_lsn < highest_lsn:
        yield (
            "the database went back in time: its log ends at "
            f"{format_lsn(found.current_lsn)}, followed was {format_lsn(highest_lsn)}"
        )


def _slot_reasons(known: _Known, found: Found) -> Iterator[str]:
    slot, told_lsn = found.slot, _told_lsn(known, found)
    if slot is None:
        yield f"slot {found.slot_name} is gone"
    elif slot.is_lost:
        yield _lost(found, slot)
    elif told_lsn is not None and slot.confirmed_lsn > told_lsn:
        yield (
            f"slot {found.slot_name} stands at {format_lsn(slot.confirmed_lsn)}, "
            f"confirmed was {format_lsn(told_lsn)}: "
            "it was moved or made anew by somebody else"
        )


def _told_lsn(known: _Known, found: Found) -> int | None:
    """Return what we confirmed of the log that the server still shares with us."""
    fork_lsn = _fork_lsn(known, found)
    if fork_lsn is None or known.told_lsn is None:
        return known.told_lsn
    return min(known.told_lsn, fork_lsn)


def _fork_lsn(known: _Known, found: Found) -> int | None:
    """Return where our timeline was left; None if it was not, or is not known."""
    ours = known.lineage.timeline
    if found.timeline == ours:
        return None
    timelines = [fork.timeline for fork in found.forks]
    if ours not in timelines:
        return None
    return min(fork.lsn for fork in found.forks[timelines.index(ours) :])


def _lost(found: Found, slot: FoundSlot) -> str:
    cause = f" ({slot.invalidation_reason})" if slot.invalidation_reason else ""
    return f"slot {found.slot_name} has lost log that it still needed{cause}"


def _new(remembered: Remembered, known: _Known, found: Found, gap: Gap) -> Decision:
    """Begin a lineage above everything; its slot is settled later."""
    highest = max(remembered.published_log_lsn, remembered.confirmed_log_lsn or 0)
    highest = max(highest, known.lineage.offset + (known.told_lsn or 0))
    lineage = Lineage(
        number=known.lineage.number + 1,
        system_identifier=found.system_identifier,
        timeline=found.timeline,
        offset=-(-(highest + _ALIGNMENT) // _ALIGNMENT) * _ALIGNMENT,
        slot=found.slot_name,
        gap=replace(gap, since_lsn=known.told_lsn or 0),
    )
    return Decision(
        lineages=(*remembered.lineages, lineage),
        gap=lineage.gap,
        is_new=True,
        needs_slot=_needs_slot(found),
        is_changed=True,
        confirmed_lsn=0,
        heartbeat=0,
    )


def _go_on(remembered: Remembered, known: _Known, found: Found) -> Decision:
    """Follow the newest lineage, on the timeline that the server writes now."""
    lineage = replace(known.lineage, timeline=found.timeline, slot=found.slot_name)
    return Decision(
        lineages=(*remembered.lineages[:-1], lineage),
        gap=None,
        is_new=False,
        needs_slot=_needs_slot(found),
        is_changed=lineage != known.lineage,
        confirmed_lsn=found.slot.confirmed_lsn if found.slot else 0,
        heartbeat=known.heartbeat,
    )


def _needs_slot(found: Found) -> bool:
    return found.slot is None or found.slot.is_lost
