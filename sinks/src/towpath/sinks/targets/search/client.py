"""
The connection to OpenSearch, and its errors turned into ours, by their status.

Which index stands behind an alias.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final, NamedTuple

import orjson
from opensearchpy import JSONSerializer, OpenSearch
from opensearchpy.exceptions import ConnectionError as NoConnectionError
from opensearchpy.exceptions import SerializationError, TransportError

from towpath.sinks.errors import (
    BatchRefusedError,
    ForeignIndexError,
    IndexBlockedError,
    IndexGoneError,
    SearchRefusedError,
    TargetBusyError,
    TargetUnavailableError,
)
from towpath.sinks.targets.search.schema import FOLLOWS_MEMO

ANSWER_WITHIN_S: Final = 30.0

# The index says 429 when its queues are full; they drain in a second or so.
FULL_RETRY_AFTER_S: Final = 1.0

# A person must free the disk, or lift what another person has set.
BLOCKED_RETRY_AFTER_S: Final = 5.0

# A full disk is told with 429, other blocks with 403, a closed index with 400.
BLOCKS: Final = frozenset({"cluster_block_exception", "index_closed_exception"})
_GONE: Final = "index_not_found_exception"

# Only these parts of a bulk answer are asked for: it is a tenth of the whole.
_BULK: Final = {
    "require_alias": "true",
    "filter_path": "errors,items.*.status,items.*.error.type,items.*.error.reason",
}

_BAD_REQUEST: Final = 400
_TOO_LARGE: Final = 413
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500


class _QuickSerializer(JSONSerializer):
    """Reads answers quickly; a document's numbers may lose digits."""

    def loads(self, s: str) -> Any:  # noqa: ANN401 - any JSON
        try:
            return orjson.loads(s)
        except orjson.JSONDecodeError as error:
            raise SerializationError(s, error) from error


class _ExactSerializer(JSONSerializer):
    """Reads every number with all of its digits."""

    def loads(self, s: str) -> Any:  # noqa: ANN401 - any JSON
        try:
            return json.loads(s, parse_float=Decimal)
        except (ValueError, TypeError) as error:
            raise SerializationError(s, error) from error


def connect(url: str, *, is_exact: bool = False, at_once: int = 1) -> OpenSearch:
    """
    Return a client that does not retry by itself: the sink does, item by item.

    Args:
        url: The index's address.
        is_exact: Numbers with a point come as decimals, not as doubles.
        at_once: How many threads use it.
    """
    # It logs each answer that is no success; they are all translated, or meant.
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)
    return OpenSearch(
        hosts=[url],
        timeout=ANSWER_WITHIN_S,
        max_retries=0,
        retry_on_timeout=False,
        serializer=_ExactSerializer() if is_exact else _QuickSerializer(),
        pool_maxsize=at_once + 1,
    )


def send(client: OpenSearch, body: bytes) -> Mapping[str, Any] | None:
    """
    Make one bulk call and return its answer; ``None`` if it is too large.

    Raises:
        TargetBusyError: The index asks for a pause.
        TargetUnavailableError: It does not answer, or only with a failure of its own.
        BatchRefusedError: It cannot read the call; some document of it is why.
        SearchRefusedError: It refuses the call, and will again.
    """
    with translated():
        try:
            answer: Mapping[str, Any] = client.bulk(body=body, params=dict(_BULK))
        except TransportError as error:
            if error.status_code == _TOO_LARGE:
                return None
            if error.status_code == _BAD_REQUEST and error.error not in BLOCKS:
                message = f"the search index cannot read a call: {error.error}"
                raise BatchRefusedError(message) from error
            raise
    return answer


@contextmanager
def translated() -> Iterator[None]:
    """
    Turn opensearch-py's errors into ours.

    Raises:
        TargetBusyError: The index asks for a pause.
        IndexBlockedError: It takes no writes for now.
        IndexGoneError: There is no such index any more.
        TargetUnavailableError: It does not answer, or only with a failure of its own.
        SearchRefusedError: It refuses the call, and will again.
    """
    try:
        yield
    except NoConnectionError as error:
        message = "the search index does not answer"
        raise TargetUnavailableError(message) from error
    except SerializationError as error:
        message = "the search index's answer cannot be read"
        raise TargetUnavailableError(message) from error
    except TransportError as error:
        if error.error in BLOCKS:
            raise blocked(error.error) from error
        if error.error == _GONE:
            message = "an index of the sink went away"
            raise IndexGoneError(message) from error
        status = int(error.status_code)
        if status == _TOO_MANY:
            message = "the search index asks for a pause"
            raise TargetBusyError(message, retry_after_s=FULL_RETRY_AFTER_S) from error
        message = f"the search index answers {status}: {error.error}"
        if status >= _SERVER_ERROR:
            raise TargetUnavailableError(message) from error
        raise SearchRefusedError(message) from error


def blocked(reason: str) -> IndexBlockedError:
    """Make the failure of an index that takes no writes for now."""
    message = f"the search index takes no writes: {reason}"
    return IndexBlockedError(message, retry_after_s=BLOCKED_RETRY_AFTER_S)


# As many names as fit the 4 KB that a server takes as the first line of a request.
_NAMES_PER_CALL: Final = 12

_ASKED: Final = {
    "ignore_unavailable": "true",
    "filter_path": "*.aliases,*.mappings._meta,"
    "*.settings.index.uuid,*.settings.index.refresh_interval",
}


class Standing(NamedTuple):
    """
    An index behind an alias.

    Attributes:
        name: What it is called.
        id: What the server knows it by; no other index ever has the same.
        follows: The ids of those whose place it took in rebuilds.
        refresh: How often what was written comes to be found, as the index has it.
    """

    name: str
    id: str
    follows: tuple[str, ...]
    refresh: str


def indexes_of(client: OpenSearch, aliases: Iterable[str]) -> dict[str, Standing]:
    """
    Return the index behind each alias; what is no alias is left out.

    Raises:
        ForeignIndexError: An alias is over several indexes.
        UnavailableError: The index does not answer.
    """
    found: dict[str, Standing] = {}
    wanted = list(aliases)
    for first in range(0, len(wanted), _NAMES_PER_CALL):
        names = wanted[first : first + _NAMES_PER_CALL]
        with translated():
            answer = client.indices.get(index=",".join(names), params=dict(_ASKED))
        for index, said in answer.items():
            standing = _standing(index, said)
            for alias in said.get("aliases", {}):
                other = found.setdefault(alias, standing)
                if other != standing:
                    message = f"the alias {alias} is over {other.name} and {index}"
                    raise ForeignIndexError(message)
    return found


def _standing(index: str, said: Mapping[str, Any]) -> Standing:
    settings = said["settings"]["index"]
    memo = said.get("mappings", {}).get("_meta", {})
    return Standing(
        name=index,
        id=settings["uuid"],
        follows=tuple(memo.get(FOLLOWS_MEMO, ())),
        refresh=settings.get("refresh_interval", ""),
    )
