"""
Bulk calls, several under way at once, each item followed to its end.

Their order does not matter: the index guards every document by its version, and a batch
has each key once.

Rows as a bulk call takes them, cut by count and size.

Hot path, once per row. A document is the whole row with its position; a delete is a
document that keeps the key, the position and the mark. The version is the position
packed into 63 bits, and ``external_gte`` lets the index refuse what is older.

What became of each item of a bulk call. Pure.

The call as a whole answers 200 whatever became of its items, so each one is looked at:

- 200, 201: written;
- 409: the index has a newer version; that is success, and counted as stale;
- 404: the alias is gone; 429 and 5xx: try again;
- whatever its status, a block or a closed index says nothing of the document: wait;
- 401, 403: the sink may not write here at all;
- any other: this document will never do; it is refused with its reason.
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
    send,
)
from towpath.sinks.targets.search.schema import DELETED_FIELD, POSITION_FIELD

LONGEST_ID_BYTES: Final = 512

# Where a position's text tells the ordinal; from the first shared one on, the text of
# the place sorts above. That of a READ row sorts below every digit.
_PLACE: Final = 17
_FIRST_SHARED: Final = f"{SHARED_ORDINAL - 1:010d}"


class Document(NamedTuple):
    """
    One item of a bulk call.

    ``counts`` is whether its outcome is that of the change: of a route with two indexes
    the new one decides, which is about to take the other's place.
    """

    change: Change
    counts: bool
    lines: bytes


def document_id(change: Change) -> str:
    """Name the document of a change's row."""
    return key_text(change.key)


def has_shared_version(change: Change) -> bool:
    """Tell whether the version alone cannot say which of two changes is newer."""
    return change.position[_PLACE:] >= _FIRST_SHARED


def opening(alias: str) -> bytes:
    """Write what every item for an alias begins with."""
    return b'{"index":{"_index":%b,' % orjson.dumps(alias)


def documents(change: Change, openings: Sequence[bytes]) -> Iterator[Document]:
    """Write one change for each of its aliases; it must hold the whole row."""
    rest = b'"_id":%b,"version":%d,"version_type":"external_gte"}}\n%b\n' % (
        orjson.dumps(document_id(change)),
        _version(change.position),
        _source(change),
    )
    *old, newest = openings
    for one in old:
        yield Document(change, False, one + rest)  # noqa: FBT003 - by name is slower
    yield Document(change, True, newest + rest)  # noqa: FBT003


def _version(position: str) -> int:
    """Pack a position that was checked when it was read."""
    place = position[_PLACE:]
    ordinal = READ_ORDINAL if place == "-" else int(place)
    return version(Position(int(position[: _PLACE - 1], 16), ordinal))


def _source(change: Change) -> bytes:
    if change.row is None:
        key = dict(zip(change.key_columns, change.key, strict=bool(change.key_columns)))
        own = {POSITION_FIELD: change.position, DELETED_FIELD: True}
        return orjson.dumps({**key, **own})
    if change.text is None or not change.row:
        return orjson.dumps({**change.row, POSITION_FIELD: change.position})
    # As it came, because its numbers may have more digits than a double: the position
    # goes in front of the last brace. Between lines there is nothing but blanks.
    body = change.text.rstrip()[:-1].replace(b"\n", b" ").replace(b"\r", b" ")
    return body + f',"{POSITION_FIELD}":"{change.position}"}}'.encode()


def calls(
    given: Iterable[Document], options: SearchOptions
) -> Iterator[list[Document]]:
    """Cut documents into calls, by count and size."""
    taken: list[Document] = []
    size_bytes = 0
    for one in given:
        one_bytes = len(one.lines)
        if taken and (
            len(taken) == options.call_documents
            or size_bytes + one_bytes > options.call_bytes
        ):
            yield taken
            taken, size_bytes = [], 0
        taken.append(one)
        size_bytes += one_bytes
    if taken:
        yield taken


def body_of(call: Iterable[Document]) -> bytes:
    """Return a call as newline-delimited JSON."""
    return b"".join([document.lines for document in call])


class ItemVerdict(enum.Enum):
    """What to do about one item."""

    WRITTEN = "written"
    STALE = "stale"
    AGAIN = "again"
    GONE = "gone"
    BLOCKED = "blocked"
    FORBIDDEN = "forbidden"
    REFUSED = "refused"


class ItemOutcome(NamedTuple):
    """The verdict on one item, with the index's reason where there is one."""

    verdict: ItemVerdict
    reason: str = ""


_WRITTEN: Final = ItemOutcome(ItemVerdict.WRITTEN)

_CONFLICT: Final = 409
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_ERROR: Final = 400
_RIGHTS: Final = frozenset({401, 403})

# From here on the index's reasons quote the document: its id, its values.
_QUOTES: Final = (" in document with id", ". Preview of field's value")


def outcomes(answer: Mapping[str, Any], count: int) -> list[ItemOutcome]:
    """
    Return one outcome per item, in the order of the call.

    Args:
        answer: The index's answer.
        count: How many items the call had.

    Raises:
        TargetUnavailableError: The answer tells of fewer, or more: write all again.
    """
    items: Sequence[Mapping[str, Any]] = answer.get("items", [])
    if len(items) != count:
        message = f"the search index told of {len(items)} of {count} documents"
        raise TargetUnavailableError(message)
    if answer.get("errors") is False:
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
        return ItemVerdict.AGAIN
    return ItemVerdict.FORBIDDEN if status in _RIGHTS else ItemVerdict.REFUSED


def _unquoted(reason: str) -> str:
    """Cut a reason before it quotes the document: it goes to the log."""
    for quote in _QUOTES:
        reason = reason.partition(quote)[0]
    return reason


# Six tries take some seconds: longer than a burst fills the index's queues, shorter
# than anyone wants a batch to hang before it is reported.
ATTEMPTS: Final = 6

_TOO_LARGE: Final = "the document is larger than the search index takes"


@dataclass(slots=True)
class Written:
    """
    What became of changes.

    ``only_new`` counts documents that an index refuses which is about to be replaced.
    """

    applied: int = 0
    stale: int = 0
    only_new: int = 0
    refused: list[Refusal] = field(default_factory=list)

    def add(self, other: "Written") -> None:
        """Count what another call came to, too."""
        self.applied += other.applied
        self.stale += other.stale
        self.only_new += other.only_new
        self.refused += other.refused


class Writer:
    """Writes calls of documents."""

    def __init__(self, client: OpenSearch, clock: Clock, at_once: int) -> None:
        self.client = client
        self._clock = clock
        self._at_once = at_once
        self._backoff = Backoff(first_s=0.2, ceiling_s=3.0)
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="bulk")

    def write(self, calls: Iterable[list[Document]]) -> Written:
        """
        Write all calls; when this returns or raises, none is under way any more.

        Raises:
            UnavailableError: Some part may not be written; write all of it again.
            BatchRefusedError: A call cannot be read.
            SearchRefusedError: The sink may not write.
        """
        written = Written()
        running: deque[Future[Written]] = deque()
        try:
            for call in calls:
                # One more than are sent, so that none waits for us to write it.
                if len(running) > self._at_once:
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
        """Let go of the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _call(self, call: list[Document]) -> Written:
        """Write a call, and again those of its items that the index asks for."""
        written = Written()
        for attempt in range(ATTEMPTS):
            call = self._once(call, written)
            if not call:
                return written
            self._clock.wait(self._backoff.delay_s(attempt))
        message = f"the search index has no room for {len(call)} documents"
        raise TargetBusyError(message, retry_after_s=FULL_RETRY_AFTER_S)

    def _once(self, call: list[Document], written: Written) -> list[Document]:
        """Send a call, in halves if it is too large; return what is to come again."""
        try:
            answer = send(self.client, body_of(call))
        except IndexBlockedError:
            raise
        except TargetBusyError:
            # Nothing of it was taken: for want of memory, or of room in a queue.
            return call
        if answer is not None:
            told = zip(call, outcomes(answer, len(call)), strict=True)
            return [one for one, said in told if _is_wanted_again(one, said, written)]
        if len(call) == 1:
            _refuse(call[0], _TOO_LARGE, written)
            return []
        half = len(call) // 2
        again = self._once(call[:half], written)
        return again + self._once(call[half:], written)


def _is_wanted_again(one: Document, said: ItemOutcome, written: Written) -> bool:
    """Note what became of one item; tell whether it is to be sent again."""
    match said.verdict:
        case ItemVerdict.WRITTEN:
            written.applied += one.counts
        case ItemVerdict.STALE:
            written.stale += one.counts
        case ItemVerdict.REFUSED:
            _refuse(one, said.reason, written)
        case ItemVerdict.AGAIN:
            return True
        case ItemVerdict.GONE:
            message = f"an index went away: {said.reason}"
            raise IndexGoneError(message)
        case ItemVerdict.BLOCKED:
            raise blocked(said.reason)
        case ItemVerdict.FORBIDDEN:
            message = f"the search index refuses to be written: {said.reason}"
            raise SearchRefusedError(message)
    return False


def _refuse(one: Document, reason: str, written: Written) -> None:
    if one.counts:
        written.refused.append(Refusal(one.change, reason))
    else:
        written.only_new += 1
