"""
What a sink's block says, held against what it said when the sink last wrote.

A query goes on at its offsets. What stands below them it never reads again, so rows
that a new or a changed route would make of it are nobody's to write: the route is asked
for as a whole, with a sweep of what the old one left there. Asking comes before the
block counts as taken: after a crash in between all of it happens again.
"""

import enum
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import orjson
import structlog

from towpath.schemas.clock import Clock
from towpath.settings import RouteKind, Sink
from towpath.sinks.engine.query import QueryPlan
from towpath.sinks.engine.recovery import keep
from towpath.sinks.kinds import kind_of
from towpath.sinks.ports import Repairs
from towpath.sinks.state import incomplete
from towpath.sinks.state.progress import replace_file, sink_folder

BLOCK_FILE: Final = "block.json"

_log = structlog.get_logger("towpath.sinks")


class BlockChangeOutcome(enum.StrEnum):
    """What has changed; the runbook has a line about each."""

    ROUTE_ADDED = "route_added"
    ROUTE_CHANGED = "route_changed"
    ROUTE_REMOVED = "route_removed"
    TARGET_CHANGED = "target_changed"


_WORDS: Final[Mapping[BlockChangeOutcome, str]] = {
    BlockChangeOutcome.ROUTE_ADDED: "the route is new",
    BlockChangeOutcome.ROUTE_CHANGED: "the settings of the route have changed",
    BlockChangeOutcome.ROUTE_REMOVED: "the route was removed: its rows stay there",
    BlockChangeOutcome.TARGET_CHANGED: "the sink has another target",
}


class BlockDigest(NamedTuple):
    """
    What decides which rows a sink has, and how.

    Attributes:
        target: A digest of where it writes; empty if nobody could read it back.
        routes: What each route says beside its name, as JSON.
    """

    target: str
    routes: Mapping[str, Any]


class BlockChange(NamedTuple):
    """One thing that has changed, about one route."""

    outcome: BlockChangeOutcome
    route: str


def block_digest(sink: Sink) -> BlockDigest:
    """Return what a sink's block says; a password is no part of it."""
    address = urlsplit(sink.url)
    host = address.netloc.rpartition("@")[2]
    where = (sink.kind, host, address.path, sink.folder, sink.warehouse.location)
    digest = sha256("\n".join(map(str, where)).encode()).hexdigest()
    routes = {
        route.name: route.model_dump(
            mode="json", exclude_defaults=True, exclude={"name"}
        )
        for route in sink.route
    }
    return BlockDigest(digest if kind_of(sink).read is not None else "", routes)


def changes(before: BlockDigest, now: BlockDigest) -> Iterator[BlockChange]:
    """List what has changed, each route once."""
    moved = before.target != now.target
    for name, told in now.routes.items():
        if name not in before.routes:
            yield BlockChange(BlockChangeOutcome.ROUTE_ADDED, name)
        elif moved:
            yield BlockChange(BlockChangeOutcome.TARGET_CHANGED, name)
        elif before.routes[name] != told:
            yield BlockChange(BlockChangeOutcome.ROUTE_CHANGED, name)
    for name in before.routes:
        if name not in now.routes:
            yield BlockChange(BlockChangeOutcome.ROUTE_REMOVED, name)


class BlockChanges:
    """Has one sink go on with a block that has changed since it last ran."""

    def __init__(self, plan: QueryPlan, repairs: Repairs, clock: Clock) -> None:
        self._sink = plan.sink
        self._state_folder = plan.state_folder
        self._folder = sink_folder(plan.state_folder, plan.sink.name)
        self._repairs = repairs
        self._clock = clock

    def run(self) -> tuple[BlockChange, ...]:
        """
        Name what has changed, and have it filled; call it before the query starts.

        Raises:
            UnavailableError: The broker does not answer; nothing counts as taken.
        """
        now, path = block_digest(self._sink), self._folder / BLOCK_FILE
        # Without a word of before, the sink is new: whoever adds it fills it.
        before = (
            BlockDigest(**orjson.loads(path.read_bytes())) if path.exists() else now
        )
        found = tuple(changes(before, now))
        for change in found:
            self._take(change)
        self._note(found)
        if before != now or not path.exists():
            replace_file(path, orjson.dumps(now._asdict()))
        return found

    def _take(self, change: BlockChange) -> None:
        name, why = self._sink.name, _WORDS[change.outcome]
        _log.warning(
            "the sink's block has changed",
            sink=name,
            route=change.route,
            outcome=change.outcome,
            why=why,
        )
        if change.outcome is BlockChangeOutcome.ROUTE_REMOVED:
            incomplete.forget(self._state_folder, name, change.route)
        elif not self._repairs.request_all(change.route, why):
            _log.error(
                "a route goes on from where the sink stands",
                sink=name,
                route=change.route,
                remedy=self._remedy(change.route),
            )

    def _remedy(self, name: str) -> str:
        (route,) = (r for r in self._sink.route if r.name == name)
        if route.kind is RouteKind.EVENT_LOG:
            return "Nothing: events of before cannot be read again."
        return f"Fill it: towpath sink refill {self._sink.name} --route {name}"

    def _note(self, found: tuple[BlockChange, ...]) -> None:
        """Keep what has changed where it can be looked up."""
        if found:
            told = [{"outcome": c.outcome, "route": c.route} for c in found]
            keep(self._folder, self._clock, told)
