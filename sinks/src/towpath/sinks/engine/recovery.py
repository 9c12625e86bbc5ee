"""
Recovers a query that cannot continue at its offsets, before it starts.

The engine refuses to continue if unread records were deleted, even after a restart.
Each finding has a name (``RecoveryOutcome``), which the log, the recoveries file and
the runbook use. The routes affected by a gap are requested as a whole. The
checkpoint is then dropped, unless the engine can continue from it: each partition
continues at its committed offset or, if records after it were deleted, at the earliest
retained one. After a crash in between, every step is repeated. ``examine`` is pure.
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
from towpath.settings import Route, RouteKind, Sink
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
    replace_file,
    sink_folder,
    stored_progress,
)


class RecoveryOutcome(enum.StrEnum):
    """The kind of a finding; the runbook describes each."""

    CHECKPOINT_LOST = "checkpoint_lost"
    CHECKPOINT_UNREADABLE = "checkpoint_unreadable"
    RETENTION_PASSED = "retention_passed"
    TOPIC_RECREATED = "topic_recreated"
    TOPIC_GONE = "topic_gone"
    PARTITIONS_GONE = "partitions_gone"
    PARTITIONS_ADDED = "partitions_added"
    ROUTE_GONE = "route_gone"


DESCRIPTIONS: Final[Mapping[RecoveryOutcome, str]] = {
    RecoveryOutcome.CHECKPOINT_LOST: "the query's checkpoint does not exist",
    RecoveryOutcome.CHECKPOINT_UNREADABLE: "the query's checkpoint cannot be read",
    RecoveryOutcome.RETENTION_PASSED: (
        "records were deleted before the sink had read them"
    ),
    RecoveryOutcome.TOPIC_RECREATED: "the topic was recreated after the sink read it",
    RecoveryOutcome.TOPIC_GONE: "the topic no longer exists",
    RecoveryOutcome.PARTITIONS_GONE: "the topic has fewer partitions than it had",
    RecoveryOutcome.PARTITIONS_ADDED: "the topic has more partitions than it had",
    RecoveryOutcome.ROUTE_GONE: "no route reads the topic anymore",
}

# Outcomes without a gap: no route lacks rows.
_HARMLESS: Final = frozenset(
    {
        RecoveryOutcome.CHECKPOINT_LOST,
        RecoveryOutcome.CHECKPOINT_UNREADABLE,
        RecoveryOutcome.ROUTE_GONE,
    }
)


class RecoveryFinding(NamedTuple):
    """One finding, about a topic or about the whole checkpoint."""

    outcome: RecoveryOutcome
    topic: str = ""

    def requires_new_query(self, committed: Offsets) -> bool:
        """Return whether the engine cannot continue at the committed offsets."""
        # A topic without its first records cannot be read from its beginning.
        is_cut = self.outcome is RecoveryOutcome.RETENTION_PASSED
        is_known = self.topic in committed or not self.topic or is_cut
        return is_known and self.outcome is not RecoveryOutcome.PARTITIONS_ADDED

    def may_lack(self, route: Route) -> bool:
        """Return whether a route that reads the topic may lack rows."""
        if self.outcome is RecoveryOutcome.PARTITIONS_ADDED:
            # Only a table's changes may be partial; whole rows may arrive in any order.
            return route.kind is RouteKind.TABLE and not is_backfill(self.topic)
        return self.outcome not in _HARMLESS


@dataclass(slots=True)
class ExaminedOffsets:
    """
    The outcome of an examination.

    Attributes:
        positions: The offsets at which the query is to continue without its checkpoint.
        findings: The findings, each once.
    """

    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    findings: dict[RecoveryFinding, None] = field(default_factory=dict)

    def found(self, outcome: RecoveryOutcome, topic: str = "") -> None:
        """Add a finding."""
        self.findings[RecoveryFinding(outcome, topic)] = None


class Retained(NamedTuple):
    """
    The records that the topics of a sink retain: first and next offset per partition.

    Attributes:
        ids: The ids of the topics, read before the offsets.
        recreated: Recreated topics; nothing has been read from the new ones yet.
    """

    first: Offsets
    ends: Offsets
    ids: Mapping[str, str]
    recreated: frozenset[str]

    def has(self, topic: str, partition: str, offset: int) -> bool:
        """Return whether reading can continue at an offset without a gap."""
        first = self.first[topic].get(partition)
        if first is None or topic in self.recreated:
            return False
        return first <= offset <= self.ends.get(topic, {}).get(partition, first)


def examine(
    committed: Offsets, retained: Retained, is_read: Callable[[str], bool]
) -> ExaminedOffsets:
    """
    Compare the committed offsets of a query with the retained records.

    Args:
        committed: By topic and partition, the next offset after the last durable batch.
        retained: The records of the existing topics.
        is_read: Returns whether a route reads a topic.
    """
    examined = ExaminedOffsets()
    for topic, partitions in committed.items():
        if not is_read(topic):
            examined.found(RecoveryOutcome.ROUTE_GONE, topic)
        elif topic in retained.first:
            _examine_topic(topic, partitions, retained, examined)
        elif is_backfill(topic):
            # The topic was deleted once the sink had applied all of it.
            examined.found(RecoveryOutcome.ROUTE_GONE, topic)
        else:
            examined.found(RecoveryOutcome.TOPIC_GONE, topic)
    _examine_new(committed, retained, examined)
    return examined


def ending_before_planned(planned_offsets: Offsets, retained: Retained) -> list[str]:
    """
    Return the topics that end before the end of a planned batch that is not written.

    The engine would try to read that batch forever.
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
            is_cut = offset < first and topic not in retained.recreated
            examined.found(
                RecoveryOutcome.RETENTION_PASSED
                if is_cut
                else RecoveryOutcome.TOPIC_RECREATED,
                topic,
            )
            positions[partition] = first


def _examine_new(
    committed: Offsets, retained: Retained, examined: ExaminedOffsets
) -> None:
    """Check topics and partitions that are read from the start."""
    for topic, partitions in retained.first.items():
        known = committed.get(topic, {})
        if not known and topic in retained.recreated:
            examined.found(RecoveryOutcome.TOPIC_RECREATED, topic)
            continue
        new = {p: first for p, first in partitions.items() if p not in known}
        if any(first > 0 for first in new.values()):
            examined.found(RecoveryOutcome.RETENTION_PASSED, topic)
            examined.positions.setdefault(topic, {}).update(new)


RECOVERIES_FILE: Final = "recoveries.jsonl"

# How long a running query may mistake a recreated topic for the old one, or miss that
# keys have moved; the missing rows are requested after that. A check is a few small
# requests.
CHECK_EVERY_S: Final = 10.0

_log = structlog.get_logger("towpath.sinks")


class Recovery:
    """Prepares the start of one sink's query, and reports every gap."""

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
        self._next = Deadline(clock, CHECK_EVERY_S)

    def run(self) -> tuple[RecoveryFinding, ...]:
        """
        Recover from whatever prevents the query from starting; run before each start.

        Raises:
            UnavailableError: The broker does not answer; the next start repeats it all.
        """
        checkpoint = self._plan.checkpoint
        unreadable = False
        try:
            committed = committed_offsets(checkpoint)
        except CheckpointUnreadableError as error:
            name, why = self._plan.sink.name, str(error)
            _log.warning(
                "sink checkpoint cannot be read: recovering", sink=name, why=why
            )
            unreadable = True
            committed = newest_readable(checkpoint) or self._progress().applied
        if not committed and not unreadable:
            return self._begin(is_lost=committed is None)
        self._plan.resumes_file.unlink(missing_ok=True)
        return self._resume(committed or {}, unreadable=unreadable)

    def _resume(
        self, committed: Offsets, *, unreadable: bool
    ) -> tuple[RecoveryFinding, ...]:
        """Continue at the committed offsets, or at the retained records after them."""
        retained = self._retained(committed)
        examined = self._examine(committed, retained)
        short: list[str] = []
        if unreadable:
            examined.found(RecoveryOutcome.CHECKPOINT_UNREADABLE)
        else:
            short = ending_before_planned(
                planned_offsets(self._plan.checkpoint), retained
            )
        for topic in short:
            examined.found(RecoveryOutcome.TOPIC_RECREATED, topic)
        self._request_routes(examined)
        self._note(examined)
        if short or any(one.requires_new_query(committed) for one in examined.findings):
            _offsets(self._plan.resumes_file).keep(examined.positions)
            drop_checkpoint(self._plan.checkpoint)
        self._note_topics(committed, retained)
        return tuple(examined.findings)

    def _begin(self, *, is_lost: bool) -> tuple[RecoveryFinding, ...]:
        """Start without a checkpoint: there was none yet, or it was lost or dropped."""
        begins = _offsets(self._plan.begins_file)
        progress, stored = self._progress(), begins.read()
        # A checkpoint that a recovery dropped is not lost: the rows were requested.
        resumes = self._plan.resumes_file.exists()
        committed = stored if resumes else progress.applied or stored
        retained = self._retained(committed)
        examined = self._examine(committed, retained)
        if is_lost and progress.batches > 0 and not resumes:
            examined.found(RecoveryOutcome.CHECKPOINT_LOST)
        is_requested = self._request_routes(examined)
        self._note(examined)
        usable = _usable(stored, committed, retained)
        if is_requested:
            # Later starts resume at these offsets, and do not request the routes again.
            whole = {t: {**f, **usable.get(t, {})} for t, f in retained.first.items()}
            _offsets(self._plan.resumes_file).keep(whole)
        elif usable != stored:
            begins.keep(usable)
        drop_checkpoint(self._plan.checkpoint)
        self._note_topics(committed, retained)
        return tuple(examined.findings)

    def resumed(self) -> Offsets | None:
        """Return the offsets at which the query resumes; ``None`` if it continues."""
        file = self._plan.resumes_file
        return _offsets(file).read() if file.exists() else None

    def check(self) -> None:
        """
        Check from time to time that a running query still reads the same topics.

        Raises:
            TopicRemadeError: A topic was recreated; the next start requests its rows.
            PartitionsAddedError: A topic has more partitions, and keys have moved to
                them.
            UnavailableError: The broker does not answer.
        """
        if not self._next.passed():
            return
        self._next = Deadline(self._clock, CHECK_EVERY_S)
        names = self._topics()
        ids = self._cluster.topic_ids(names)
        recreated = self._ids.recreated(ids)
        if recreated:
            message = f"{min(recreated)} was deleted and recreated while being read"
            raise TopicRemadeError(message)
        self._ids.note(ids)
        ends = self._cluster.end_offsets(names)
        grown = self._counts.grown(ends)
        if grown:
            message = f"{grown[0]} got more partitions while being read"
            raise PartitionsAddedError(message)
        self._counts.note(ends)

    def _topics(self) -> list[str]:
        return self._routes.matching(self._cluster.names())

    def _examine(self, committed: Offsets, retained: Retained) -> ExaminedOffsets:
        examined = examine(committed, retained, self._is_read)
        for topic in self._counts.grown(retained.ends):
            if topic not in retained.recreated:
                examined.found(RecoveryOutcome.PARTITIONS_ADDED, topic)
        return examined

    def _progress(self) -> Progress:
        name = self._plan.sink.name
        return stored_progress(progress_path(self._plan.state_folder, name), name)

    def _retained(self, committed: Offsets) -> Retained:
        """Return the retained records; topic ids are read before the offsets."""
        names = {*committed, *self._topics()}
        ids = self._cluster.topic_ids(names)
        first = self._cluster.first_offsets(names)
        ends = self._cluster.end_offsets(names)
        return Retained(first, ends, ids, self._ids.recreated(ids))

    def _note_topics(self, committed: Offsets, retained: Retained) -> None:
        """
        Store the topics' ids and partition counts, after lost rows were requested.

        Only topics that were reported as gone, or that no route reads, are forgotten.
        Another topic without an id may be about to be recreated.
        """
        gone = {t for t in committed if t not in retained.first or not self._is_read(t)}
        self._ids.note(retained.ids, gone)
        self._counts.note(retained.ends, retained.recreated | gone)

    def _is_read(self, topic: str) -> bool:
        return bool(self._routes.reading(topic))

    def _request_routes(self, examined: ExaminedOffsets) -> bool:
        """Request the routes affected by each gap; return whether there were gaps."""
        gaps, name = dict(self._by_route(examined.findings)), self._plan.sink.name
        for route, findings in gaps.items():
            why = f"{DESCRIPTIONS[findings[0].outcome]}: {findings[0].topic}"
            if self._repairs.request_all(route, why):
                _log.warning(
                    "sink route requested as a whole", sink=name, route=route, why=why
                )
            else:
                _log.error(
                    "sink route may lack records: they cannot be requested",
                    sink=name,
                    route=route,
                    why=why,
                    remedy=filling_remedy(self._plan.sink, route),
                )
        return bool(gaps)

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
        """Log the findings, and append them to the recoveries file."""
        if not examined.findings:
            return
        entries = [{"outcome": f.outcome, "topic": f.topic} for f in examined.findings]
        append_recovery(self._folder, self._clock, entries)
        for finding in examined.findings:
            _log.warning(
                "sink query recovers before it starts",
                sink=self._plan.sink.name,
                outcome=finding.outcome,
                why=DESCRIPTIONS[finding.outcome],
                topic=finding.topic or None,
            )


def filling_remedy(sink: Sink, name: str) -> str:
    """Return how an operator fills a route that the sink cannot fill itself."""
    (route,) = (r for r in sink.route if r.name == name)
    if route.kind is RouteKind.EVENT_LOG:
        return "No action is possible: earlier events cannot be read again."
    return f"Fill it: towpath sink refill {sink.name} --route {name}"


def append_recovery(
    folder: Path, clock: Clock, entries: Iterable[Mapping[str, str]]
) -> None:
    """Append entries to the sink's recoveries file, with the time."""
    at = clock.now().isoformat()
    lines = [orjson.dumps({"at": at, **one}) + b"\n" for one in entries]
    path = folder / RECOVERIES_FILE
    before = path.read_bytes() if path.exists() else b""
    replace_file(path, before + b"".join(lines))


def _usable(
    stored: Offsets, committed: Offsets, retained: Retained
) -> dict[str, dict[str, int]]:
    """
    Return the stored offsets at which reading may begin without skipping a record.

    Offsets stored when the sink was declared may be above the applied ones, if the
    topic has been recreated since then.
    """
    return {
        topic: {
            p: offset
            for p, offset in partitions.items()
            if retained.has(topic, p, offset)
            and offset <= committed.get(topic, {}).get(p, -1)
        }
        for topic, partitions in stored.items()
        if topic in retained.first
    }


def _offsets(path: Path) -> JsonFile[Mapping[str, int]]:
    """Return the file that holds the offsets at which a query begins."""
    return JsonFile(path)
