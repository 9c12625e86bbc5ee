"""
Compares a sink's block with the block that the sink last ran with.

A query continues at its offsets and never reads records below them again. A new or
changed route lacks the rows that come from those records, so all of its rows are
requested, with a sweep of the old ones. The request is sent before the new block is
stored: after a crash in between, both are repeated.
"""

import enum
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import orjson
import structlog

from towpath.schemas.clock import Clock
from towpath.settings import Sink, SinkKind
from towpath.sinks.engine.query import QueryPlan
from towpath.sinks.engine.recovery import append_recovery, filling_remedy
from towpath.sinks.kinds import kind_of
from towpath.sinks.ports import Repairs
from towpath.sinks.postgres import parameters_of
from towpath.sinks.state import incomplete
from towpath.sinks.state.progress import replace_file, sink_folder

BLOCK_FILE: Final = "block.json"

_log = structlog.get_logger("towpath.sinks")


class BlockChangeOutcome(enum.StrEnum):
    """The kind of a change; the runbook describes each."""

    ROUTE_ADDED = "route_added"
    ROUTE_CHANGED = "route_changed"
    ROUTE_REMOVED = "route_removed"
    TARGET_CHANGED = "target_changed"


_DESCRIPTIONS: Final[Mapping[BlockChangeOutcome, str]] = {
    BlockChangeOutcome.ROUTE_ADDED: "the route is new",
    BlockChangeOutcome.ROUTE_CHANGED: "the settings of the route have changed",
    BlockChangeOutcome.ROUTE_REMOVED: "the route was removed: its rows remain",
    BlockChangeOutcome.TARGET_CHANGED: "the sink has a different target",
}


class BlockDigest(NamedTuple):
    """
    The settings that determine a sink's rows.

    Attributes:
        target: A digest of the target's address; empty for a target that cannot be
            read back.
        routes: The settings of each route except its name, as JSON.
    """

    target: str
    routes: Mapping[str, Any]


class BlockChange(NamedTuple):
    """One change to one route."""

    outcome: BlockChangeOutcome
    route: str


def block_digest(sink: Sink) -> BlockDigest:
    """Return the digest of a sink's block, without its password."""
    where = (sink.kind, *_address(sink), sink.folder, sink.warehouse.location)
    digest = sha256("\n".join(map(str, where)).encode()).hexdigest()
    routes = {
        route.name: route.model_dump(
            mode="json", exclude_defaults=True, exclude={"name"}
        )
        for route in sink.route
    }
    return BlockDigest(digest if kind_of(sink).read is not None else "", routes)


def _address(sink: Sink) -> tuple[str, str]:
    """Return the server, and the database or path on it, that a sink's url names."""
    if sink.kind == SinkKind.POSTGRES:
        # A connection string may also be key=value pairs, or have a query.
        at = parameters_of(sink.url)
        server = [str(at.get(name, "")) for name in ("host", "hostaddr", "port")]
        return " ".join(server), str(at.get("dbname", at.get("user", "")))
    address = urlsplit(sink.url)
    return address.netloc.rpartition("@")[2], address.path


def changes(before: BlockDigest, now: BlockDigest) -> Iterator[BlockChange]:
    """Yield the changes, at most one per route."""
    moved = before.target != now.target
    for name, settings in now.routes.items():
        if name not in before.routes:
            yield BlockChange(BlockChangeOutcome.ROUTE_ADDED, name)
        elif moved:
            yield BlockChange(BlockChangeOutcome.TARGET_CHANGED, name)
        elif before.routes[name] != settings:
            yield BlockChange(BlockChangeOutcome.ROUTE_CHANGED, name)
    for name in before.routes:
        if name not in now.routes:
            yield BlockChange(BlockChangeOutcome.ROUTE_REMOVED, name)


class BlockChanges:
    """Handles the changes to one sink's block since the sink last ran."""

    def __init__(self, plan: QueryPlan, repairs: Repairs, clock: Clock) -> None:
        self._sink = plan.sink
        self._state_folder = plan.state_folder
        self._folder = sink_folder(plan.state_folder, plan.sink.name)
        self._repairs = repairs
        self._clock = clock

    def run(self) -> tuple[BlockChange, ...]:
        """
        Request the rows of changed routes, before the query starts; return the changes.

        Raises:
            UnavailableError: The broker does not answer; the new block is not stored.
        """
        now, path = block_digest(self._sink), self._folder / BLOCK_FILE
        # Without a stored block the sink is new: the command that adds a sink fills it.
        before = (
            BlockDigest(**orjson.loads(path.read_bytes())) if path.exists() else now
        )
        found = tuple(changes(before, now))
        for change in found:
            self._take(change)
        self._note(found)
        if before != now or not path.exists():
            replace_file(path, orjson.dumps(now._asdict()), is_durable=True)
        return found

    def _take(self, change: BlockChange) -> None:
        name, why = self._sink.name, _DESCRIPTIONS[change.outcome]
        _log.warning(
            "sink block has changed",
            sink=name,
            route=change.route,
            outcome=change.outcome,
            why=why,
        )
        if change.outcome is BlockChangeOutcome.ROUTE_REMOVED:
            incomplete.forget(self._state_folder, name, change.route)
        elif not self._repairs.request_all(change.route, why):
            _log.error(
                "sink route not filled: it continues at the current offsets",
                sink=name,
                route=change.route,
                remedy=filling_remedy(self._sink, change.route),
            )

    def _note(self, found: tuple[BlockChange, ...]) -> None:
        """Append the changes to the recoveries file."""
        if found:
            entries = [{"outcome": c.outcome, "route": c.route} for c in found]
            append_recovery(self._folder, self._clock, entries)
