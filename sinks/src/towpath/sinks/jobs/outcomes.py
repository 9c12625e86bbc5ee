"""
Where a query stands against what its topics still have: what may be found. Pure.

Each finding has a name, which the log, the file of recoveries and the runbook use.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from towpath.schemas.topics import is_backfill
from towpath.settings import Route, RouteKind
from towpath.sinks.progress import Offsets


class Outcome(enum.StrEnum):
    """What was found; the runbook has a line about each."""

    CHECKPOINT_LOST = "checkpoint_lost"
    CHECKPOINT_UNREADABLE = "checkpoint_unreadable"
    RETENTION_PASSED = "retention_passed"
    TOPIC_RECREATED = "topic_recreated"
    TOPIC_GONE = "topic_gone"
    PARTITIONS_GONE = "partitions_gone"
    PARTITIONS_ADDED = "partitions_added"
    ROUTE_GONE = "route_gone"


WORDS: Final[Mapping[Outcome, str]] = {
    Outcome.CHECKPOINT_LOST: "the query's checkpoint is gone",
    Outcome.CHECKPOINT_UNREADABLE: "the query's checkpoint cannot be read",
    Outcome.RETENTION_PASSED: "records were deleted before the sink had read them",
    Outcome.TOPIC_RECREATED: "the topic is not the one that the sink has read",
    Outcome.TOPIC_GONE: "the topic is gone",
    Outcome.PARTITIONS_GONE: "the topic has fewer partitions than it had",
    Outcome.PARTITIONS_ADDED: "the topic has more partitions than it had",
    Outcome.ROUTE_GONE: "no route reads the topic any more",
}

# What leaves nothing out: the rest of the topics is read as it was.
_HARMLESS: Final = frozenset(
    {Outcome.CHECKPOINT_LOST, Outcome.CHECKPOINT_UNREADABLE, Outcome.ROUTE_GONE}
)


class Finding(NamedTuple):
    """One thing found, about a topic or about the checkpoint as a whole."""

    outcome: Outcome
    topic: str = ""

    def ends_reading(self, stands: Offsets) -> bool:
        """Tell whether the engine cannot go on; what is new to it, it meets itself."""
        # A topic whose first records are gone already begins at none that is there.
        is_cut = self.outcome is Outcome.RETENTION_PASSED
        is_known = self.topic in stands or not self.topic or is_cut
        return is_known and self.outcome is not Outcome.PARTITIONS_ADDED

    def may_lack(self, route: Route) -> bool:
        """Tell whether a route that reads the topic may lack something of its rows."""
        if self.outcome is Outcome.PARTITIONS_ADDED:
            # Whole rows may come in any order; only a table's changes may be partial.
            return route.kind is RouteKind.TABLE and not is_backfill(self.topic)
        return self.outcome not in _HARMLESS


@dataclass(slots=True)
class Examined:
    """
    What is to be done.

    Attributes:
        positions: Where the query is to go on, if it cannot from its checkpoint.
        findings: What was found, each once.
    """

    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    findings: dict[Finding, None] = field(default_factory=dict)

    def found(self, outcome: Outcome, topic: str = "") -> None:
        """Take note of something."""
        self.findings[Finding(outcome, topic)] = None


class Retained(NamedTuple):
    """
    What the topics of a sink have: per partition the first and the next offset.

    Attributes:
        ids: The ids of the topics, as they were before the offsets were looked up.
        remade: Topics that were made anew: no offset of theirs was ever read.
    """

    first: Offsets
    ends: Offsets
    ids: Mapping[str, str]
    remade: frozenset[str]

    def has(self, topic: str, partition: str, offset: int) -> bool:
        """Tell whether reading can go on at an offset, with nothing left out."""
        first = self.first[topic].get(partition)
        if first is None or topic in self.remade:
            return False
        return first <= offset <= self.ends.get(topic, {}).get(partition, first)


def examine(
    stands: Offsets, retained: Retained, is_read: Callable[[str], bool]
) -> Examined:
    """
    Compare where a query stands with what is there.

    Args:
        stands: The next offset, per topic and partition, after all that is durable.
        retained: What the topics have that exist.
        is_read: Tells whether a route reads a topic.
    """
    examined = Examined()
    for topic, partitions in stands.items():
        if not is_read(topic):
            examined.found(Outcome.ROUTE_GONE, topic)
        elif topic in retained.first:
            _examine_topic(topic, partitions, retained, examined)
        elif is_backfill(topic):
            # Deleted once the sink had all of it.
            examined.found(Outcome.ROUTE_GONE, topic)
        else:
            examined.found(Outcome.TOPIC_GONE, topic)
    _examine_new(stands, retained, examined)
    return examined


def cut_short(planned: Offsets, retained: Retained) -> list[str]:
    """
    Name the topics that end before a batch does which is planned and not written yet.

    The engine would read that batch for ever: what it knew of is not there any more.
    """
    return [
        topic
        for topic, partitions in planned.items()
        if topic in retained.ends
        and any(
            retained.ends[topic].get(partition, offset) < offset
            for partition, offset in partitions.items()
        )
    ]


def _examine_topic(
    topic: str, partitions: Mapping[str, int], retained: Retained, examined: Examined
) -> None:
    positions = examined.positions.setdefault(topic, {})
    for partition, offset in partitions.items():
        first = retained.first[topic].get(partition)
        if first is None:
            examined.found(Outcome.PARTITIONS_GONE, topic)
        elif retained.has(topic, partition, offset):
            positions[partition] = offset
        else:
            is_cut = offset < first and topic not in retained.remade
            examined.found(
                Outcome.RETENTION_PASSED if is_cut else Outcome.TOPIC_RECREATED, topic
            )
            positions[partition] = first


def _examine_new(stands: Offsets, retained: Retained, examined: Examined) -> None:
    """What the query has not met yet begins at its first record: is that the first?"""
    for topic, partitions in retained.first.items():
        known = stands.get(topic, {})
        if not known and topic in retained.remade:
            examined.found(Outcome.TOPIC_RECREATED, topic)
            continue
        new = {p: first for p, first in partitions.items() if p not in known}
        if any(first > 0 for first in new.values()):
            examined.found(Outcome.RETENTION_PASSED, topic)
            examined.positions.setdefault(topic, {}).update(new)
