"""
What a user of the search index may not do, all of it at once, without writing anything.

Each kind of call that the sink makes is made in a form that changes nothing: on an
index that is not there, with settings that no index can have, or on a condition that no
document meets. The index looks at the user's rights before it looks at any of these.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import orjson
from opensearchpy import OpenSearch
from opensearchpy.exceptions import TransportError

from towpath.settings import Sink
from towpath.sinks.targets.search.client import BLOCKS, connect, translated

_FORBIDDEN: Final = 403
_SERVER_ERROR: Final = 500
# The credentials are refused as a whole; the index asks for a pause.
_NO_ANSWER: Final = frozenset({401, 429})

# No write of a document ever gets this number.
_UNMET: Final = {"if_seq_no": 2**62, "if_primary_term": 1}
_ID: Final = "_rights"
# The indexes behind an alias match this; it is the name of none.
_INDEX: Final = "{route}-rights"
_NOTHING: Final[Mapping[str, Any]] = {"query": {"match_none": {}}}

# What the security plugin says is missing.
_ACTIONS: Final = re.compile(r"no permissions for \[(\w\S*(?:, \S+)*)\] and ")


class Probe(NamedTuple):
    """
    One kind of call.

    Attributes:
        call: As docs/rights.md names it.
        actions: What a role must allow for it.
        path: Where it is made; ``{route}`` stands for the name of a route.
        body: What is sent, the same way; lines, if it is a list.
        params: What stands behind the path.
    """

    call: str
    actions: tuple[str, ...]
    path: str
    body: Any = None
    params: Mapping[str, Any] = {}


PROBES: Final = (
    Probe("GET /", ("cluster:monitor/main",), "/"),
    Probe("GET /{index}", ("indices:admin/get",), "/{route}"),
    Probe(
        "PUT /{index}",
        ("indices:admin/create", "indices:admin/aliases"),
        f"/{_INDEX}",
        {"settings": {"number_of_shards": 0}, "aliases": {"{route}": {}}},
    ),
    Probe(
        "GET /{index}/_mapping", ("indices:admin/mappings/get",), f"/{_INDEX}/_mapping"
    ),
    Probe(
        *("PUT /{index}/_mapping", ("indices:admin/mapping/put",)),
        f"/{_INDEX}/_mapping",
        {"properties": {}},
    ),
    Probe(
        *("PUT /{index}/_settings", ("indices:admin/settings/update",)),
        f"/{_INDEX}/_settings",
        # No index that is there can change it.
        {"index": {"number_of_shards": 1}},
    ),
    Probe(
        "POST /_bulk",
        (
            *("indices:data/write/bulk*", "indices:data/write/index"),
            "indices:data/write/delete",
        ),
        "/_bulk",
        [
            {"index": {"_index": "{route}", "_id": _ID, **_UNMET}},
            {},
            {"delete": {"_index": "{route}", "_id": _ID, **_UNMET}},
        ],
        {"require_alias": "true"},
    ),
    # Of an alias that is not there yet, a bulk call does not tell these.
    Probe(
        "PUT /{index}/_doc/{id}",
        ("indices:data/write/index",),
        f"/{{route}}/_doc/{_ID}",
        {},
        {"require_alias": "true", **_UNMET},
    ),
    Probe(
        "DELETE /{index}/_doc/{id}",
        ("indices:data/write/delete",),
        f"/{{route}}/_doc/{_ID}",
        None,
        _UNMET,
    ),
    Probe(
        *("POST /_mget", ("indices:data/read/mget*",), "/_mget"),
        {"docs": [{"_index": "{route}", "_id": _ID}]},
    ),
    Probe("POST /{index}/_refresh", ("indices:admin/refresh*",), f"/{_INDEX}/_refresh"),
    Probe(
        "POST /{index}/_delete_by_query",
        (
            *("indices:data/write/delete/byquery", "indices:data/read/search"),
            "indices:data/read/scroll*",
        ),
        f"/{_INDEX}/_delete_by_query",
        _NOTHING,
    ),
    Probe(
        *("POST /_search/scroll", ("indices:data/read/scroll*",), "/_search/scroll"),
        {"scroll_id": "none"},
    ),
    # Whoever checks the sink reads it, too.
    Probe("GET /_alias/{name}", ("indices:admin/aliases/get",), "/_alias/{route}"),
)


def missing_rights(sink: Sink, _prefix: str) -> Iterator[str]:
    """
    List what the user of a sink's address may not do.

    Raises:
        UnavailableError: The index does not answer.
        SearchRefusedError: It refuses the credentials.
    """
    client = connect(sink.url)
    calls: dict[str, None] = {}
    actions: dict[str, None] = {}
    routes: dict[str, None] = {}
    try:
        for route in sink.route:
            for probe in PROBES:
                lacking = _refused(client, probe, route.name)
                if lacking:
                    calls[probe.call] = routes[route.name] = None
                    actions |= dict.fromkeys(lacking)
    finally:
        client.close()
    if calls:
        indexes = ", ".join(f"{name}, {name}-*" for name in routes)
        yield (
            f"the search index's user may not call {', '.join(calls)}: "
            f"allow its role {', '.join(actions)} on the indexes {indexes}"
        )


def _refused(client: OpenSearch, probe: Probe, route: str) -> Iterable[str]:
    """Return the actions that are missing for a call on a route's indexes."""
    with translated():
        try:
            answer = client.transport.perform_request(
                probe.call.partition(" ")[0],
                probe.path.replace("{route}", quote(route, safe="")),
                params=dict(probe.params),
                body=_filled(probe.body, route),
            )
        except TransportError as error:
            if _tells_nothing(error):
                raise
            if error.status_code != _FORBIDDEN or error.error in BLOCKS:
                # The call itself is refused: the user may make it.
                return ()
            return _lacking(probe, error.info)
    return _lacking_in_items(probe, answer)


def _tells_nothing(error: TransportError) -> bool:
    status = error.status_code
    return not isinstance(status, int) or (
        status in _NO_ANSWER or status >= _SERVER_ERROR
    )


def _lacking_in_items(probe: Probe, answer: Any) -> Iterable[str]:  # noqa: ANN401 - any JSON
    """Look at what the index says of each document of a call."""
    if not isinstance(answer, Mapping):
        return ()
    items = [one for item in answer.get("items", ()) for one in item.values()]
    errors = [one.get("error", {}) for one in (*items, *answer.get("docs", ()))]
    return [
        action
        for error in errors
        if error.get("type") == "security_exception"
        for action in _lacking(probe, error)
    ]


def _lacking(probe: Probe, said: object) -> Iterable[str]:
    """Return the actions that the index says are missing, or else all of the call."""
    found = _ACTIONS.search(orjson.dumps(said, default=str).decode())
    return found[1].split(", ") if found else probe.actions


def _filled(body: Any, route: str) -> Any:  # noqa: ANN401 - any JSON
    """Put a route's name into a body; ``None`` stays, lines become one text."""
    if body is None:
        return None
    if isinstance(body, list):
        return "".join(f"{_text(line, route)}\n" for line in body)
    return _text(body, route)


def _text(body: Any, route: str) -> str:  # noqa: ANN401 - any JSON
    name = orjson.dumps(route).decode()[1:-1]
    return orjson.dumps(body).decode().replace("{route}", name)
