"""
Find the rights that a user of OpenSearch lacks, without writing anything.

Each kind of call is made in a form that changes nothing: on a missing index, with
settings that no index can have, or on a condition that no document meets. OpenSearch
checks the user's rights before any of these.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import orjson
from opensearchpy import OpenSearch
from opensearchpy.exceptions import TransportError

from towpath.settings import Sink
from towpath.sinks.targets.search.client import BLOCKS, connect, translated

_FORBIDDEN: Final = 403
_SERVER_ERROR: Final = 500
# The credentials are refused as a whole, or the server asks for a pause.
_NO_ANSWER: Final = frozenset({401, 429})

# No document ever gets this sequence number.
_UNMET_CONDITION: Final = {"if_seq_no": 2**62, "if_primary_term": 1}
_ID: Final = "_rights"
# The pattern of the indexes behind an alias matches this name; no index has this name.
_INDEX: Final = "{route}-rights"
_MATCHES_NOTHING: Final[Mapping[str, Any]] = {"query": {"match_none": {}}}

# The security plugin checks these actions on the cluster, and some of them again on
# each shard, under names that begin with the same text.
_CLUSTER_ACTIONS: Final = (
    *("indices:data/write/bulk", "indices:data/read/mget"),
    *("indices:data/read/scroll", "cluster:monitor/main"),
)
_SHARD_ACTIONS: Final = ("indices:data/write/bulk*", "indices:data/read/mget*")

# The security plugin's list of missing actions.
_ACTIONS: Final = re.compile(r"no permissions for \[(\w\S*(?:, \S+)*)\] and ")


class Probe(NamedTuple):
    """
    One kind of call.

    Attributes:
        call: The name of the call in docs/rights.md.
        actions: The actions that a role must allow for it.
        path: Its path; ``{route}`` is replaced by the name of a route.
        body: Its body, with the same replacement; a list is written as lines.
        params: Its query parameters.
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
        # This setting cannot be changed on an existing index.
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
            {"index": {"_index": "{route}", "_id": _ID, **_UNMET_CONDITION}},
            {},
            {"delete": {"_index": "{route}", "_id": _ID, **_UNMET_CONDITION}},
        ],
        {"require_alias": "true"},
    ),
    # If the alias is missing, a bulk call does not report a lack of these rights.
    Probe(
        "PUT /{index}/_doc/{id}",
        ("indices:data/write/index",),
        f"/{{route}}/_doc/{_ID}",
        {},
        {"require_alias": "true", **_UNMET_CONDITION},
    ),
    Probe(
        "DELETE /{index}/_doc/{id}",
        ("indices:data/write/delete",),
        f"/{{route}}/_doc/{_ID}",
        None,
        _UNMET_CONDITION,
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
        _MATCHES_NOTHING,
    ),
    Probe(
        *("POST /_search/scroll", ("indices:data/read/scroll*",), "/_search/scroll"),
        {"scroll_id": "none"},
    ),
    # For the reader that verifies the sink.
    Probe(
        *("GET /{index}/_alias/{name}", ("indices:admin/aliases/get",)),
        "/{route}/_alias/{route}",
    ),
)


def missing_rights(sink: Sink, _prefix: str) -> Iterator[str]:
    """
    List the rights that the user in a sink's address lacks.

    Raises:
        UnavailableError: OpenSearch does not answer.
        SearchRefusedError: OpenSearch refuses the credentials.
    """
    client = connect(sink.url)
    calls: dict[str, None] = {}
    actions: dict[str, None] = {}
    routes: dict[str, None] = {}
    try:
        for route in sink.route:
            for probe in PROBES:
                missing = _refused(client, probe, route.name)
                if missing:
                    calls[probe.call] = routes[route.name] = None
                    actions |= dict.fromkeys(missing)
    finally:
        client.close()
    if calls:
        indexes = ", ".join(f"{name}, {name}-*" for name in routes)
        yield (
            f"the search index's user lacks the rights for {', '.join(calls)}: "
            f"grant its role {_scopes(actions, indexes)}"
        )


def _scopes(actions: Iterable[str], indexes: str) -> str:
    """List which actions a role must allow on the cluster, and which on indexes."""
    on_cluster = [a for a in actions if a.rstrip("*") in _CLUSTER_ACTIONS]
    on_indexes = [a for a in actions if a not in on_cluster or a in _SHARD_ACTIONS]
    parts = ((on_cluster, "the cluster"), (on_indexes, f"the indexes {indexes}"))
    return ", and ".join(
        f"{', '.join(named)} on {scope}" for named, scope in parts if named
    )


def _refused(client: OpenSearch, probe: Probe, route: str) -> Iterable[str]:
    """Return the actions that the user lacks for a call on a route's indexes."""
    with translated():
        try:
            response = client.transport.perform_request(
                probe.call.partition(" ")[0],
                probe.path.replace("{route}", quote(route, safe="")),
                params=dict(probe.params),
                body=_filled(probe.body, route),
            )
        except TransportError as error:
            if _is_inconclusive(error):
                raise
            if error.status_code != _FORBIDDEN or error.error in BLOCKS:
                # Refused for another reason: the user may make the call.
                return ()
            return _missing_actions(probe, error.info)
    return _missing_actions_of_items(probe, response)


def _is_inconclusive(error: TransportError) -> bool:
    status = error.status_code
    return not isinstance(status, int) or (
        status in _NO_ANSWER or status >= _SERVER_ERROR
    )


def _missing_actions_of_items(probe: Probe, response: Any) -> Iterable[str]:  # noqa: ANN401 - any JSON
    """Return the actions that a response reports as missing for single documents."""
    if not isinstance(response, Mapping):
        return ()
    items = [one for item in response.get("items", ()) for one in item.values()]
    errors = [one.get("error", {}) for one in (*items, *response.get("docs", ()))]
    return [
        action
        for error in errors
        if error.get("type") == "security_exception"
        for action in _missing_actions(probe, error)
    ]


def _missing_actions(probe: Probe, error: object) -> Iterable[str]:
    """
    Return the actions in the error that the probe does not list, then the probe's own.

    An error names only the first missing action, and the call may need more.
    """
    found = _ACTIONS.search(orjson.dumps(error, default=str).decode())
    named = found[1].split(", ") if found else ()
    known = probe.actions
    return (*(a for a in named if not any(fnmatchcase(a, k) for k in known)), *known)


def _filled(body: Any, route: str) -> Any:  # noqa: ANN401 - any JSON
    """Insert a route's name into a body; a list becomes lines."""
    if body is None:
        return None
    if isinstance(body, list):
        return "".join(f"{_text(line, route)}\n" for line in body)
    return _text(body, route)


def _text(body: Any, route: str) -> str:  # noqa: ANN401 - any JSON
    name = orjson.dumps(route).decode()[1:-1]
    return orjson.dumps(body).decode().replace("{route}", name)
