"""
How a sink learns that the cache lost rows, and has them read anew.

A *witness* is a small hash beside the rows, with an id that this sink chose and a count
that rises with every flush, behind the rows that it flushes. Whatever a server loses,
it loses the end of what was written to it, or all of it:

- no witness, or one with another id: the server was emptied, or is another one;
- a count below the one that is known: it lost what was written last (its last second,
  when it keeps a file; everything since its last dump, or since a replica was copied).
  Each witness is held against its own count: while one server refuses, the others'
  have risen alone;
- keys evicted, by the server's own count: it threw away what it liked, and the witness
  need not be among it.

What is known stands in a file beside the sink's checkpoint, replaced before a flush
counts. A loss is noted there before anything is asked for, and each route is struck off
once it was asked for: a crash asks again for what is left, and never forgets.
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
    What is needed to notice losses, and to cure them.

    Attributes:
        sink: The sink's name.
        file: Where to keep what is known, in the sink's own folder.
        routes: The names of its routes.
        repairs: Has rows read anew.
    """

    sink: str
    file: Path
    routes: tuple[str, ...]
    repairs: Repairs


@dataclass(frozen=True, slots=True)
class Known:
    """
    What the sink knows of the cache.

    Attributes:
        id: The witnesses' id.
        counts: What each of them has counted to, by its name; left out: to nothing.
        evicted: Keys that each server threw away, by its run id, as far as is known.
        lost: What was lost, until it has been asked for.
        unasked: The routes that are still to be asked for.
    """

    id: str
    counts: Mapping[str, int] = field(default_factory=dict)
    evicted: Mapping[str, int] = field(default_factory=dict)
    lost: str | None = None
    unasked: tuple[str, ...] = ()


class CacheLosses:
    """What one sink knows of its cache, and what it has to ask for."""

    def __init__(self, watch: CacheWatch) -> None:
        """Describe whom to ask; nothing is read yet."""
        self._watch = watch
        self._known = Known(id="")

    @property
    def known(self) -> Known:
        """What is known at present."""
        return self._known

    def recall(self) -> bool:
        """Read what was known; tell whether there was anything: a new sink has none."""
        try:
            told = orjson.loads(self._watch.file.read_bytes())
        except FileNotFoundError:
            return False
        except orjson.JSONDecodeError:
            _log.warning("what was known of the cache cannot be read: beginning anew")
            return False
        self._known = Known(**{**told, "unasked": tuple(told["unasked"])})
        return True

    def new_id(self) -> str:
        """Choose an id for new witnesses."""
        return uuid.uuid4().hex

    def begin(self, chosen: str, states: Sequence[ServerState]) -> None:
        """Know new witnesses, which stand; whatever was lost before is settled."""
        self._keep(Known(id=chosen, evicted=_evicted(states)))

    def hear(self, counts: Mapping[str, int], states: Sequence[ServerState]) -> None:
        """Compare what the witnesses answer, and the servers, with what is known."""
        if self._known.lost is not None:
            return
        why = loss_in(self._known, counts.values(), states)
        if why is None:
            heard = replace(self._known, counts=counts, evicted=_evicted(states))
            self._keep(heard)
            return
        _log.error("the cache lost rows: having them read anew", why=why)
        self._keep(replace(self._known, lost=why, unasked=self._watch.routes))

    def ask(self) -> None:
        """
        Have every route read that is still to be asked for.

        Raises:
            UnavailableError: It is not known to be asked for; try again.
        """
        why = self._known.lost or ""
        for route in self._known.unasked:
            if not self._watch.repairs.ask_all(route, why):
                _log.error("a lost route cannot be read anew; fill it", route=route)
            left = tuple(r for r in self._known.unasked if r != route)
            self._keep(replace(self._known, unasked=left))

    def _keep(self, known: Known) -> None:
        replace_file(self._watch.file, orjson.dumps(asdict(known)), is_durable=True)
        self._known = known


def loss_in(
    known: Known, answers: Collection[int], states: Sequence[ServerState]
) -> str | None:
    """Say what was lost, if anything was; a witness may be among what went."""
    if any(state.evicted > known.evicted.get(state.run_id, 0) for state in states):
        return "it threw keys away for want of memory"
    if min(answers) < 0:
        return "it was emptied"
    if min(answers) == 0:
        return "it lost what was written last"
    return None


def _evicted(states: Sequence[ServerState]) -> dict[str, int]:
    return {state.run_id: state.evicted for state in states}
