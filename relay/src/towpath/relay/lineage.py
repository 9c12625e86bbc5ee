"""
Lineages: the unbroken histories of the source's log that were followed.

A lineage lives in Kafka, in the state topic, because the database may be the thing
that was restored. Its offset lies above everything published before, so that positions
never go back. It is *pending* until its slot is known to serve it: a crash between the
two begins nothing anew. ``continuity`` decides which one a history belongs to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from towpath.relay.errors import StateLostError

_LOST: Final = "lost"
_NONE: Final[Mapping[str, Any]] = MappingProxyType({"lineages": ()})


@dataclass(frozen=True, slots=True)
class Gap:
    """
    What may be missing where a lineage begins.

    Attributes:
        reason: What happened to the source, in one sentence.
        since_lsn: What the lineage before had confirmed, in its own LSNs.
        at: When it was noticed, in RFC 3339.
        plan: The tables whose snapshots close the gap.
        started: Whether these snapshots were asked for.
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
        number: 1 is the first.
        system_identifier: The database cluster's own.
        timeline: The timeline on which it was last followed.
        offset: What is added to each LSN.
        slot: The slot that follows it.
        gap: Why it is not the first; None for the first.
        start_lsn: Where the slot stood when it took the lineage up; None while pending.
    """

    number: int
    system_identifier: str
    timeline: int
    offset: int
    slot: str
    gap: Gap | None = None
    start_lsn: int | None = None


class Remembered(NamedTuple):
    """
    What Kafka tells of the past.

    Attributes:
        lineages: Every lineage, the newest last; empty at first start.
        confirmed_lsn: The highest LSN that was to be confirmed; None if none was.
        confirmed_log_lsn: The same with its lineage's offset.
        published_log_lsn: The highest position in any mark or topic, READ rows too.
        heartbeat: The highest counter that was streamed.
        has_records: Whether some topic of ours holds records.
    """

    lineages: tuple[Lineage, ...] = ()
    confirmed_lsn: int | None = None
    confirmed_log_lsn: int | None = None
    published_log_lsn: int = 0
    heartbeat: int = 0
    has_records: bool = False


class Fork(NamedTuple):
    """Where a timeline was left for the next one."""

    timeline: int
    lsn: int


class FoundSlot(NamedTuple):
    """
    What the server tells of the slot.

    ``is_ours`` is False for a slot of another database, kind or plugin, which
    ``kind`` describes. ``has_streamed`` tells that it was read before.
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
        """Whether the log that it needs is gone."""
        return self.wal_status == _LOST or self.invalidation_reason is not None


class Found(NamedTuple):
    """
    What the source tells of itself.

    Attributes:
        system_identifier: The database cluster's own.
        timeline: The one that it writes.
        forks: How its timeline came to be, the oldest fork first.
        current_lsn: The end of its log.
        slot: The slot; None if there is none.
        heartbeat: The counter in its heartbeat table; 0 without.
        slot_name: What the slot is called.
    """

    system_identifier: str
    timeline: int
    forks: tuple[Fork, ...]
    current_lsn: int
    slot: FoundSlot | None
    heartbeat: int
    slot_name: str


@dataclass(frozen=True, slots=True)
class Decision:
    """
    What to follow, and what has to be done before.

    Attributes:
        lineages: Every lineage, the one to follow last.
        gap: What is to be announced; None if the lineage is known already.
        is_new: Whether the lineage begins now.
        needs_slot: Whether a slot has to be made, in place of a useless one.
        is_changed: Whether ``lineages`` differs from what is stored.
        confirmed_lsn: Where the slot stands, in the lineage's own LSNs.
        heartbeat: The highest counter that was streamed in this lineage.
    """

    lineages: tuple[Lineage, ...]
    gap: Gap | None
    is_new: bool
    needs_slot: bool
    is_changed: bool
    confirmed_lsn: int
    heartbeat: int

    @property
    def lineage(self) -> Lineage:
        """The lineage to follow."""
        return self.lineages[-1]


def document(lineages: Sequence[Lineage]) -> dict[str, Any]:
    """Return what the state topic keeps under ``lineage``."""
    return {"lineages": [asdict(lineage) for lineage in lineages]}


def parse_lineages(stored: Mapping[str, Any] | None) -> tuple[Lineage, ...]:
    """
    Read what the state topic keeps under ``lineage``; nothing without it.

    Raises:
        StateLostError: It is something else.
    """
    try:
        chosen = _NONE if stored is None else stored
        return tuple(_lineage(each) for each in chosen["lineages"])
    except (TypeError, KeyError, AttributeError) as error:
        reason = "the state topic holds lineages that cannot be read"
        raise StateLostError(reason) from error


def _lineage(stored: Mapping[str, Any]) -> Lineage:
    gap = stored["gap"]
    made = None if gap is None else Gap(**{**gap, "plan": tuple(gap["plan"])})
    return Lineage(**{**stored, "gap": made})
