"""
The connection to the Redis servers, and the translation of redis-py's errors into ours.

There is either one server or the primaries of a cluster. The servers of the slots
are looked up when a sink is opened, and again after each failure: slots move and
replicas take over.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import redis

from towpath.schemas.failure import ConfigurationError
from towpath.sinks.errors import (
    CacheRefusedError,
    TargetBusyError,
    TargetUnavailableError,
)
from towpath.sinks.targets.cache.schema import (
    SLOTS,
    scan_pattern,
    slot_keys,
    slot_of,
)

ANSWER_WITHIN_S: Final = 10.0

# A full cache remains full until an operator adds memory: more frequent retries only
# add load.
FULL_RETRY_AFTER_S: Final = 5.0

# Loading a file, moving a slot and promoting a replica take seconds.
SHORTLY_RETRY_AFTER_S: Final = 0.5

NO_FUNCTION: Final = "Function not found"

_MOVING: Final = (
    redis.exceptions.MovedError,
    redis.exceptions.AskError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
)

# The append-only file was turned off, or the server became a replica.
_NO_FILE: Final = "WAITAOF cannot be used"

# Error codes without a class in redis-py: another script is running, the file cannot be
# written, there are too few replicas.
_PAUSES: Final = ("BUSY ", "MISCONF", "NOREPLICAS")


def connect(url: str) -> Any:  # noqa: ANN401 - redis-py types its results as sync or async
    """
    Return a client that does not retry: the driver does so, and logs each retry.

    Raises:
        ConfigurationError: The url is not that of a server.
    """
    try:
        return redis.Redis.from_url(
            url,
            decode_responses=True,
            # Keys and fields of other programs need not be UTF-8.
            encoding_errors="surrogateescape",
            socket_timeout=ANSWER_WITHIN_S,
            socket_connect_timeout=ANSWER_WITHIN_S,
            retry=None,
        )
    except ValueError:
        message = "the url of the cache is not redis://host:port, nor rediss or unix"
        # Without its cause, which may quote a password.
        raise ConfigurationError([message]) from None


def connect_to(client: Any, host: str, port: int) -> Any:  # noqa: ANN401 - see connect
    """Return a client for another server, with the first client's credentials."""
    pool = client.connection_pool
    given = {**pool.connection_kwargs, "host": host, "port": port, "db": 0}
    kind = pool.connection_class
    if given.pop("path", None) is not None:
        # The first server is reached through a Unix socket; others have an address.
        kind = redis.Connection
    other = redis.ConnectionPool(connection_class=kind, **given)
    return redis.Redis.from_pool(other)


@contextmanager
def translated() -> Iterator[None]:
    """
    Turn redis-py's errors into ours.

    Raises:
        TargetBusyError: The server is loading its file, is full, is moving slots, or
            accepts no writes for now.
        TargetUnavailableError: The server does not answer, is a replica, or has no
            append-only file to wait for.
        CacheRefusedError: The server returns any other error.
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
        raise as_target_error(error) from error
    except redis.RedisError as error:
        # For example, the response of a server that speaks a different protocol.
        message = f"the cache does not answer: {type(error).__name__}: {error}"
        raise TargetUnavailableError(message) from error


def as_target_error(
    error: redis.ResponseError,
) -> TargetBusyError | TargetUnavailableError | CacheRefusedError:
    """Return our error for an error response of the server."""
    text = str(error)
    if isinstance(error, redis.OutOfMemoryError) or "OOM" in text:
        message = "the cache's memory is full; raise its maxmemory"
        return TargetBusyError(message, retry_after_s=FULL_RETRY_AFTER_S)
    if isinstance(error, _MOVING):
        message = "the cache is moving slots"
        return TargetBusyError(message, retry_after_s=SHORTLY_RETRY_AFTER_S)
    if isinstance(error, redis.ReadOnlyError):
        message = "the cache is currently a replica, which accepts no writes"
        return TargetUnavailableError(message)
    if text.startswith(_PAUSES):
        message = f"the cache currently accepts no writes: {text}"
        return TargetBusyError(message, retry_after_s=FULL_RETRY_AFTER_S)
    if text.startswith(_NO_FILE):
        message = f"the cache has no append-only file to wait for: {text}"
        return TargetUnavailableError(message)
    return CacheRefusedError(f"the cache refused a call: {text}")


# A call of this size takes a few milliseconds of the server's time.
SCANNED_AT_ONCE: Final = 1000

_KEEPS_EVERYTHING: Final = "noeviction"
_EACH_WRITE: Final = "always"


class ServerState(NamedTuple):
    """
    The state that a server reports.

    Attributes:
        run_id: Changes with each start.
        evicted: Keys evicted since the start because the memory was full.
        policy: Its reaction to full memory.
        keeps_file: Whether each write is appended to a file.
    """

    run_id: str
    evicted: int
    policy: str
    keeps_file: bool

    @property
    def may_evict(self) -> bool:
        """Whether the server may evict keys."""
        return self.policy != _KEEPS_EVERYTHING


class Servers:
    """One server, or the cluster that it belongs to."""

    def __init__(self, url: str) -> None:
        """Store the address of one of the servers; nothing is opened yet."""
        self._first = connect(url)
        self._peers: dict[tuple[str, int], Any] = {}
        self._of_slot: list[Any] = []
        self.is_cluster = False
        self.all: tuple[Any, ...] = ()

    @property
    def first(self) -> Any:  # noqa: ANN401 - redis-py's
        """The client of the server at the configured address."""
        return self._first

    def discover(self) -> None:
        """Look up the servers and their slots."""
        seed, self.is_cluster = self._reachable()
        if not self.is_cluster:
            self.all = (self._first,)
            return
        of_slot: list[Any] = [None] * SLOTS
        for low, high, primary in self._slots(seed):
            client = self._client(*primary)
            of_slot[low : high + 1] = [client] * (high + 1 - low)
        self._of_slot = of_slot
        # A server without slots is not used; the others are in the order of their
        # slots.
        self.all = tuple(dict.fromkeys(c for c in of_slot if c is not None))

    def client_of(self, key: str) -> Any:  # noqa: ANN401 - redis-py's
        """
        Return the client of the server that holds a key.

        Raises:
            TargetBusyError: No server of the cluster has the key's slot.
        """
        if not self.is_cluster:
            return self._first
        client = self._of_slot[slot_of(key)]
        if client is None:
            message = "the cache has no server for a slot"
            raise TargetBusyError(message, retry_after_s=SHORTLY_RETRY_AFTER_S)
        return client

    def scan(self, prefix: str, route: str) -> Iterator[str]:
        """
        Yield the keys of all rows of a route; a key may be repeated.

        A key may be missed if its slot moves meanwhile to a server that has already
        been read. The scan then ends with the error of a slot that has moved or is
        moving.
        """
        pattern = scan_pattern(prefix, route)
        for client in self.all:
            yield from client.scan_iter(pattern, count=SCANNED_AT_ONCE)
        if self.is_cluster:
            self._check_slots(prefix)

    def _check_slots(self, prefix: str) -> None:
        """
        Check that every slot is on its server, and is not moving.

        A server that is giving a slot away still serves the keys that it has. So
        each slot is checked with a key that does not exist.
        """
        by_client: dict[Any, Any] = {c: c.pipeline(transaction=False) for c in self.all}
        for slot, key in slot_keys(prefix).items():
            if (client := self._of_slot[slot]) is not None:
                by_client[client].exists(key)
        for pipeline in by_client.values():
            pipeline.execute()

    def states(self) -> tuple[ServerState, ...]:
        """Return the state of each server."""
        return tuple(_state(client) for client in self.all)

    def append_each_write(self) -> bool:
        """
        Return whether every server writes its file before it responds.

        A server that does not show its configuration counts as one that does not.
        """
        try:
            settings = [c.config_get("appendonly", "appendfsync") for c in self.all]
        except redis.ResponseError:
            return False
        return all(
            (s.get("appendonly"), s.get("appendfsync")) == ("yes", _EACH_WRITE)
            for s in settings
        )

    def close(self) -> None:
        """Close the connections; never raises."""
        for client in (self._first, *self._peers.values()):
            client.close()

    def _reachable(self) -> tuple[Any, bool]:
        """Return a server that answers, and whether it is part of a cluster."""
        failures = []
        for client in (self._first, *self._peers.values()):
            try:
                return client, bool(client.info("cluster").get("cluster_enabled"))
            except (redis.ConnectionError, redis.TimeoutError) as error:
                failures.append(error)
        raise failures[0]

    def _slots(self, seed: Any) -> Iterator[tuple[int, int, tuple[str, int]]]:  # noqa: ANN401 - redis-py's
        """
        Yield ranges of slots, each with its primary.

        An empty host means the server that was queried. Clients of replicas are kept,
        too: a replica may be the only server left.
        """
        own = seed.connection_pool.connection_kwargs.get("host", "localhost")
        for low, high, *nodes in seed.cluster("SLOTS"):
            addresses = [(node[0] or own, node[1]) for node in nodes]
            for address in addresses:
                self._client(*address)
            yield low, high, addresses[0]

    def _client(self, host: str, port: int) -> Any:  # noqa: ANN401 - redis-py's
        known = self._peers.get((host, port))
        if known is None:
            known = self._peers[host, port] = connect_to(self._first, host, port)
        return known


def _state(client: Any) -> ServerState:  # noqa: ANN401 - redis-py's
    values: dict[str, Any] = client.info("server", "memory", "stats", "persistence")
    return ServerState(
        run_id=str(values.get("run_id", "")),
        evicted=int(values.get("evicted_keys", 0)),
        policy=str(values.get("maxmemory_policy", _KEEPS_EVERYTHING)),
        keeps_file=bool(values.get("aof_enabled", 0)),
    )
