"""
Send bulk calls, several at the same time, and check the outcome of every item.

The order of the calls does not matter: the index guards every document by its version,
and a batch has each key once.

A document is the whole row with its position; a delete is a document of the key, the
position and a deletion flag. The version is the position packed into 63 bits, and
``external_gte`` makes the index refuse older ones. Hot path, once per row.

A bulk response has status 200 whatever the outcomes of its items, so each item is
checked:

- 200, 201: written;
- 409: the index has a newer version; this is not a failure: the item counts as stale;
- 404: the alias no longer exists;
- 429, 5xx: the item is sent again;
- a block or a closed index, whatever the status: the sink waits;
- 401, 403: the sink has no right to write;
- any other status: the document is refused for good, with the index's reason.
"""

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson
from opensearchpy import OpenSearch

from towpath.schemas.clock import Backoff, Clock
from towpath.schemas.position import (
    READ_ORDINAL,
    SHARED_ORDINAL,
    Position,
    version,
)
from towpath.settings import SearchOptions
from towpath.sinks.change import Change, Refusal
from towpath.sinks.errors import (
    IndexBlockedError,
    IndexGoneError,
    SearchRefusedError,
    TargetBusyError,
    TargetUnavailableError,
)
from towpath.sinks.key_text import key_text
from towpath.sinks.targets.search.client import (
    BLOCKS,
    FULL_RETRY_AFTER_S,
    blocked,
    bounded,
    send,
)
from towpath.sinks.targets.search.schema import DELETED_FIELD, POSITION_FIELD

LONGEST_ID_BYTES: Final = 512

# The index of the ordinal in a position's text. All ordinals from ``_FIRST_SHARED`` on
# share a version; the ordinal of a READ row sorts below every digit.
_ORDINAL_AT: Final = 17
_FIRST_SHARED: Final = f"{SHARED_ORDINAL - 1:010d}"


class Document(NamedTuple):
    """
    One item of a bulk call.

    ``is_counted`` says whether the item's outcome counts as the outcome of the change:
    if a route has two indexes, only the outcome in the new one, which is about to
    replace the old one, counts.
    """

    change: Change
    is_counted: bool
    lines: bytes


def document_id(change: Change) -> str:
    """Return the id of the document of a change."""
    return key_text(change.key)


def has_shared_version(change: Change) -> bool:
    """Return whether other positions share the version of a change."""
    return change.position[_ORDINAL_AT:] >= _FIRST_SHARED


def action_prefix(alias: str) -> bytes:
    """Return the beginning of every item for an alias."""
    return b'{"index":{"_index":%b,' % orjson.dumps(alias)


def documents(change: Change, action_prefixes: Sequence[bytes]) -> Iterator[Document]:
    """Yield a change's document for each alias; the change must have the whole row."""
    rest = b'"_id":%b,"version":%d,"version_type":"external_gte"}}\n%b\n' % (
        orjson.dumps(document_id(change)),
        _version(change.position),
        _source(change),
    )
    *old, newest = action_prefixes
    for prefix in old:
        yield Document(change, False, prefix + rest)  # noqa: FBT003 - by name is slower
    yield Document(change, True, newest + rest)  # noqa: FBT003


def _version(position: str) -> int:
    """Return the version of a position; the position was checked when it was read."""
    text = position[_ORDINAL_AT:]
    ordinal = READ_ORDINAL if text == "-" else int(text)
    return version(Position(int(position[: _ORDINAL_AT - 1], 16), ordinal))


def _source(change: Change) -> bytes:
    if change.row is None:
        key = dict(zip(change.key_columns, change.key, strict=bool(change.key_columns)))
        own = {POSITION_FIELD: change.position, DELETED_FIELD: True}
        return orjson.dumps({**key, **own})
    if change.text is None or not change.row:
        return orjson.dumps({**change.row, POSITION_FIELD: change.position})
    # The row is written as published, because its numbers may have more digits than a
    # double: the position is inserted before the last brace. Line breaks between values
    # become spaces.
    body = change.text.rstrip()[:-1].replace(b"\n", b" ").replace(b"\r", b" ")
    return body + f',"{POSITION_FIELD}":"{change.position}"}}'.encode()


def calls(
    given: Iterable[Document], options: SearchOptions
) -> Iterator[list[Document]]:
    """Cut documents into calls of bounded count and size."""
    return bounded(
        given,
        lambda document: len(document.lines),
        options.call_bytes,
        options.call_documents,
    )


def body_of(call: Iterable[Document]) -> bytes:
    """Return a call as newline-delimited JSON."""
    return b"".join([document.lines for document in call])


class ItemVerdict(enum.Enum):
    """The reaction to the outcome of one item."""

    WRITTEN = "written"
    STALE = "stale"
    RETRY = "again"
    GONE = "gone"
    BLOCKED = "blocked"
    FORBIDDEN = "forbidden"
    REFUSED = "refused"


class ItemOutcome(NamedTuple):
    """The verdict on one item, with the index's reason if there is one."""

    verdict: ItemVerdict
    reason: str = ""


_WRITTEN: Final = ItemOutcome(ItemVerdict.WRITTEN)

_CONFLICT: Final = 409
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_ERROR: Final = 400
_RIGHTS: Final = frozenset({401, 403})

# From these words on, a reason quotes the document's id or its values.
_QUOTES: Final = (" in document with id", ". Preview of field's value")


def outcomes(response: Mapping[str, Any], count: int) -> list[ItemOutcome]:
    """
    Return one outcome per item, in the order of the call.

    Args:
        response: The response of a bulk call.
        count: The number of items of the call.

    Raises:
        TargetUnavailableError: The response has too few or too many outcomes; write all
            documents again.
    """
    items: Sequence[Mapping[str, Any]] = response.get("items", [])
    if len(items) != count:
        message = (
            f"the search index returned {len(items)} results for {count} documents"
        )
        raise TargetUnavailableError(message)
    if response.get("errors") is False:
        return [_WRITTEN] * count
    return [_outcome(next(iter(item.values()))) for item in items]


def _outcome(item: Mapping[str, Any]) -> ItemOutcome:
    status = item["status"]
    if status < _ERROR:
        return _WRITTEN
    if status == _CONFLICT:
        return ItemOutcome(ItemVerdict.STALE)
    error = item.get("error", {})
    kind = error.get("type", str(status))
    reason = f"{kind}: {_unquoted(error.get('reason', ''))}"
    return ItemOutcome(_failure(status, kind), reason)


def _failure(status: int, kind: str) -> ItemVerdict:
    if kind in BLOCKS:
        return ItemVerdict.BLOCKED
    if status == _NOT_FOUND:
        return ItemVerdict.GONE
    if status == _TOO_MANY or status >= _SERVER_ERROR:
        return ItemVerdict.RETRY
    return ItemVerdict.FORBIDDEN if status in _RIGHTS else ItemVerdict.REFUSED


def _unquoted(reason: str) -> str:
    """Cut a reason before it quotes the document, because reasons are logged."""
    for quote in _QUOTES:
        reason = reason.partition(quote)[0]
    return reason


# Six attempts take a few seconds: longer than a burst keeps the index's queues full,
# but shorter than a batch may hang before it is reported.
ATTEMPTS: Final = 6

_TOO_LARGE: Final = "the document is larger than the search index accepts"


@dataclass(slots=True)
class WriteOutcome:
    """
    The summed outcomes of the changes in some calls.

    ``refused_by_old`` counts documents that were refused by an index that is about to
    be replaced.
    """

    applied: int = 0
    stale: int = 0
    refused_by_old: int = 0
    refused: list[Refusal] = field(default_factory=list)

    def add(self, other: "WriteOutcome") -> None:
        """Add the outcome of another call."""
        self.applied += other.applied
        self.stale += other.stale
        self.refused_by_old += other.refused_by_old
        self.refused += other.refused


class BulkWriter:
    """Sends bulk calls from several threads, and retries items."""

    def __init__(self, client: OpenSearch, clock: Clock, thread_count: int) -> None:
        self.client = client
        self._clock = clock
        self._thread_count = thread_count
        self._backoff = Backoff(first_s=0.2, ceiling_s=3.0)
        self._threads = ThreadPoolExecutor(thread_count, thread_name_prefix="bulk")

    def write(self, calls: Iterable[list[Document]]) -> WriteOutcome:
        """
        Send all calls; when this returns or raises, none is in flight.

        Raises:
            UnavailableError: Some documents may not have been written; write all of
                them again.
            TargetBusyError: OpenSearch is overloaded, or an index accepts no writes.
            BatchRefusedError: OpenSearch cannot parse a call.
            SearchRefusedError: The sink has no right to write.
        """
        written = WriteOutcome()
        running: deque[Future[WriteOutcome]] = deque()
        try:
            for call in calls:
                # One call more than there are threads, so that no thread waits for the
                # encoding of a call.
                if len(running) > self._thread_count:
                    written.add(running.popleft().result())
                running.append(self._threads.submit(self._call, call))
            while running:
                written.add(running.popleft().result())
        finally:
            for left in running:
                left.cancel()
            wait(running)
        return written

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _call(self, call: list[Document]) -> WriteOutcome:
        """Send a call, and retry its items as the index requires."""
        written = WriteOutcome()
        for attempt in range(ATTEMPTS):
            call = self._send_once(call, written)
            if not call:
                return written
            self._clock.wait(self._backoff.delay_s(attempt))
        message = f"the search index has no capacity for {len(call)} documents"
        raise TargetBusyError(message, retry_after_s=FULL_RETRY_AFTER_S)

    def _send_once(self, call: list[Document], written: WriteOutcome) -> list[Document]:
        """Send a call, in halves if it is too large; return the items to retry."""
        try:
            response = send(self.client, body_of(call))
        except IndexBlockedError:
            raise
        except TargetBusyError:
            # No item of the call was written, because memory or a queue was full.
            return call
        if response is not None:
            answered = zip(call, outcomes(response, len(call)), strict=True)
            return [
                document
                for document, outcome in answered
                if _must_retry(document, outcome, written)
            ]
        if len(call) == 1:
            _refuse(call[0], _TOO_LARGE, written)
            return []
        half = len(call) // 2
        again = self._send_once(call[:half], written)
        return again + self._send_once(call[half:], written)


def _must_retry(
    document: Document, outcome: ItemOutcome, written: WriteOutcome
) -> bool:
    """Count the outcome of one item; return whether it must be sent again."""
    match outcome.verdict:
        case ItemVerdict.WRITTEN:
            written.applied += document.is_counted
        case ItemVerdict.STALE:
            written.stale += document.is_counted
        case ItemVerdict.REFUSED:
            _refuse(document, outcome.reason, written)
        case ItemVerdict.RETRY:
            return True
        case ItemVerdict.GONE:
            message = f"an index no longer exists: {outcome.reason}"
            raise IndexGoneError(message)
        case ItemVerdict.BLOCKED:
            raise blocked(outcome.reason)
        case ItemVerdict.FORBIDDEN:
            message = f"the search index refuses writes: {outcome.reason}"
            raise SearchRefusedError(message)
    return False


def _refuse(document: Document, reason: str, written: WriteOutcome) -> None:
    if document.is_counted:
        written.refused.append(Refusal(document.change, reason))
    else:
        written.refused_by_old += 1
