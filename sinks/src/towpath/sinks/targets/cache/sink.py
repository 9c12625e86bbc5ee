"""
A sink that writes rows into Redis through the guard.

A field holds a column's value as text; a null is an absent field. A delete leaves a
tombstone with its position, which outlives every possible replay. Live rows never
expire, so that no position is lost: a cache that evicts rows would equal its source
only by chance.

With ``appendfsync everysec``, Redis can lose writes that it acknowledged. Waiting for
the append-only file would cost each batch up to a second, so the sink waits only with
``appendfsync always``; otherwise losses are detected and repaired (``losses``).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import pyarrow as pa
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
    packed_call,
)
from towpath.sinks.targets.cache.schema import (
    calls,
    floors_key,
    library,
    name_of,
    route_key_prefix,
    slot_of,
    witness_keys,
)

# A batch that is not in the file after half of the response timeout is retried. The
# server thus responds before the timeout, so that the error can name the file.
_IN_FILE_WITHIN_MS: Final = int(ANSWER_WITHIN_S * 500)

_log = structlog.get_logger("towpath.sinks.cache")


class CacheSink:
    """One Redis server or cluster, written to by one sink."""

    def __init__(
        self,
        url: str,
        prefix: str,
        tombstone_s: int,
        watch: CacheWatch | None = None,
        servers: Servers | None = None,
    ) -> None:
        """
        Store the parameters; nothing is opened yet.

        Args:
            url: Address of the server, or of any server of a cluster.
            prefix: The prefix of every key.
            tombstone_s: The lifetime of a tombstone: the replay window.
            watch: Detects and repairs losses; without it, no loss is detected.
            servers: The connections; by default, those to ``url``.
        """
        self._servers = servers or Servers(url)
        self._pipelines: dict[Any, RedisPipeline[Any]] = {}
        self._prefix = prefix
        self._tombstone_s = b"%d" % tombstone_s
        self._floors_key = floors_key(prefix)
        self._floors = Floors()
        self._swept: list[tuple[str, str]] = []
        self._tally = Tally()
        self._sink = watch.sink if watch else ""
        self._losses = CacheLosses(watch) if watch else None
        self._appends_each_write = False

    def open(self) -> None:
        with self._connected():
            self._load()
            states = self._servers.states()
            key = self._floors_key
            remembered: dict[str, str] = self._servers.client_of(key).hgetall(key)
            self._check_witnesses(states, is_open=True)
        for route, floor in remembered.items():
            self._floors.learn(route, floor)
        _refuse_evicting(states)
        self._repair(states)
        if not all(state.keeps_file for state in states):
            _log.warning(
                "cache has no append-only file: a restart means reading all rows again"
            )

    def apply(self, batch: Batch) -> None:
        """Send a batch; ``flush`` waits for the responses."""
        with self._connected():
            for route, floor in self._floors.due(batch.floors):
                self._await_responses()
                self._sweep(route, floor)
            self._write(self._floors.above(batch.changes, self._tally))

    def apply_columns(self, columns: Columns) -> pa.Array | None:
        with self._connected():
            # On a cluster all keys of a call must share a slot, so rows are encoded one
            # by one.
            if self._servers.is_cluster:
                return None
            encoded = write.encode(columns, self._floors.of(columns.route))
            if encoded is None:
                return None
            self._tally.stale += encoded.below_floor
            self._send_columns(columns.route, encoded)
        return encoded.indices

    def flush(self) -> Checkpoint:
        try:
            self._check_durable()
        except BaseException:
            # This includes the case in which no snapshot of lost rows can be requested.
            self._drop()
            raise
        for route, floor in self._swept:
            self._floors.mark_applied(route, floor)
        self._swept.clear()
        return self._tally.take()

    def erase(self, route: str, keys: Sequence[str]) -> None:
        """
        Delete rows and tombstones, whatever their positions.

        Raises:
            UnavailableError: The cache cannot be reached, or is busy; the call is safe
                to repeat.
            CacheRefusedError: The cache refuses the credentials or a call.
        """
        prefix = route_key_prefix(self._prefix, route)
        with self._connected():
            self._await_responses()
            for key in (prefix + name_of(text) for text in keys):
                self._servers.client_of(key).delete(key)

    def maintain(self) -> None:
        """Detect a loss while there is nothing to write."""
        self._check_durable()

    def close(self) -> None:
        self._drop()
        self._servers.close()

    def _check_durable(self) -> None:
        """
        Check that no write has been lost.

        With ``appendfsync always``, also wait until they are in the file.
        """
        with self._connected():
            self._await_responses()
            states = self._servers.states()
            self._check_witnesses(states)
            self._wait_for_file()
            for pipeline in self._pipelines.values():
                pipeline.release()
        _refuse_evicting(states)
        self._repair(states)

    def _write(self, changes: Iterable[Change]) -> None:
        apply = library().apply
        is_cluster = self._servers.is_cluster
        for call in calls(self._prefix, changes, by_slot=is_cluster):
            call_bytes = packed(apply, call.keys, (self._tombstone_s, call.rows))
            self._send(self._pipeline_of(call.keys[0]), call_bytes, call.changes)

    def _send_columns(self, route: str, encoded: write.EncodedRows) -> None:
        apply = library().apply_columns
        key = route_key_prefix(self._prefix, route)
        pipeline = self._pipeline_of(key)
        for call in write.calls(encoded, key):
            call_bytes = packed_call(apply, call.row_count, call.keys, (call.columns,))
            # No change is partial, so none can be refused because its row is absent.
            self._send(pipeline, call_bytes, ())

    def _send(
        self, pipeline: RedisPipeline[Any], call_bytes: bytes, changes: Sequence[Change]
    ) -> None:
        """Send a call to the guard; count the responses that have arrived."""
        pipeline.send(call_bytes, changes)
        for context, response in pipeline.responses(BYTES_IN_FLIGHT):
            _count(self._tally, context, response)

    def _await_responses(self) -> None:
        """Wait for the responses of all calls in flight."""
        for context, response in self._responses():
            _count(self._tally, context, response)

    def _sweep(self, route: str, floor: str) -> None:
        """Store a floor, then delete the rows below it."""
        self._servers.client_of(self._floors_key).hset(self._floors_key, route, floor)
        self._floors.learn(route, floor)
        keys = self._servers.scan(self._prefix, route)
        swept = 0
        while batch_keys := list(islice(keys, SCANNED_AT_ONCE)):
            for group in self._grouped_by_slot(batch_keys):
                call = packed(library().sweep, group, (floor.encode(),))
                self._pipeline_of(group[0]).send(call, None)
            swept += sum(response for _, response in self._responses())
        self._swept.append((route, floor))
        _log.info(
            "sink floor applied: rows below it are deleted",
            route=route,
            floor=floor,
            rows=swept,
        )

    def _check_witnesses(
        self, states: Sequence[ServerState], *, is_open: bool = False
    ) -> None:
        """Compare the witnesses with the known state; a new sink creates them."""
        losses = self._losses
        if losses is None:
            return
        if is_open and not losses.load():
            self._set_up_witnesses(losses, states)
            return
        known, counts = losses.known, losses.known.counts
        for key in self._witnesses():
            arguments = (known.id.encode(), b"%d" % counts.get(key, 0))
            call = packed(library().witness, [key], arguments)
            self._pipeline_of(key).send(call, key)
        losses.compare(dict(self._responses()), states)

    def _repair(self, states: Sequence[ServerState]) -> None:
        """Request snapshots after a loss, then create new witnesses."""
        losses = self._losses
        if losses is None or losses.known.lost is None:
            return
        losses.request_snapshots()
        with self._connected():
            self._set_up_witnesses(losses, states)

    def _set_up_witnesses(
        self, losses: CacheLosses, states: Sequence[ServerState]
    ) -> None:
        chosen = losses.new_id()
        for key in self._witnesses():
            self._servers.client_of(key).hset(key, mapping={"id": chosen, "count": 0})
        losses.start(chosen, states)

    def _witnesses(self) -> tuple[str, ...]:
        is_cluster = self._servers.is_cluster
        return witness_keys(self._prefix, self._sink, is_cluster=is_cluster)

    def _wait_for_file(self) -> None:
        if not self._appends_each_write:
            return
        for pipeline in self._pipelines.values():
            pipeline.send(_wait_call(), None)
        if any(in_file < 1 for _, (in_file, _) in self._responses()):
            message = "the cache did not write a batch to its append-only file in time"
            raise TargetUnavailableError(message)

    def _responses(self) -> Iterator[tuple[Any, Any]]:
        """Yield the responses of all calls in flight, each with its context."""
        for pipeline in self._pipelines.values():
            yield from pipeline.responses()

    def _pipeline_of(self, key: str) -> RedisPipeline[Any]:
        return self._pipelines[self._servers.client_of(key)]

    def _grouped_by_slot(self, keys: list[str]) -> Iterable[list[str]]:
        if not self._servers.is_cluster:
            return (keys,)
        groups: dict[int, list[str]] = {}
        for key in keys:
            groups.setdefault(slot_of(key), []).append(key)
        return groups.values()

    def _load(self) -> None:
        for client in self._servers.all:
            client.function_load(library().source, replace=True)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """
        Hold a connection to each server from a batch's first call to its flush.

        After a failure, the servers and their settings are looked up again, and the
        whole batch is retried.
        """
        with translated():
            try:
                self._connect()
                yield
            except BaseException:
                self._drop()
                raise

    def _connect(self) -> None:
        if not self._pipelines:
            self._servers.discover()
            self._appends_each_write = self._servers.append_each_write()
            self._pipelines = {
                c: RedisPipeline(c, self._load) for c in self._servers.all
            }
        for pipeline in self._pipelines.values():
            pipeline.acquire()

    def _drop(self) -> None:
        for pipeline in self._pipelines.values():
            pipeline.drop()
        self._pipelines = {}
        # The whole batch is retried.
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
                "the cache may evict rows and tombstones: its maxmemory-policy is "
                f"{state.policy}"
            )
            raise EvictingCacheError(message)


def _count(tally: Tally, changes: Sequence[Change], response: list[int]) -> None:
    applied, stale, *absent = response
    tally.applied += applied
    tally.stale += stale
    tally.refused += [
        Refusal(changes[i - 1], ABSENT_ROW, needs_refetch=True) for i in absent
    ]
