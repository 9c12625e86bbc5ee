"""
Writes rows into Redis through the guard.

A field is a column as text; null is an absent field. A delete leaves a tombstone with
its position, which lives longer than anything that could be replayed. Live rows never
expire, so that no guard is forgotten: a cache that may forget rows would equal its
source only by chance.

What is acknowledged may still be lost by a server that writes its file once a second.
To wait for that would cost each batch up to a second; so it is waited for only where
the file is written at once, and anywhere else a loss is noticed and cured (``losses``).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import redis
import structlog

from towpath.sinks.change import Change, Refusal
from towpath.sinks.changes.columns import Columns
from towpath.sinks.errors import EvictingCacheError, TargetUnavailableError
from towpath.sinks.fold import ABSENT_ROW
from towpath.sinks.ports import Batch, Checkpoint
from towpath.sinks.tally import Floors, Tally
from towpath.sinks.targets.cache import write
from towpath.sinks.targets.cache.client import (
    ANSWER_WITHIN_S,
    SCANNED_AT_ONCE,
    Servers,
    ServerState,
    translated,
)
from towpath.sinks.targets.cache.losses import CacheLosses, CacheWatch
from towpath.sinks.targets.cache.pipeline import (
    BYTES_IN_FLIGHT,
    RedisPipeline,
    packed,
    packed_words,
)
from towpath.sinks.targets.cache.schema import (
    calls,
    floors_place,
    library,
    route_place,
    scan_pattern,
    slot_of,
    witness_places,
)

# A write that is not in the file after half of the time that an answer may take is
# tried again, rather than taken for a server that is gone.
_IN_FILE_WITHIN_MS: Final = int(ANSWER_WITHIN_S * 500)

_log = structlog.get_logger("towpath.sinks.cache")


class CacheSink:
    """One Redis, or a cluster of it, written by one sink."""

    def __init__(
        self, url: str, prefix: str, tombstone_s: int, watch: CacheWatch | None = None
    ) -> None:
        """
        Describe the cache; nothing is opened yet.

        Args:
            url: Address of the server, or of any server of a cluster.
            prefix: What every key begins with.
            tombstone_s: How long a delete is remembered: the replay window.
            watch: How losses are noticed and cured; left out, they are not looked for.
        """
        self._servers = Servers(url)
        self._lanes: dict[Any, RedisPipeline[Any]] = {}
        self._prefix = prefix
        self._tombstone_s = b"%d" % tombstone_s
        self._floors_place = floors_place(prefix)
        self._floors = Floors()
        self._swept: list[tuple[str, str]] = []
        self._tally = Tally()
        self._sink = watch.sink if watch else ""
        self._losses = CacheLosses(watch) if watch else None
        self._is_in_file_at_once = False

    def open(self) -> None:
        with self._acting():
            self._load()
            self._is_in_file_at_once = self._asks_for_file()
            states = self._servers.states()
            place = self._floors_place
            remembered: dict[str, str] = self._servers.of(place).hgetall(place)
            self._look(states, is_open=True)
        for route, floor in remembered.items():
            self._floors.learn(route, floor)
        _refuse_evicting(states)
        self._repair(states)
        if not all(state.keeps_file for state in states):
            _log.warning("the cache keeps no file: a restart has all rows read anew")

    def apply(self, batch: Batch) -> None:
        self.send(batch)
        with self._acting():
            self._arrive()

    def send(self, batch: Batch) -> None:
        """Send a batch on its way; its answers are waited for later."""
        with self._acting():
            for route, floor in self._floors.due(batch.floors):
                self._arrive()
                self._sweep(route, floor)
            self._write(self._floors.above(batch.changes, self._tally))

    def send_columns(self, columns: Columns) -> pa.Array | None:
        """
        Send whole rows on their way, as ``send`` does; the rest comes by ``send`` then.

        Returns:
            Where the records stand that are taken; ``None`` if none are.

        Raises:
            UnavailableError: The cache cannot be reached; nothing is lost by trying
                again.
        """
        with self._acting():
            # There, each call is of one slot: rows are laid out one by one.
            if self._servers.is_cluster:
                return None
            taken = write.take(columns, self._floors.of(columns.route))
            if taken is None:
                return None
            self._tally.stale += taken.below
            self._write_columns(columns.route, taken)
        return taken.places

    def flush(self) -> Checkpoint:
        self._settle()
        for route, floor in self._swept:
            self._floors.carried_out(route, floor)
        self._swept.clear()
        return self._tally.take()

    def erase(self, route: str, keys: Sequence[str]) -> None:
        """
        Take rows away, tombstones too, at whatever position they stand.

        Raises:
            UnavailableError: The cache cannot be reached; it is safe to repeat.
        """
        begins = route_place(self._prefix, route)
        with self._acting():
            self._arrive()
            for place in (begins + key for key in keys):
                self._servers.of(place).delete(place)

    def attend(self) -> None:
        """Notice a loss while there is nothing to write."""
        self._settle()

    def close(self) -> None:
        self._drop()
        self._servers.close()

    def _settle(self) -> None:
        """See that all that was written is there still, and will be."""
        with self._acting():
            self._arrive()
            states = self._servers.states()
            self._look(states)
            self._wait_for_file()
            for lane in self._lanes.values():
                lane.rest()
        _refuse_evicting(states)
        self._repair(states)

    def _write(self, changes: Iterable[Change]) -> None:
        apply = library().apply
        is_cluster = self._servers.is_cluster
        for call in calls(self._prefix, changes, by_slot=is_cluster):
            asked = packed(apply, call.keys, (self._tombstone_s, call.rows))
            self._ask(self._lane(call.keys[0]), asked, call.changes)

    def _write_columns(self, route: str, taken: write.Taken) -> None:
        apply = library().apply_columns
        place = route_place(self._prefix, route)
        lane = self._lane(place)
        for call in write.calls(taken, place):
            asked = packed_words(apply, call.row_count, call.keys, (call.columns,))
            # None of them is partial: not one can find no row.
            self._ask(lane, asked, ())

    def _ask(
        self, lane: RedisPipeline[Any], asked: bytes, changes: Sequence[Change]
    ) -> None:
        """Send a call of the guard; count what was answered until now."""
        lane.ask(asked, changes)
        for about, answer in lane.answers(BYTES_IN_FLIGHT):
            _count(self._tally, about, answer)

    def _arrive(self) -> None:
        """Wait until all that was sent has been answered."""
        for about, answer in self._answers():
            _count(self._tally, about, answer)

    def _sweep(self, route: str, floor: str) -> None:
        """Remember a floor, then take away what is below it."""
        self._servers.of(self._floors_place).hset(self._floors_place, route, floor)
        self._floors.learn(route, floor)
        places = self._servers.scan(scan_pattern(self._prefix, route))
        swept = 0
        while some := list(islice(places, SCANNED_AT_ONCE)):
            for group in self._by_slot(some):
                call = packed(library().sweep, group, (floor.encode(),))
                self._lane(group[0]).ask(call, None)
            swept += sum(answer for _, answer in self._answers())
        self._swept.append((route, floor))
        _log.info("rows below a floor taken away", route=route, floor=floor, rows=swept)

    def _look(self, states: Sequence[ServerState], *, is_open: bool = False) -> None:
        """Hear the witnesses; a sink that never ran sets some up."""
        losses = self._losses
        if losses is None:
            return
        if is_open and not losses.recall():
            self._set_up_witnesses(losses, states)
            return
        known, counts = losses.known, losses.known.counts
        for place in self._witnesses():
            words = (known.id.encode(), b"%d" % counts.get(place, 0))
            self._lane(place).ask(packed(library().witness, [place], words), place)
        losses.hear(dict(self._answers()), states)

    def _repair(self, states: Sequence[ServerState]) -> None:
        """Have what was lost read anew, then begin to watch again."""
        losses = self._losses
        if losses is None or losses.known.lost is None:
            return
        losses.ask()
        with self._acting():
            self._set_up_witnesses(losses, states)

    def _set_up_witnesses(
        self, losses: CacheLosses, states: Sequence[ServerState]
    ) -> None:
        chosen = losses.new_id()
        for place in self._witnesses():
            self._servers.of(place).hset(place, mapping={"id": chosen, "count": 0})
        losses.begin(chosen, states)

    def _witnesses(self) -> tuple[str, ...]:
        is_cluster = self._servers.is_cluster
        return witness_places(self._prefix, self._sink, is_cluster=is_cluster)

    def _wait_for_file(self) -> None:
        if not self._is_in_file_at_once:
            return
        for lane in self._lanes.values():
            lane.ask(_wait_call(), None)
        if any(in_file < 1 for _, (in_file, _) in self._answers()):
            message = "the cache does not get what was written into its file"
            raise TargetUnavailableError(message)

    def _asks_for_file(self) -> bool:
        try:
            return self._servers.append_each_write()
        except redis.ResponseError:  # a user who may not read the configuration
            return False

    def _answers(self) -> Iterator[tuple[Any, Any]]:
        """Wait for whatever is on its way; each answer comes with what it is about."""
        for lane in self._lanes.values():
            yield from lane.answers()

    def _lane(self, place: str) -> RedisPipeline[Any]:
        return self._lanes[self._servers.of(place)]

    def _by_slot(self, places: list[str]) -> Iterable[list[str]]:
        if not self._servers.is_cluster:
            return (places,)
        groups: dict[int, list[str]] = {}
        for place in places:
            groups.setdefault(slot_of(place), []).append(place)
        return groups.values()

    def _load(self) -> None:
        for client in self._servers.all:
            client.function_load(library().source, replace=True)

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """
        Hold a connection to each server from a batch's first call to its flush.

        After a failure the servers are looked up anew, and all begins again.
        """
        with translated():
            try:
                self._begin()
                yield
            except BaseException:
                self._drop()
                raise

    def _begin(self) -> None:
        if not self._lanes:
            self._servers.look()
            self._lanes = {c: RedisPipeline(c, self._load) for c in self._servers.all}
        for lane in self._lanes.values():
            lane.begin()

    def _drop(self) -> None:
        for lane in self._lanes.values():
            lane.drop()
        self._lanes = {}
        # The batch comes again, whole.
        self._swept.clear()
        self._tally = Tally()


def _wait_call() -> bytes:
    timeout = b"%d" % _IN_FILE_WITHIN_MS
    return b"*4\r\n$7\r\nWAITAOF\r\n$1\r\n1\r\n$1\r\n0\r\n$%d\r\n%b\r\n" % (
        len(timeout),
        timeout,
    )


def _refuse_evicting(states: Sequence[ServerState]) -> None:
    for state in states:
        if state.may_evict:
            message = (
                f"the cache's maxmemory-policy is {state.policy}: it may throw rows "
                "and tombstones away; set it to noeviction"
            )
            raise EvictingCacheError(message)


def _count(tally: Tally, changes: Sequence[Change], answer: list[int]) -> None:
    applied, stale, *absent = answer
    tally.applied += applied
    tally.stale += stale
    tally.refused += [Refusal(changes[i - 1], ABSENT_ROW, asks=True) for i in absent]
