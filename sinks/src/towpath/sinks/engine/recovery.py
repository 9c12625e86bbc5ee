"""
Cures what a query cannot go on for, before it starts.

The engine refuses to go on where records that it has not read are gone, and again at
each restart. What is wrong has a name (``outcomes``); the old position is dropped, the
query goes on at the earliest record that is left, and the rows behind the gap are asked
for as they are. Asking comes first: after a crash in between all of it happens again.

Where a query stands against what its topics still have: what may be found. Pure.

Each finding has a name, which the log, the file of recoveries and the runbook use.
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import orjson
import structlog

from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.topics import is_backfill
from towpath.settings import Route, RouteKind
from towpath.sinks.changes.routing import Routes
from towpath.sinks.engine.checkpoint import (
    CheckpointUnreadableError,
    PartitionCounts,
    committed_offsets,
    drop_checkpoint,
    newest_readable,
    planned_offsets,
)
from towpath.sinks.engine.query import QueryPlan
from towpath.sinks.errors import PartitionsAddedError, TopicRemadeError
from towpath.sinks.ports import Cluster, Repairs
from towpath.sinks.state.files import JsonFile, TopicIds
from towpath.sinks.state.progress import (
    Offsets,
    Progress,
    progress_path,
    read_progress,
    replace_file,
    sink_folder,
)


class RecoveryOutcome(enum.StrEnum):
    """What was found; the runbook has a line about each."""

    CHECKPOINT_LOST = "checkpoint_lost"
    CHECKPOINT_UNREADABLE = "checkpoint_unreadable"
    RETENTION_PASSED = "retention_passed"
    TOPIC_RECREATED = "topic_recreated"
    TOPIC_GONE = "topic_gone"
    PARTITIONS_GONE = "partitions_gone"
    PARTITIONS_ADDED = "partitions_added"
    ROUTE_GONE = "route_gone"


WORDS: Final[Mapping[RecoveryOutcome, str]] = {
    RecoveryOutcome.CHECKPOINT_LOST: "the query's checkpoint is gone",
    RecoveryOutcome.CHECKPOINT_UNREADABLE: "the query's checkpoint cannot be read",
    RecoveryOutcome.RETENTION_PASSED: (
        "records were deleted before the sink had read them"
    ),
    RecoveryOutcome.TOPIC_RECREATED: "the topic is not the one that the sink has read",
    RecoveryOutcome.TOPIC_GONE: "the topic is gone",
    RecoveryOutcome.PARTITIONS_GONE: "the topic has fewer partitions than it had",
    RecoveryOutcome.PARTITIONS_ADDED: "the topic has more partitions than it had",
    RecoveryOutcome.ROUTE_GONE: "no route reads the topic any more",
}

# What leaves nothing out: the rest of the topics is read as it was.
_HARMLESS: Final = frozenset(
    {
        RecoveryOutcome.CHECKPOINT_LOST,
        RecoveryOutcome.CHECKPOINT_UNREADABLE,
        RecoveryOutcome.ROUTE_GONE,
    }
)


class RecoveryFinding(NamedTuple):
    """One thing found, about a topic or about the checkpoint as a whole."""

    outcome: RecoveryOutcome
    topic: str = ""

    def ends_reading(self, stands: Offsets) -> bool:
        """Tell whether the engine cannot go on; what is new to it, it meets itself."""
        # A topic whose first records are gone already begins at none that is there.
        is_cut = self.outcome is RecoveryOutcome.RETENTION_PASSED
        is_known = self.topic in stands or not self.topic or is_cut
        return is_known and self.outcome is not RecoveryOutcome.PARTITIONS_ADDED

    def may_lack(self, route: Route) -> bool:
        """Tell whether a route that reads the topic may lack something of its rows."""
        if self.outcome is RecoveryOutcome.PARTITIONS_ADDED:
            # Whole rows may come in any order; only a table's changes may be partial.
            return route.kind is RouteKind.TABLE and not is_backfill(self.topic)
        return self.outcome not in _HARMLESS


@dataclass(slots=True)
class ExaminedOffsets:
    """
    What is to be done.

    Attributes:
        positions: Where the query is to go on, if it cannot from its checkpoint.
        findings: What was found, each once.
    """

    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    findings: dict[RecoveryFinding, None] = field(default_factory=dict)

    def found(self, outcome: RecoveryOutcome, topic: str = "") -> None:
        """Take note of something."""
        self.findings[RecoveryFinding(outcome, topic)] = None


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
) -> ExaminedOffsets:
    """
    Compare where a query stands with what is there.

    Args:
        stands: The next offset, per topic and partition, after all that is durable.
        retained: What the topics have that exist.
        is_read: Tells whether a route reads a topic.
    """
    examined = ExaminedOffsets()
    for topic, partitions in stands.items():
        if not is_read(topic):
            examined.found(RecoveryOutcome.ROUTE_GONE, topic)
        elif topic in retained.first:
            _examine_topic(topic, partitions, retained, examined)
        elif is_backfill(topic):
            # Deleted once the sink had all of it.
            examined.found(RecoveryOutcome.ROUTE_GONE, topic)
        else:
            examined.found(RecoveryOutcome.TOPIC_GONE, topic)
    _examine_new(stands, retained, examined)
    return examined


def cut_short(planned_offsets: Offsets, retained: Retained) -> list[str]:
    """
    Name the topics that end before a batch does which is planned and not written yet.

    The engine would read that batch for ever: what it knew of is not there any more.
    """
    return [
        topic
        for topic, partitions in planned_offsets.items()
        if topic in retained.ends
        and any(
            retained.ends[topic].get(partition, offset) < offset
            for partition, offset in partitions.items()
        )
    ]


def _examine_topic(
    topic: str,
    partitions: Mapping[str, int],
    retained: Retained,
    examined: ExaminedOffsets,
) -> None:
    positions = examined.positions.setdefault(topic, {})
    for partition, offset in partitions.items():
        first = retained.first[topic].get(partition)
        if first is None:
            examined.found(RecoveryOutcome.PARTITIONS_GONE, topic)
        elif retained.has(topic, partition, offset):
            positions[partition] = offset
        else:
            is_cut = offset < first and topic not in retained.remade
            examined.found(
                RecoveryOutcome.RETENTION_PASSED
                if is_cut
                else RecoveryOutcome.TOPIC_RECREATED,
                topic,
            )
            positions[partition] = first


def _examine_new(
    stands: Offsets, retained: Retained, examined: ExaminedOffsets
) -> None:
    """What the query has not met yet begins at its first record: is that the first?"""
    for topic, partitions in retained.first.items():
        known = stands.get(topic, {})
        if not known and topic in retained.remade:
            examined.found(RecoveryOutcome.TOPIC_RECREATED, topic)
            continue
        new = {p: first for p, first in partitions.items() if p not in known}
        if any(first > 0 for first in new.values()):
            examined.found(RecoveryOutcome.RETENTION_PASSED, topic)
            examined.positions.setdefault(topic, {}).update(new)


RECOVERIES_FILE: Final = "recoveries.jsonl"

# How long a running query may read a topic made anew as if it were the old one, or one
# that has grown; what is lacking is asked for then. A look is a few small requests.
LOOK_EVERY_S: Final = 10.0

_log = structlog.get_logger("towpath.sinks")


class Recovery:
    """Sees to it that one sink's query can start, and leaves nothing out silently."""

    def __init__(
        self, plan: QueryPlan, cluster: Cluster, repairs: Repairs, clock: Clock
    ) -> None:
        self._plan = plan
        self._cluster = cluster
        self._repairs = repairs
        self._clock = clock
        self._routes = Routes(plan.sink)
        self._folder = sink_folder(plan.state_folder, plan.sink.name)
        self._ids = TopicIds(self._folder)
        self._counts = PartitionCounts(self._folder)
        self._next = Deadline(clock, LOOK_EVERY_S)

    def run(self) -> tuple[RecoveryFinding, ...]:
        """
        Name what is wrong and cure it; call it before each start of the query.

        Raises:
            UnavailableError: The broker does not answer; nothing was changed.
        """
        checkpoint = self._plan.checkpoint
        unreadable = False
        try:
            stands = committed_offsets(checkpoint)
        except CheckpointUnreadableError as error:
            _log.warning("a checkpoint cannot be read", why=str(error))
            unreadable = True
            stands = newest_readable(checkpoint) or self._progress().applied
        if not stands and not unreadable:
            return self._begin(is_lost=stands is None)
        self._plan.resumes_file.unlink(missing_ok=True)
        return self._go_on(stands or {}, unreadable=unreadable)

    def _go_on(
        self, stands: Offsets, *, unreadable: bool
    ) -> tuple[RecoveryFinding, ...]:
        """Go on where the query stands, or as near to it as there is something left."""
        retained = self._retained(stands)
        examined = self._examine(stands, retained)
        short: list[str] = []
        if unreadable:
            examined.found(RecoveryOutcome.CHECKPOINT_UNREADABLE)
        else:
            short = cut_short(planned_offsets(self._plan.checkpoint), retained)
        for topic in short:
            examined.found(RecoveryOutcome.TOPIC_RECREATED, topic)
        self._ask(examined)
        self._note(examined)
        if short or any(one.ends_reading(stands) for one in examined.findings):
            _offsets(self._plan.resumes_file).keep(examined.positions)
            drop_checkpoint(self._plan.checkpoint)
        self._note_topics(stands, retained)
        return tuple(examined.findings)

    def _begin(self, *, is_lost: bool) -> tuple[RecoveryFinding, ...]:
        """Start without a checkpoint: for the first time, or because it is gone."""
        begins = _offsets(self._plan.begins_file)
        progress, stored = self._progress(), begins.read()
        # Dropped by a recovery, it is no loss, and what was asked for then need not
        # be asked for again.
        resumes = self._plan.resumes_file.exists()
        stands = stored if resumes else progress.applied or stored
        retained = self._retained(stands)
        examined = self._examine(stands, retained)
        if is_lost and progress.batches > 0 and not resumes:
            examined.found(RecoveryOutcome.CHECKPOINT_LOST)
        is_asked = self._ask(examined)
        self._note(examined)
        usable = _usable(stored, stands, retained)
        if is_asked:
            # From now on the query goes on there: to ask once is enough.
            whole = {t: {**f, **usable.get(t, {})} for t, f in retained.first.items()}
            _offsets(self._plan.resumes_file).keep(whole)
        elif usable != stored:
            begins.keep(usable)
        drop_checkpoint(self._plan.checkpoint)
        self._note_topics(stands, retained)
        return tuple(examined.findings)

    def look(self) -> None:
        """
        See, now and then, that a running query reads the topics that it began with.

        Raises:
            TopicRemadeError: One was made anew; the next start asks for what it lacks.
            PartitionsAddedError: Keys have moved to partitions that one did not have.
            UnavailableError: The broker does not answer.
        """
        if not self._next.passed():
            return
        self._next = Deadline(self._clock, LOOK_EVERY_S)
        names = self._topics()
        ids = self._cluster.topic_ids(names)
        remade = self._ids.others(ids)
        if remade:
            message = f"{min(remade)} was deleted and made anew while it was read"
            raise TopicRemadeError(message)
        self._ids.note(ids)
        ends = self._cluster.end_offsets(names)
        grown = self._counts.grown(ends)
        if grown:
            message = f"{grown[0]} got more partitions while it was read"
            raise PartitionsAddedError(message)
        self._counts.note(ends)

    def _topics(self) -> list[str]:
        return self._routes.matching(self._cluster.names())

    def _examine(self, stands: Offsets, retained: Retained) -> ExaminedOffsets:
        examined = examine(stands, retained, self._is_read)
        for topic in self._counts.grown(retained.ends):
            if topic not in retained.remade:
                examined.found(RecoveryOutcome.PARTITIONS_ADDED, topic)
        return examined

    def _progress(self) -> Progress:
        name = self._plan.sink.name
        return read_progress(progress_path(self._plan.state_folder, name), name)

    def _retained(self, stands: Offsets) -> Retained:
        """Return what the topics have; their ids are those of before it was told."""
        names = {*stands, *self._topics()}
        ids = self._cluster.topic_ids(names)
        first = self._cluster.first_offsets(names)
        ends = self._cluster.end_offsets(names)
        return Retained(first, ends, ids, self._ids.others(ids))

    def _note_topics(self, stands: Offsets, retained: Retained) -> None:
        """
        Know the topics as they are from now on: what they lack was asked for.

        Forgotten is only what was told to be gone. Another topic without an id may be
        about to be made anew: it had none yet, or nothing of it was read.
        """
        gone = {t for t in stands if t not in retained.first or not self._is_read(t)}
        self._ids.note(retained.ids, gone)
        self._counts.note(retained.ends, retained.remade | gone)

    def _is_read(self, topic: str) -> bool:
        return bool(self._routes.reading(topic))

    def _ask(self, examined: ExaminedOffsets) -> bool:
        """Have the rows behind each gap read anew, route by route, if there is any."""
        lacking = dict(self._by_route(examined.findings))
        for route, findings in lacking.items():
            why = f"{WORDS[findings[0].outcome]}: {findings[0].topic}"
            if self._repairs.request_all(route, why):
                _log.warning("a route's rows were asked for", route=route, why=why)
            else:
                _log.error(
                    "a route may lack records that cannot be asked for",
                    route=route,
                    why=why,
                )
        return bool(lacking)

    def _by_route(
        self, findings: Iterable[RecoveryFinding]
    ) -> Iterator[tuple[str, list[RecoveryFinding]]]:
        routes: dict[str, list[RecoveryFinding]] = {}
        for finding in findings:
            for route, _ in self._routes.reading(finding.topic):
                if finding.may_lack(route):
                    routes.setdefault(route.name, []).append(finding)
        yield from routes.items()

    def _note(self, examined: ExaminedOffsets) -> None:
        """Log what was found, and keep it where it can be looked up."""
        if not examined.findings:
            return
        told = [{"outcome": f.outcome, "topic": f.topic} for f in examined.findings]
        keep(self._folder, self._clock, told)
        for finding in examined.findings:
            _log.warning(
                "the query cannot go on where it stood",
                sink=self._plan.sink.name,
                outcome=finding.outcome,
                why=WORDS[finding.outcome],
                topic=finding.topic or None,
            )


def keep(folder: Path, clock: Clock, told: Iterable[Mapping[str, str]]) -> None:
    """Add what was found to the sink's file of recoveries, with the time."""
    at = clock.now().isoformat()
    lines = [orjson.dumps({"at": at, **one}) + b"\n" for one in told]
    path = folder / RECOVERIES_FILE
    before = path.read_bytes() if path.exists() else b""
    replace_file(path, before + b"".join(lines))


def _usable(
    stored: Offsets, stands: Offsets, retained: Retained
) -> dict[str, dict[str, int]]:
    """
    Return where reading may begin, of what was stored: below it, nothing is unread.

    What was stored when the sink was declared may lie behind what is applied by now, if
    the topic was made anew since.
    """
    return {
        topic: {
            p: offset
            for p, offset in partitions.items()
            if retained.has(topic, p, offset)
            and offset <= stands.get(topic, {}).get(p, -1)
        }
        for topic, partitions in stored.items()
        if topic in retained.first
    }


def _offsets(path: Path) -> JsonFile[Mapping[str, int]]:
    """Return the file that says where a query begins, per topic and partition."""
    return JsonFile(path)
