"""
Where a query stands against what its topics still have, before it starts.

The engine refuses to go on where records that it has not read are gone, and again at
each restart. What is wrong is named here; then the old position is dropped, the query
goes on at the earliest record that is left, and the rows behind the gap are asked for
as they are. Asking comes first: after a crash in between all of it happens again.
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import orjson
import structlog

from towpath.schemas.clock import Clock
from towpath.schemas.topics import is_backfill
from towpath.sinks.errors import TopicRemadeError
from towpath.sinks.jobs.checkpoint import (
    CheckpointUnreadableError,
    drop_checkpoint,
    newest_readable,
    standing,
)
from towpath.sinks.jobs.query import QueryPlan
from towpath.sinks.jobs.topic_ids import TopicIds
from towpath.sinks.ports import Cluster, Repairs
from towpath.sinks.progress import (
    Offsets,
    Progress,
    progress_path,
    read_progress,
    replace_file,
    sink_folder,
)
from towpath.sinks.routes import Routes

RECOVERIES_FILE: Final = "recoveries.jsonl"

# Where a query goes on whose checkpoint was dropped here, until a batch is committed:
# that is no loss, and what was asked for then need not be asked for again.
RESUMES_FILE: Final = "resumes.json"

_log = structlog.get_logger("towpath.sinks.jobs")


class Outcome(enum.StrEnum):
    """What was found; the runbook has a line about each."""

    CHECKPOINT_LOST = "checkpoint_lost"
    CHECKPOINT_UNREADABLE = "checkpoint_unreadable"
    RETENTION_PASSED = "retention_passed"
    TOPIC_RECREATED = "topic_recreated"
    TOPIC_GONE = "topic_gone"
    PARTITIONS_GONE = "partitions_gone"
    ROUTE_GONE = "route_gone"


_WORDS: Final[Mapping[Outcome, str]] = {
    Outcome.CHECKPOINT_LOST: "the query's checkpoint is gone",
    Outcome.CHECKPOINT_UNREADABLE: "the query's checkpoint cannot be read",
    Outcome.RETENTION_PASSED: "records were deleted before the sink had read them",
    Outcome.TOPIC_RECREATED: "the topic is not the one that the sink has read",
    Outcome.TOPIC_GONE: "the topic is gone",
    Outcome.PARTITIONS_GONE: "the topic has fewer partitions than it had",
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
        remade: Topics that were made anew: no offset of theirs was ever read.
    """

    first: Offsets
    ends: Offsets
    remade: frozenset[str] = frozenset()

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
        elif any(first > 0 for p, first in partitions.items() if p not in known):
            examined.found(Outcome.RETENTION_PASSED, topic)


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
        self._resumes = self._folder / RESUMES_FILE
        self._ids = TopicIds(self._folder, cluster, clock)

    def run(self) -> tuple[Finding, ...]:
        """
        Name what is wrong and cure it; call it before each start of the query.

        Raises:
            UnavailableError: The broker does not answer; nothing was changed.
        """
        checkpoint = self._plan.checkpoint
        unreadable = False
        try:
            stands = standing(checkpoint)
        except CheckpointUnreadableError as error:
            _log.warning("a checkpoint cannot be read", why=str(error))
            unreadable = True
            stands = newest_readable(checkpoint) or self._progress().applied
        if not stands and not unreadable:
            return self._begin(is_lost=stands is None)
        self._resumes.unlink(missing_ok=True)
        return self._go_on(stands or {}, unreadable=unreadable)

    def _go_on(self, stands: Offsets, *, unreadable: bool) -> tuple[Finding, ...]:
        """Go on where the query stands, or as near to it as there is something left."""
        retained, ids = self._retained(stands)
        examined = examine(stands, retained, self._is_read)
        if unreadable:
            examined.found(Outcome.CHECKPOINT_UNREADABLE)
        self._ask(examined)
        self._note(examined)
        # A topic that is new to the query is met by the engine itself.
        if any(f.topic in stands or not f.topic for f in examined.findings):
            positions = orjson.dumps(examined.positions)
            replace_file(self._plan.starting_offsets_file, positions)
            replace_file(self._resumes, positions)
            drop_checkpoint(self._plan.checkpoint)
        self._ids.note(ids)
        return tuple(examined.findings)

    def _begin(self, *, is_lost: bool) -> tuple[Finding, ...]:
        """Start without a checkpoint: for the first time, or because it is gone."""
        progress, stored = self._progress(), _read(self._plan.starting_offsets_file)
        resumes = _read(self._resumes)
        stands = resumes or progress.applied or stored
        retained, ids = self._retained(stands)
        examined = examine(stands, retained, self._is_read)
        if is_lost and progress.batches > 0 and not resumes:
            examined.found(Outcome.CHECKPOINT_LOST)
        self._ask(examined)
        self._note(examined)
        usable = {
            topic: {p: o for p, o in partitions.items() if retained.has(topic, p, o)}
            for topic, partitions in stored.items()
            if topic in retained.first
        }
        if usable != stored:
            replace_file(self._plan.starting_offsets_file, orjson.dumps(usable))
        drop_checkpoint(self._plan.checkpoint)
        self._ids.note(ids)
        return tuple(examined.findings)

    def look(self) -> None:
        """
        See, now and then, that a running query reads the topics that it began with.

        Raises:
            TopicRemadeError: One was made anew; the next start asks for what it lacks.
            UnavailableError: The broker does not answer.
        """
        remade = self._ids.look(lambda: self._routes.matching(self._cluster.names()))
        if remade:
            message = f"{min(remade)} was deleted and made anew while it was read"
            raise TopicRemadeError(message)

    def _progress(self) -> Progress:
        name = self._plan.sink.name
        return read_progress(progress_path(self._plan.state_folder, name), name)

    def _retained(self, stands: Offsets) -> tuple[Retained, dict[str, str]]:
        """Return what the topics have, and their ids of before that was looked up."""
        names = {*stands, *self._routes.matching(self._cluster.names())}
        ids = self._ids.now(names)
        first = self._cluster.first_offsets(names)
        ends = self._cluster.end_offsets(names)
        return Retained(first, ends, self._ids.others(ids)), ids

    def _is_read(self, topic: str) -> bool:
        return bool(self._routes.reading(topic))

    def _ask(self, examined: Examined) -> None:
        """Have the rows behind each gap read anew, route by route."""
        for route, findings in self._by_route(examined.findings):
            why = f"{_WORDS[findings[0].outcome]}: {findings[0].topic}"
            if self._repairs.ask_all(route, why):
                _log.warning("a route's rows were asked for", route=route, why=why)
            else:
                _log.error(
                    "records are lost to a route and cannot be asked for",
                    route=route,
                    why=why,
                )

    def _by_route(
        self, findings: Iterable[Finding]
    ) -> Iterator[tuple[str, list[Finding]]]:
        routes: dict[str, list[Finding]] = {}
        for finding in findings:
            if finding.outcome in _HARMLESS:
                continue
            for reading in self._routes.reading(finding.topic):
                routes.setdefault(reading.route.name, []).append(finding)
        yield from routes.items()

    def _note(self, examined: Examined) -> None:
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
                why=_WORDS[finding.outcome],
                topic=finding.topic or None,
            )


def keep(folder: Path, clock: Clock, told: Iterable[Mapping[str, str]]) -> None:
    """Add what was found to the sink's file of recoveries, with the time."""
    at = clock.now().isoformat()
    lines = [orjson.dumps({"at": at, **one}) + b"\n" for one in told]
    path = folder / RECOVERIES_FILE
    before = path.read_bytes() if path.exists() else b""
    replace_file(path, before + b"".join(lines))


def _read(path: Path) -> Offsets:
    try:
        offsets: Offsets = orjson.loads(path.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return {}
    return offsets
