"""
What a user of the cache may not do, all of it at once, without writing anything.

The server says what a user may do to its administrators only. So each call is made in a
form that changes nothing: on a name that no row has, or with arguments that the command
refuses itself, which it looks at after the user's rights.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import redis

from towpath.settings import Sink
from towpath.sinks.key_text import key_text
from towpath.sinks.targets.cache.client import Servers, translated
from towpath.sinks.targets.cache.schema import floors_place, route_place, witness_places

# Of any name, of the sink's names, and what only dropping the sink's data takes.
_ANY_NAME: Final = (
    ("INFO", "server"),
    ("SCAN", "0"),
    ("FUNCTION", "LOAD", ""),
    ("FCALL", "towpath_no_such_function", "0"),
)
_NAMED: Final = (
    ("HGETALL", "{key}"),
    ("HGET", "{key}", "f"),
    ("HMGET", "{key}", "f"),
    ("HEXISTS", "{key}", "f"),
    ("HLEN", "{key}"),
    ("EXISTS", "{key}"),
    ("HSET", "{key}", "f", "v", "without a value"),
    ("HINCRBY", "{key}", "f", "no number"),
    ("HDEL", "{key}", "f"),
    ("EXPIRE", "{key}", "1"),
    ("DEL", "{key}"),
    ("UNLINK", "{key}"),
)
_CLUSTER: Final = ("CLUSTER", "SLOTS")
# What is said of a name; the rest is said of a command.
_OF_A_NAME: Final = "access"


def missing_rights(sink: Sink, prefix: str) -> Iterator[str]:
    """
    List what the user of a sink's address may not do.

    Args:
        sink: The sink.
        prefix: What every key begins with.

    Raises:
        UnavailableError: The cache does not answer.
        CacheRefusedError: It refuses the credentials.
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
    # No row's name looks like it, and nothing is ever written there.
    key = f"{key_text((prefix,))}:_rights"
    first = servers.first
    is_known = _refusal(first, ("INFO", "cluster")) is None
    if is_known:
        is_cluster = bool(first.info("cluster").get("cluster_enabled"))
        if is_cluster and _refusal(first, _CLUSTER) is not None:
            yield "CLUSTER SLOTS"
            return
        servers.look()
    for call in (*_ANY_NAME, *_NAMED):
        words = tuple(word.replace("{key}", key) for word in call)
        asked = servers.of(key) if is_known else first
        refusal = _refusal(asked, words)
        if refusal is not None and _OF_A_NAME not in refusal:
            yield " ".join(words[:2]) if words[0] == "FUNCTION" else words[0]


def _refused_names(servers: Servers, sink: Sink, prefix: str) -> Iterator[str]:
    """Look at each kind of name; what is asked there is refused by the command."""
    if not servers.all:
        return
    yield from (
        place
        for place in _names(servers, sink, prefix)
        if _OF_A_NAME
        in (_refusal(servers.of(place), ("HSET", place, "f", "v", "none")) or "")
        or _OF_A_NAME in (_refusal(servers.of(place), ("HGETALL", place)) or "")
    )


def _names(servers: Servers, sink: Sink, prefix: str) -> Iterable[str]:
    yield floors_place(prefix)
    yield witness_places(prefix, sink.name, is_cluster=servers.is_cluster)[0]
    for route in sink.route:
        yield f"{route_place(prefix, route.name)}1"


def _refusal(client: Any, words: tuple[str, ...]) -> str | None:  # noqa: ANN401 - redis-py's
    """Return what the server says if the user may not do it; none: he may."""
    try:
        client.execute_command(*words)
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
