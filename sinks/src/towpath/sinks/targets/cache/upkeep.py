"""
Remove a sink's data; check the rights of the cache's user, and the cache's health.

The data are rows, tombstones, floors and witnesses. The server shows a user's rights
only to administrators, so the check sends each command in a form that changes nothing:
for a key that no row has, or with arguments that the command refuses. The server checks
a user's rights before the arguments.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import redis

from towpath.schemas.clock import Clock
from towpath.schemas.findings import CheckFinding, clock_findings
from towpath.settings import Sink
from towpath.sinks.key_text import key_text
from towpath.sinks.targets.cache.client import SCANNED_AT_ONCE, Servers, translated
from towpath.sinks.targets.cache.schema import (
    floors_key,
    route_key_prefix,
    witness_keys,
)
from towpath.sinks.targets.health import CacheHealth, cache_findings

# Commands without a key, then commands on the sink's keys.
_KEYLESS: Final = (
    ("INFO", "server"),
    ("SCAN", "0"),
    ("FUNCTION", "LOAD", ""),
    ("FCALL", "towpath_no_such_function", "0"),
)
_KEYED: Final = (
    ("HGETALL", "{key}"),
    ("HGET", "{key}", "f"),
    ("HMGET", "{key}", "f"),
    ("HEXISTS", "{key}", "f"),
    ("HLEN", "{key}"),
    ("EXISTS", "{key}"),
    ("HSET", "{key}", "f", "v", "without a value"),
    ("HINCRBY", "{key}", "f", "not a number"),
    ("HDEL", "{key}", "f"),
    ("EXPIRE", "{key}", "1"),
    ("DEL", "{key}"),
    ("UNLINK", "{key}"),
)
_CLUSTER: Final = ("CLUSTER", "SLOTS")
# Needed only for servers that write each change to their file before they respond.
_AWAITED: Final = ("WAITAOF", "not a number", "0", "0")
# An error about a key contains these words; one about a command names the user.
_KEY_REFUSAL: Final = "permissions to access"


def erase(sink: Sink, prefix: str) -> None:
    """
    Delete a sink's data; safe to repeat. The sink must not be running.

    Raises:
        UnavailableError: The cache does not answer, or is busy; try again.
        CacheRefusedError: The cache refuses the credentials or a call.
    """
    servers = Servers(sink.url)
    try:
        with translated():
            servers.discover()
            for route in sink.route:
                _unlink(servers, servers.scan(prefix, route.name))
                floors = floors_key(prefix)
                servers.client_of(floors).hdel(floors, route.name)
            is_cluster = servers.is_cluster
            for key in witness_keys(prefix, sink.name, is_cluster=is_cluster):
                servers.client_of(key).unlink(key)
    finally:
        servers.close()


def _unlink(servers: Servers, keys: Iterable[str]) -> None:
    remaining = iter(keys)
    pipelines = {c: c.pipeline(transaction=False) for c in servers.all}
    while batch := list(islice(remaining, SCANNED_AT_ONCE)):
        # One command per key, because a cluster forbids keys of different slots in one
        # command; the commands are sent together.
        for key in batch:
            pipelines[servers.client_of(key)].unlink(key)
        for pipeline in pipelines.values():
            pipeline.execute()


def health(sink: Sink, clock: Clock) -> Iterator[CheckFinding]:
    """
    Check the servers of a cache, and their clocks.

    Raises:
        UnavailableError: The cache does not answer.
        CacheRefusedError: The cache refuses the credentials or INFO.
    """
    servers = Servers(sink.url)
    try:
        with translated():
            servers.discover()
            found = []
            for client in servers.all:
                before = clock.now()
                state = _health(client)
                found.append(state)
                if state.now is not None:
                    yield from clock_findings(
                        state.address, state.now, before, clock.now()
                    )
    finally:
        servers.close()
    yield from cache_findings(sink, found)


def _health(client: Any) -> CacheHealth:  # noqa: ANN401 - redis-py's
    values: dict[str, Any] = {}
    # One section per call: a server that is too old refuses several in one call.
    for section in ("server", "memory", "persistence"):
        values |= client.info(section)
    statuses = ("rdb_last_bgsave_status", "aof_last_write_status")
    saves = _if_permitted(client.config_get, "save")
    now = _if_permitted(client.time)
    return CacheHealth(
        address=_address(client.connection_pool.connection_kwargs),
        version=str(values.get("redis_version", "")),
        policy=str(values.get("maxmemory_policy", "noeviction")),
        used_bytes=int(values.get("used_memory", 0)),
        bound_bytes=int(values.get("maxmemory", 0)),
        keeps_file=bool(values.get("aof_enabled", 0)),
        saves=None if saves is None else bool(saves.get("save")),
        file_failed=any(values.get(name, "ok") != "ok" for name in statuses),
        now=None if now is None else datetime.fromtimestamp(now[0] + now[1] / 1e6, UTC),
    )


def _address(connection: Mapping[str, Any]) -> str:
    """Return the address of a server: host and port, or the path of its socket."""
    if "path" in connection:
        return str(connection["path"])
    # The defaults are those of redis-py.
    return f"{connection.get('host', 'localhost')}:{connection.get('port', 6379)}"


def _if_permitted(call: Any, *arguments: str) -> Any:  # noqa: ANN401 - redis-py's
    """Return the response to a call; ``None`` if the server refuses the call."""
    try:
        return call(*arguments)
    except redis.ResponseError:  # Many hosted servers have no CONFIG.
        return None


def missing_rights(sink: Sink, prefix: str) -> Iterator[str]:
    """
    List the rights that the user in a sink's address lacks.

    Args:
        sink: The sink, whose address names the user and whose routes name the keys.
        prefix: The prefix of every key.

    Raises:
        UnavailableError: The cache does not answer.
        CacheRefusedError: The cache refuses the credentials.
    """
    servers = Servers(sink.url)
    try:
        with translated():
            calls = list(dict.fromkeys(_refused_calls(servers, prefix)))
            names = list(_refused_names(servers, sink, prefix))
    finally:
        servers.close()
    if calls:
        yield (
            f"the cache's user may not run {', '.join(calls)}: "
            f"ACL SETUSER <user> {' '.join(map(_grant, calls))}"
        )
    if names:
        yield (
            f"the cache's user may not read and write {', '.join(names)}: "
            f"ACL SETUSER <user> ~{key_text((prefix,))}:*"
        )


def _refused_calls(servers: Servers, prefix: str) -> Iterator[str]:
    # No row has this key, and nothing is ever written to it.
    key = f"{key_text((prefix,))}:_rights"
    first = servers.first
    is_known = _refusal(first, ("INFO", "cluster")) is None
    if is_known:
        is_cluster = bool(first.info("cluster").get("cluster_enabled"))
        if is_cluster and _refusal(first, _CLUSTER) is not None:
            yield "CLUSTER SLOTS"
            return
        servers.discover()
    for call in (*_KEYLESS, *_KEYED):
        command = tuple(part.replace("{key}", key) for part in call)
        client = servers.client_of(key) if is_known else first
        refusal = _refusal(client, command)
        if refusal is not None and _KEY_REFUSAL not in refusal:
            yield " ".join(command[:2]) if command[0] == "FUNCTION" else command[0]
    if is_known and servers.append_each_write() and _refusal(first, _AWAITED):
        yield _AWAITED[0]


def _refused_names(servers: Servers, sink: Sink, prefix: str) -> Iterator[str]:
    """Yield the keys, one of each kind, that the user cannot both read and write."""
    if not servers.all:
        return
    yield from (
        key
        for key in _names(servers, sink, prefix)
        if _KEY_REFUSAL
        in (_refusal(servers.client_of(key), ("HSET", key, "f", "v", "none")) or "")
        or _KEY_REFUSAL in (_refusal(servers.client_of(key), ("HGETALL", key)) or "")
    )


def _names(servers: Servers, sink: Sink, prefix: str) -> Iterable[str]:
    yield floors_key(prefix)
    yield witness_keys(prefix, sink.name, is_cluster=servers.is_cluster)[0]
    for route in sink.route:
        yield f"{route_key_prefix(prefix, route.name)}1"


def _refusal(client: Any, command: tuple[str, ...]) -> str | None:  # noqa: ANN401 - redis-py's
    """Return the server's refusal of a command; ``None`` if the user may run it."""
    try:
        client.execute_command(*command)
    except redis.exceptions.NoPermissionError as error:
        return str(error)
    except redis.AuthenticationError:
        raise
    except redis.ResponseError:
        # The command itself refuses the arguments: the user may run it.
        return None
    return None


def _grant(call: str) -> str:
    return "+" + call.lower().replace(" ", "|")
