"""
The connection to Redis, and its errors turned into ours, by their class and code.

The servers that hold the keys: one, or the primaries of a cluster.

Which of them holds a name is looked up when a sink is opened, and again after any
failure: slots move and replicas take over.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import redis

from towpath.sinks.errors import (
    CacheRefusedError,
    TargetBusyError,
    TargetUnavailableError,
)
from towpath.sinks.targets.cache.schema import SLOTS, slot_of

ANSWER_WITHIN_S: Final = 10.0

# A cache that is full stays full until someone gives it room: asking more often than
# this only adds load.
FULL_RETRY_AFTER_S: Final = 5.0

# A file is loaded, slots move, a replica takes over: all within seconds.
SHORTLY_RETRY_AFTER_S: Final = 0.5

NO_FUNCTION: Final = "Function not found"

_MOVING: Final = (
    redis.exceptions.MovedError,
    redis.exceptions.AskError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
)

# Codes without a class of their own: another script runs, the file cannot be written,
# too few replicas.
_PAUSES: Final = ("BUSY ", "MISCONF", "NOREPLICAS")


def connect(url: str) -> Any:  # noqa: ANN401 - redis-py types its answers as sync or async
    """Return a client that does not retry by itself: the driver does, and says so."""
    return redis.Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=ANSWER_WITHIN_S,
        socket_connect_timeout=ANSWER_WITHIN_S,
        retry=None,
    )


def beside(client: Any, host: str, port: int) -> Any:  # noqa: ANN401 - see connect
    """Return a client of another server, with the credentials of the first."""
    pool = client.connection_pool
    given = {**pool.connection_kwargs, "host": host, "port": port, "db": 0}
    other = redis.ConnectionPool(connection_class=pool.connection_class, **given)
    return redis.Redis.from_pool(other)


@contextmanager
def translated() -> Iterator[None]:
    """
    Turn redis-py's errors into ours.

    Raises:
        TargetBusyError: The server is loading its file, is full, or its slots move.
        TargetUnavailableError: The server does not answer, or takes no writes.
        CacheRefusedError: The server answers with any other error.
    """
    try:
        yield
    except redis.AuthenticationError as error:
        message = f"the cache refuses the credentials: {error}"
        raise CacheRefusedError(message) from error
    except redis.BusyLoadingError as error:
        message = "the cache is still loading its file"
        raise TargetBusyError(message, retry_after_s=SHORTLY_RETRY_AFTER_S) from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        message = f"the cache does not answer: {error}"
        raise TargetUnavailableError(message) from error
    except redis.ResponseError as error:
        raise _told(error) from error


def _told(
    error: redis.ResponseError,
) -> TargetBusyError | TargetUnavailableError | CacheRefusedError:
    """Say what an answer of the server means to us."""
    text = str(error)
    if isinstance(error, redis.OutOfMemoryError) or "OOM" in text:
        message = "the cache's memory is full; raise its maxmemory"
        return TargetBusyError(message, retry_after_s=FULL_RETRY_AFTER_S)
    if isinstance(error, _MOVING):
        message = "the cache's slots are on the move"
        return TargetBusyError(message, retry_after_s=SHORTLY_RETRY_AFTER_S)
    if isinstance(error, redis.ReadOnlyError):
        message = "the cache is a replica at present, and takes no writes"
        return TargetUnavailableError(message)
    if text.startswith(_PAUSES):
        message = f"the cache takes no writes at present: {text}"
        return TargetBusyError(message, retry_after_s=FULL_RETRY_AFTER_S)
    return CacheRefusedError(f"the cache refused a call: {text}")


# Some milliseconds of the server's time per call.
SCANNED_AT_ONCE: Final = 1000

_KEEPS_EVERYTHING: Final = "noeviction"
_EACH_WRITE: Final = "always"


class ServerState(NamedTuple):
    """
    What a server says of itself.

    Attributes:
        run_id: Another one after each start.
        evicted: How many keys it threw away since then, for want of memory.
        policy: What it does when its memory is full.
        keeps_file: Whether it appends what is written to a file.
    """

    run_id: str
    evicted: int
    policy: str
    keeps_file: bool

    @property
    def may_evict(self) -> bool:
        """Tell whether it may throw keys away."""
        return self.policy != _KEEPS_EVERYTHING


class Servers:
    """One server, or a cluster that it belongs to."""

    def __init__(self, url: str) -> None:
        """Describe where one of them is; nothing is opened yet."""
        self._first = connect(url)
        self._met: dict[tuple[str, int], Any] = {}
        self._of_slot: list[Any] = []
        self.is_cluster = False
        self.all: tuple[Any, ...] = ()

    @property
    def first(self) -> Any:  # noqa: ANN401 - redis-py's
        """The client of the server that the address names."""
        return self._first

    def look(self) -> None:
        """Find out which servers there are, and who holds what."""
        asked, self.is_cluster = self._someone()
        if not self.is_cluster:
            self.all = (self._first,)
            return
        of_slot: list[Any] = [None] * SLOTS
        for low, high, primary in self._slots(asked):
            client = self._client(*primary)
            of_slot[low : high + 1] = [client] * (high + 1 - low)
        self._of_slot = of_slot
        # A server without slots is none of ours; in the order of their slots.
        self.all = tuple(dict.fromkeys(c for c in of_slot if c is not None))

    def of(self, place: str) -> Any:  # noqa: ANN401 - redis-py's
        """Return the client of whoever holds a name, or should."""
        if not self.is_cluster:
            return self._first
        return self._of_slot[slot_of(place)] or self._first

    def scan(self, pattern: str) -> Iterator[str]:
        """Go through all names that a glob finds; one may come twice."""
        for client in self.all:
            yield from client.scan_iter(pattern, count=SCANNED_AT_ONCE)

    def states(self) -> tuple[ServerState, ...]:
        """Ask each server about itself."""
        return tuple(_state(client) for client in self.all)

    def append_each_write(self) -> bool:
        """Tell whether each write is in every server's file before it is answered."""
        settings = (c.config_get("appendonly", "appendfsync") for c in self.all)
        return all(
            (s.get("appendonly"), s.get("appendfsync")) == ("yes", _EACH_WRITE)
            for s in settings
        )

    def close(self) -> None:
        """Let go of connections; never raises."""
        for client in (self._first, *self._met.values()):
            client.close()

    def _someone(self) -> tuple[Any, bool]:
        """Find a server that answers, the named first; tell whether it has peers."""
        failures = []
        for client in (self._first, *self._met.values()):
            try:
                return client, bool(client.info("cluster").get("cluster_enabled"))
            except (redis.ConnectionError, redis.TimeoutError) as error:
                failures.append(error)
        raise failures[0]

    def _slots(self, asked: Any) -> Iterator[tuple[int, int, tuple[str, int]]]:  # noqa: ANN401 - redis-py's
        """
        Ask who holds which slots; an empty host is the one that was asked.

        Replicas are met, too: one of them may be all that is left.
        """
        own = asked.connection_pool.connection_kwargs.get("host", "")
        for low, high, *nodes in asked.cluster("SLOTS"):
            places = [(node[0] or own, node[1]) for node in nodes]
            for place in places:
                self._client(*place)
            yield low, high, places[0]

    def _client(self, host: str, port: int) -> Any:  # noqa: ANN401 - redis-py's
        known = self._met.get((host, port))
        if known is None:
            known = self._met[host, port] = beside(self._first, host, port)
        return known


def _state(client: Any) -> ServerState:  # noqa: ANN401 - redis-py's
    told: dict[str, Any] = client.info("server", "memory", "stats", "persistence")
    return ServerState(
        run_id=str(told.get("run_id", "")),
        evicted=int(told.get("evicted_keys", 0)),
        policy=str(told.get("maxmemory_policy", _KEEPS_EVERYTHING)),
        keeps_file=bool(told.get("aof_enabled", 0)),
    )
