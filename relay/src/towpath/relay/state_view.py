"""
The state, and what else is known of it, as one document for people and scripts. Pure.

LSNs are written as Postgres does; positions as they stand in headers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from towpath.relay.lineage import Lineage, parse_lineages
from towpath.relay.marks import TopicMarks
from towpath.relay.postgres.catalog import SlotFacts
from towpath.relay.routing.parked import Parked
from towpath.relay.state import SKIP_KEY, State
from towpath.schemas.position import format_lsn

Ends = Mapping[tuple[str, int], int]


class Around(NamedTuple):
    """
    What is known beside the state.

    Attributes:
        topic: The state topic.
        ends: The end offset of each partition that has a mark.
        parked: The parked aggregates.
        skips: The documents under ``skip:``.
        differing: Settings of the file that differ from the stored ones.
        slot: What the server tells; None if there is no slot, or no answer.
        source_error: Why the source did not answer; None if it did.
    """

    topic: str
    ends: Ends
    parked: Parked | None
    skips: Mapping[str, Mapping[str, Any]]
    differing: tuple[str, ...]
    slot: SlotFacts | None
    source_error: str | None


def document(state: State, around: Around, first: int) -> dict[str, Any]:
    """
    Return everything as one document.

    Args:
        state: What the state topic holds.
        around: What is known beside it.
        first: How many parked aggregates are named.
    """
    return {
        "topic": around.topic,
        "lineages": [_lineage(each) for each in parse_lineages(state.lineage)],
        "confirmed": confirmed(state),
        "marks": list(_marks(state.marks, around.ends)),
        "parked": _parked(around.parked, first),
        "skips": list(_skips(around.skips)),
        "settings_differ": list(around.differing),
        "slot": slot(around.slot),
        "source_error": around.source_error,
    }


def confirmed(state: State) -> dict[str, Any] | None:
    """Return how far Postgres was told to forget; None before the first time."""
    told = state.confirmed
    if told is None:
        return None
    return {
        "lsn": format_lsn(told.lsn),
        "log_lsn": format_lsn(told.log_lsn),
        "published_log_lsn": format_lsn(told.published_log_lsn),
        "heartbeat": told.heartbeat,
        "is_clean": told.is_clean,
        "at": told.at,
    }


def slot(facts: SlotFacts | None) -> dict[str, Any] | None:
    """Return what the server tells of the slot."""
    if facts is None:
        return None
    return {
        "active": facts.is_active,
        "holder_pid": facts.holder_pid,
        "confirmed_lsn": format_lsn(facts.confirmed_lsn),
        "retained_bytes": facts.retained_bytes,
        "wal_status": facts.wal_status,
    }


def _lineage(lineage: Lineage) -> dict[str, Any]:
    gap, start_lsn = lineage.gap, lineage.start_lsn
    return {
        "number": lineage.number,
        "system_identifier": lineage.system_identifier,
        "timeline": lineage.timeline,
        "offset": lineage.offset,
        "slot": lineage.slot,
        "start_lsn": None if start_lsn is None else format_lsn(start_lsn),
        "gap": None
        if gap is None
        else {
            "reason": gap.reason,
            "since_lsn": format_lsn(gap.since_lsn),
            "at": gap.at,
            "plan": list(gap.plan),
            "started": gap.started,
        },
    }


def _marks(marks: Mapping[str, TopicMarks], ends: Ends) -> Iterator[dict[str, Any]]:
    for topic, of_topic in sorted(marks.items()):
        for partition, mark in sorted(of_topic.items()):
            end = ends.get((topic, partition))
            yield {
                "topic": topic,
                "partition": partition,
                "next_offset": mark.next_offset,
                "end_offset": None if end in {None, -1} else end,
                "position": mark.position.decode() if mark.position else None,
            }


def _parked(parked: Parked | None, first: int) -> dict[str, Any] | None:
    if parked is None:
        return None
    found: Sequence[dict[str, Any]] = [
        {
            "aggregate_type": aggregate_type,
            "aggregate_id": aggregate_id.decode(errors="replace"),
            "since": spans.bounds[-1].decode(),
        }
        for aggregate_id, types in parked.spans.items()
        for aggregate_type, spans in types.items()
        if spans.is_open
    ]
    return {
        "count": len(parked),
        "first": sorted(found, key=lambda each: str(each["since"]))[:first],
    }


def _skips(skips: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for key, told in sorted(skips.items()):
        yield {
            "lsn": key.removeprefix(SKIP_KEY),
            "asked_at": told.get("asked_at"),
            "done": bool(told.get("done")),
        }
