"""
Detecting that the cache has lost rows, and requesting snapshots of them.

A *witness* is a small hash stored with the rows, with an id chosen by the sink and a
count that rises with every flush, once the rows of that flush are written. A server
loses either its most recent writes or everything:

- the witness is missing or has a different id: the server was emptied or replaced;
- the count is below the known one: the server lost its most recent writes (with an
  append-only file, the last second; without one, everything since the last dump, or
  since a replica was copied). Each witness is compared with its own count: while one
  server refuses writes, only the counts of the others rise;
- keys were evicted, according to the server's own count: any row may be among them,
  even if the witness is not.

The known state is in a file next to the sink's checkpoint. That file is replaced before
a flush ends. A loss is written there before any request, and each route is removed once
its request is sent: after a crash the remaining requests are still sent.
"""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import orjson
import structlog

from towpath.sinks.ports import Repairs
from towpath.sinks.state.progress import replace_file
from towpath.sinks.targets.cache.client import ServerState

_log = structlog.get_logger("towpath.sinks.cache")


@dataclass(frozen=True, slots=True)
class CacheWatch:
    """
    The dependencies for detecting losses and requesting snapshots.

    Attributes:
        sink: The sink's name.
        file: The file of the known state, in the sink's folder.
        routes: The names of the sink's routes.
        repairs: Requests snapshots.
    """

    sink: str
    file: Path
    routes: tuple[str, ...]
    repairs: Repairs


@dataclass(frozen=True, slots=True)
class KnownState:
    """
    The state of the cache as the sink knows it; its fields are the file's keys.

    Attributes:
        id: The witnesses' id.
        counts: The count of each witness, by its key; a missing one is zero.
        evicted: The evictions of each server, by its run id.
        lost: The reason for a loss, until all requests are sent and new witnesses
            exist.
        unasked: The routes that have not been requested yet.
    """

    id: str
    counts: Mapping[str, int] = field(default_factory=dict)
    evicted: Mapping[str, int] = field(default_factory=dict)
    lost: str | None = None
    unasked: tuple[str, ...] = ()


class CacheLosses:
    """The known state of one cache, and the requests after a loss."""

    def __init__(self, watch: CacheWatch) -> None:
        """Store the parameters; nothing is read yet."""
        self._watch = watch
        self._known = KnownState(id="")

    @property
    def known(self) -> KnownState:
        """The known state."""
        return self._known

    def load(self) -> bool:
        """Read the file; return whether it holds a state: a new sink has no file."""
        try:
            values = orjson.loads(self._watch.file.read_bytes())
            known = KnownState(**{**values, "unasked": tuple(values["unasked"])})
        except FileNotFoundError:
            return False
        except (orjson.JSONDecodeError, KeyError, TypeError):
            # A torn file, or a file from a different release.
            _log.warning("cache state cannot be read: earlier losses go undetected")
            return False
        self._known = known
        return True

    def new_id(self) -> str:
        """Return an id for new witnesses."""
        return uuid.uuid4().hex

    def start(self, id_: str, states: Sequence[ServerState]) -> None:
        """Record that new witnesses exist; earlier losses are settled."""
        self._keep(KnownState(id=id_, evicted=_evicted(states)))

    def compare(self, counts: Mapping[str, int], states: Sequence[ServerState]) -> None:
        """Compare the witnesses' counts and the servers' states with the known ones."""
        if self._known.lost is not None:
            return
        why = loss_in(self._known, counts.values(), states)
        if why is None:
            updated = replace(self._known, counts=counts, evicted=_evicted(states))
            self._keep(updated)
            return
        _log.error("cache rows lost: snapshots of all routes are requested", reason=why)
        self._keep(replace(self._known, lost=why, unasked=self._watch.routes))

    def request_snapshots(self) -> None:
        """
        Request a snapshot of every route that still needs one.

        Raises:
            UnavailableError: The request may not have been sent; try again.
        """
        why = self._known.lost or ""
        for route in self._known.unasked:
            if not self._watch.repairs.request_all(route, why):
                _log.error(
                    "cache rows lost: no snapshot can be requested, fill the route",
                    route=route,
                )
            left = tuple(r for r in self._known.unasked if r != route)
            self._keep(replace(self._known, unasked=left))

    def _keep(self, known: KnownState) -> None:
        replace_file(self._watch.file, orjson.dumps(asdict(known)), is_durable=True)
        self._known = known


def loss_in(
    known: KnownState, counts: Collection[int], states: Sequence[ServerState]
) -> str | None:
    """
    Return the reason for a loss, if there was one.

    Args:
        known: The known state.
        counts: The new count of each witness; 0 if its count was below the known one,
            negative if it is missing or has a different id.
        states: The states of the servers.
    """
    if any(state.evicted > known.evicted.get(state.run_id, 0) for state in states):
        return "the cache evicted keys because its memory was full"
    if min(counts) < 0:
        return "the cache was emptied"
    if min(counts) == 0:
        return "the cache lost its most recent writes"
    return None


def _evicted(states: Sequence[ServerState]) -> dict[str, int]:
    return {state.run_id: state.evicted for state in states}
