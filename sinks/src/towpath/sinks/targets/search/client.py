"""Connect to OpenSearch, translate its errors, and find the index behind an alias."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import orjson
from opensearchpy import JSONSerializer, OpenSearch
from opensearchpy.exceptions import ConnectionError as NoConnectionError
from opensearchpy.exceptions import SerializationError, SSLError, TransportError

from towpath.schemas.failure import ConfigurationError
from towpath.sinks.errors import (
    BatchRefusedError,
    ForeignIndexError,
    IndexBlockedError,
    IndexGoneError,
    SearchRefusedError,
    TargetBusyError,
    TargetUnavailableError,
)
from towpath.sinks.targets.search.schema import REPLACED_IDS_META

ANSWER_WITHIN_S: Final = 30.0

# OpenSearch returns 429 when its queues are full; they drain in about a second.
FULL_RETRY_AFTER_S: Final = 1.0

# An operator must free disk space, or remove a block that was set by hand.
BLOCKED_RETRY_AFTER_S: Final = 5.0

# A full disk is reported with 429, other blocks with 403, a closed index with 400.
BLOCKS: Final = frozenset({"cluster_block_exception", "index_closed_exception"})
_GONE: Final = "index_not_found_exception"

# Only these parts of a bulk response are requested: a tenth of the whole.
_BULK_PARAMS: Final = {
    "require_alias": "true",
    "filter_path": "errors,items.*.status,items.*.error.type,items.*.error.reason",
}

_BAD_REQUEST: Final = 400
_TOO_LARGE: Final = 413
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500


class _QuickSerializer(JSONSerializer):
    """A fast parser of responses; numbers in a document can lose digits."""

    def loads(self, s: str) -> Any:  # noqa: ANN401 - any JSON
        try:
            return orjson.loads(s)
        except orjson.JSONDecodeError as error:
            raise SerializationError(s, error) from error


class _ExactSerializer(JSONSerializer):
    """A parser that keeps all digits of every number."""

    def loads(self, s: str) -> Any:  # noqa: ANN401 - any JSON
        try:
            return json.loads(s, parse_float=Decimal)
        except (ValueError, TypeError) as error:
            raise SerializationError(s, error) from error


def connect(url: str, *, is_exact: bool = False, thread_count: int = 1) -> OpenSearch:
    """
    Return a client that does not retry: the sink retries, item by item.

    Args:
        url: The address of OpenSearch.
        is_exact: Whether non-integer numbers are read as decimals, not as doubles.
        thread_count: The number of threads that use the client.

    Raises:
        ConfigurationError: The url is not the address of a server.
    """
    # The library logs each unsuccessful response, although the sink translates or
    # expects all of them.
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)
    try:
        return OpenSearch(
            hosts=[url],
            timeout=ANSWER_WITHIN_S,
            max_retries=0,
            retry_on_timeout=False,
            serializer=_ExactSerializer() if is_exact else _QuickSerializer(),
            pool_maxsize=thread_count + 1,
        )
    except ValueError:
        message = "the url of the search index is not http(s)://host:port"
        # The cause is left out, because it may quote a password.
        raise ConfigurationError([message]) from None


def send(client: OpenSearch, body: bytes) -> Mapping[str, Any] | None:
    """
    Send one bulk call and return its response; ``None`` if the call is too large.

    Raises:
        TargetBusyError: OpenSearch asks for a pause.
        TargetUnavailableError: OpenSearch does not answer, or fails.
        BatchRefusedError: OpenSearch cannot parse the call, because of a document.
        SearchRefusedError: OpenSearch refuses the call for good.
    """
    with translated():
        try:
            response: Mapping[str, Any] = client.bulk(
                body=body, params=dict(_BULK_PARAMS)
            )
        except TransportError as error:
            if error.status_code == _TOO_LARGE:
                return None
            if error.status_code == _BAD_REQUEST and error.error not in BLOCKS:
                message = f"the search index cannot parse a call: {error.error}"
                raise BatchRefusedError(message) from error
            raise
    return response


@contextmanager
def translated() -> Iterator[None]:
    """
    Turn opensearch-py's errors into ours.

    Raises:
        TargetBusyError: OpenSearch asks for a pause.
        IndexBlockedError: An index accepts no writes for now.
        IndexGoneError: The index no longer exists.
        TargetUnavailableError: OpenSearch does not answer, or fails.
        SearchRefusedError: OpenSearch refuses the call for good.
    """
    try:
        yield
    except NoConnectionError as error:
        raise TargetUnavailableError(_unreached(error)) from error
    except SerializationError as error:
        message = "the search index's response cannot be read"
        raise TargetUnavailableError(message) from error
    except TransportError as error:
        if error.error in BLOCKS:
            raise blocked(error.error) from error
        if error.error == _GONE:
            message = "an index of the sink no longer exists"
            raise IndexGoneError(message) from error
        status = int(error.status_code)
        if status == _TOO_MANY:
            message = "the search index asks for a pause"
            raise TargetBusyError(message, retry_after_s=FULL_RETRY_AFTER_S) from error
        message = f"the search index returns {status}: {error.error}"
        if status >= _SERVER_ERROR:
            raise TargetUnavailableError(message) from error
        raise SearchRefusedError(message) from error


def _unreached(error: NoConnectionError) -> str:
    if isinstance(error, SSLError):
        return (
            f"the search index cannot be reached over TLS: {error.error}; "
            "the file in SSL_CERT_FILE must contain the certificate of its authority"
        )
    return "the search index does not answer"


def blocked(reason: str) -> IndexBlockedError:
    """Return the error of an index that accepts no writes for now."""
    message = f"the search index accepts no writes: {reason}"
    return IndexBlockedError(message, retry_after_s=BLOCKED_RETRY_AFTER_S)


# A request line has at most 4 KB, of which this much is left for names.
_NAMES_BYTES: Final = 3072

_Item = TypeVar("_Item")


def in_calls(names: Iterable[str]) -> Iterator[Sequence[str]]:
    """Split the names of aliases into groups that fit into a call's request line."""
    # A comma follows each name; a character that is not ASCII takes up to 12 bytes.
    return bounded(names, lambda name: len(quote(name)) + 1, _NAMES_BYTES)


def bounded(
    items: Iterable[_Item],
    size_of: Callable[[_Item], int],
    most_bytes: int,
    most: int | None = None,
) -> Iterator[list[_Item]]:
    """Cut items into groups of bounded size and count; a larger item gets its own."""
    group: list[_Item] = []
    size_bytes = 0
    for item in items:
        item_bytes = size_of(item)
        if group and (len(group) == most or size_bytes + item_bytes > most_bytes):
            yield group
            group, size_bytes = [], 0
        group.append(item)
        size_bytes += item_bytes
    if group:
        yield group


_INDEX_PARAMS: Final = {
    "ignore_unavailable": "true",
    "filter_path": "*.aliases,*.mappings._meta,"
    "*.settings.index.uuid,*.settings.index.refresh_interval",
}


class SearchIndex(NamedTuple):
    """
    An index behind an alias.

    Attributes:
        name: Its name.
        id: Its id on the server; no two indexes ever have the same id.
        replaced_ids: The ids of the indexes that it replaced in rebuilds.
        refresh: Its refresh interval, as in its settings.
    """

    name: str
    id: str
    replaced_ids: tuple[str, ...]
    refresh: str


def indexes_of(client: OpenSearch, aliases: Iterable[str]) -> dict[str, SearchIndex]:
    """
    Return the index behind each alias; a name that is not an alias is left out.

    Raises:
        ForeignIndexError: An alias has several indexes.
        UnavailableError: OpenSearch does not answer.
    """
    found: dict[str, SearchIndex] = {}
    for names in in_calls(aliases):
        with translated():
            response = client.indices.get(
                index=",".join(names), params=dict(_INDEX_PARAMS)
            )
        for index, description in response.items():
            search_index = _search_index(index, description)
            # An operator may give an index further aliases, shared with other indexes.
            for alias in description.get("aliases", {}).keys() & set(names):
                known = found.setdefault(alias, search_index)
                if known != search_index:
                    message = (
                        f"the alias {alias} has two indexes: {known.name} and {index}"
                    )
                    raise ForeignIndexError(message)
    return found


def _search_index(index: str, description: Mapping[str, Any]) -> SearchIndex:
    settings = description["settings"]["index"]
    metadata = description.get("mappings", {}).get("_meta", {})
    return SearchIndex(
        name=index,
        id=settings["uuid"],
        replaced_ids=tuple(metadata.get(REPLACED_IDS_META, ())),
        refresh=settings.get("refresh_interval", ""),
    )
