"""
Writes rows into Redis through the guard.

A field is a column as text; null is an absent field. A delete leaves a tombstone with
its position, which lives longer than anything that could be replayed. Live rows never
expire, so that no guard is forgotten.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import redis
import structlog

from towpath.sinks.cache.place import floors_place, scan_pattern
from towpath.sinks.cache.script import FUNCTION, SWEEP_FUNCTION, Call, calls, library
from towpath.sinks.change import Refusal
from towpath.sinks.errors import (
    CacheRefusedError,
    EvictingCacheError,
    TargetBusyError,
    TargetUnavailableError,
)
from towpath.sinks.floors import Floors
from towpath.sinks.fold import ABSENT_ROW
from towpath.sinks.ports import Batch, Checkpoint
from towpath.sinks.tally import Tally

ANSWER_WITHIN_S: Final = 10.0

# A cache that is full stays full until someone gives it room: asking more often than
# this only adds load.
FULL_RETRY_AFTER_S: Final = 5.0
LOADING_RETRY_AFTER_S: Final = 0.5

# Some milliseconds of the server's time per call.
_SWEPT_AT_ONCE: Final = 1000

_KEEPS_EVERYTHING: Final = "noeviction"
_NO_FUNCTION: Final = "Function not found"

_log = structlog.get_logger("towpath.sinks.cache")


class CacheSink:
    """One Redis, written by one sink."""

    def __init__(self, url: str, prefix: str, tombstone_s: int) -> None:
        """
        Describe the cache; nothing is opened yet.

        Args:
            url: Address of the server.
            prefix: What every key begins with.
            tombstone_s: How long a delete is remembered: the replay window.
        """
        self._client = connect(url)
        self._prefix = prefix
        self._tombstone_s = tombstone_s
        self._floors_place = floors_place(prefix)
        self._floors = Floors()
        self._tally = Tally()

    def open(self) -> None:
        with translated():
            memory: dict[str, Any] = self._client.info("memory")
            policy = memory.get("maxmemory_policy", _KEEPS_EVERYTHING)
            if policy != _KEEPS_EVERYTHING:
                message = (
                    f"the cache's maxmemory-policy is {policy}: it may throw rows and "
                    "tombstones away; set it to noeviction"
                )
                raise EvictingCacheError(message)
            self._client.function_load(library(), replace=True)
            remembered: dict[str, str] = self._client.hgetall(self._floors_place)
        for route, floor in remembered.items():
            self._floors.learn(route, floor)

    def apply(self, batch: Batch) -> None:
        tally = Tally()
        for route, floor in self._floors.due(batch.floors):
            with translated():
                self._sweep(route, floor)
        for call in calls(self._prefix, self._floors.above(batch.changes, tally)):
            with translated():
                _count(tally, call, self._run(call))
        self._tally.add(tally)

    def flush(self) -> Checkpoint:
        # The server appends each call to its file before it answers.
        return self._tally.take()

    def close(self) -> None:
        self._client.close()

    def _run(self, call: Call) -> list[int]:
        arguments = (FUNCTION, len(call.keys), *call.keys, self._tombstone_s, call.rows)
        answer: list[int] = self._call(arguments)
        return answer

    def _sweep(self, route: str, floor: str) -> None:
        """Remember a floor, then take away what is below it."""
        self._client.hset(self._floors_place, route, floor)
        self._floors.learn(route, floor)
        pattern = scan_pattern(self._prefix, route)
        places = iter(self._client.scan_iter(pattern, count=_SWEPT_AT_ONCE))
        swept = 0
        while some := list(islice(places, _SWEPT_AT_ONCE)):
            swept += self._call((SWEEP_FUNCTION, len(some), *some, floor))
        self._floors.carried_out(route, floor)
        _log.info("rows below a floor taken away", route=route, floor=floor, rows=swept)

    def _call(self, arguments: tuple[object, ...]) -> Any:  # noqa: ANN401 - redis-py's
        try:
            return self._client.fcall(*arguments)
        except redis.ResponseError as error:
            if _NO_FUNCTION not in str(error):
                raise
            _log.warning("the cache lost its guard function: loading it again")
            self._client.function_load(library(), replace=True)
            return self._client.fcall(*arguments)


def _count(tally: Tally, call: Call, answer: list[int]) -> None:
    applied, stale, *absent = answer
    tally.applied += applied
    tally.stale += stale
    tally.refused += [Refusal(call.changes[i - 1], ABSENT_ROW) for i in absent]


def connect(url: str) -> Any:  # noqa: ANN401 - redis-py types its answers as sync or async
    """Return a client that does not retry by itself: the driver does, and says so."""
    return redis.Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=ANSWER_WITHIN_S,
        socket_connect_timeout=ANSWER_WITHIN_S,
        retry=None,
    )


@contextmanager
def translated() -> Iterator[None]:
    """
    Turn redis-py's errors into ours.

    Raises:
        TargetBusyError: The server is loading its file, or is full.
        TargetUnavailableError: The server does not answer.
        CacheRefusedError: The server answers with any other error.
    """
    try:
        yield
    except redis.BusyLoadingError as error:
        message = "the cache is still loading its file"
        raise TargetBusyError(message, retry_after_s=LOADING_RETRY_AFTER_S) from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        message = f"the cache does not answer: {error}"
        raise TargetUnavailableError(message) from error
    except redis.ResponseError as error:
        if isinstance(error, redis.OutOfMemoryError) or "OOM" in str(error):
            message = "the cache's memory is full; raise its maxmemory"
            raise TargetBusyError(message, retry_after_s=FULL_RETRY_AFTER_S) from error
        message = f"the cache refused a call: {error}"
        raise CacheRefusedError(message) from error
