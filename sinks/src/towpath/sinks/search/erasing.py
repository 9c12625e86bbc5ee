"""
Takes away what a sink wrote into OpenSearch: its aliases and indexes, or documents.

An index is a sink's by its name and by its mappings: one that someone else has named
likewise stays.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from opensearchpy import OpenSearch

from towpath.schemas.clock import Clock, Deadline
from towpath.settings import Sink
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.search.client import connect, translated
from towpath.sinks.search.mapping import DELETED_FIELD, POSITION_FIELD, is_own

_KEPT_FOR: Final = "index.gc_deletes"
_FORGET_AT_ONCE: Final = "0s"
# The index looks at its clock five times a second.
_FORGOTTEN_WITHIN_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.2
_CONFLICT: Final = 409
# Below every position of a change.
_LOWEST: Final = "0000000000000000.-"


def erase(sink: Sink, _: str) -> None:
    """
    Take a sink's indexes away; safe to repeat. Nobody may write meanwhile.

    Raises:
        UnavailableError: The index does not answer: do it again.
    """
    client = connect(sink.url)
    try:
        with translated():
            for route in sink.route:
                # Also those that a rebuild has begun, and no alias names yet.
                ours = re.compile(re.escape(route.name) + r"-[0-9]+")
                named = client.indices.get(
                    index=f"{route.name}-*",
                    params={"expand_wildcards": "all", "allow_no_indices": "true"},
                )
                for index, told in sorted(named.items()):
                    if ours.fullmatch(index) and is_own(told["mappings"]):
                        client.indices.delete(index=index)
    finally:
        client.close()


def erase_documents(
    client: OpenSearch, indexes: Iterable[str], ids: Sequence[str], clock: Clock
) -> None:
    """
    Take documents away, whatever their version; safe to repeat.

    An index remembers for a minute at which version a document was deleted, and refuses
    what comes below. It is made to forget at once.

    Raises:
        UnavailableError: The index does not answer: do it again.
    """
    for index in indexes:
        with translated():
            told = client.indices.get(index=index, params={"flat_settings": "true"})
            client.indices.put_settings(index=index, body={_KEPT_FOR: _FORGET_AT_ONCE})
        try:
            _delete(client, index, ids)
            _forget(client, index, ids, clock)
        finally:
            before = told[index]["settings"].get(_KEPT_FOR)
            # An end in the midst of an earlier call has left ours.
            kept_for = None if before == _FORGET_AT_ONCE else before
            with translated():
                client.indices.put_settings(index=index, body={_KEPT_FOR: kept_for})


def _delete(client: OpenSearch, index: str, ids: Sequence[str]) -> None:
    with translated():
        places = [{"_index": index, "_id": id_} for id_ in ids]
        found = client.mget(body={"docs": places}, params={"_source": "false"})["docs"]
        lines = [
            {"delete": _place(index, one["_id"], one["_version"])}
            for one in found
            if one.get("found")
        ]
        if lines:
            client.bulk(body=lines)


def _forget(client: OpenSearch, index: str, ids: Sequence[str], clock: Clock) -> None:
    """Write a tombstone below all positions: it shows that a version is forgotten."""
    own = {POSITION_FIELD: _LOWEST, DELETED_FIELD: True}
    deadline = Deadline(clock, _FORGOTTEN_WITHIN_S)
    left = list(ids)
    while left:
        places = [_place(index, id_, 0) for id_ in left]
        lines = [line for place in places for line in ({"index": place}, own)]
        with translated():
            client.indices.refresh(index=index)
            answer = client.bulk(body=lines)
        said = [item["index"] for item in answer["items"]]
        left = [one["_id"] for one in said if one["status"] == _CONFLICT]
        others = [one for one in said if one.get("error") and one["_id"] not in left]
        if others or (left and deadline.passed()):
            message = f"{len(left) + len(others)} documents of {index} are not erased"
            raise TargetUnavailableError(message)
        if left:
            clock.wait(_LOOK_EVERY_S)


def _place(index: str, id_: str, version: int) -> dict[str, Any]:
    place = {"_index": index, "_id": id_}
    return {**place, "version": version, "version_type": "external_gte"}
