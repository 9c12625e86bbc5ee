"""The connection to Redis, and its errors turned into ours, by their class and code."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import redis

from towpath.sinks.errors import (
    CacheRefusedError,
    TargetBusyError,
    TargetUnavailableError,
)

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
