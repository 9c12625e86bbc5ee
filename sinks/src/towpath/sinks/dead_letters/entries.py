"""
The entries of a sink's dead-letter topic, as values and as headers. No I/O.

===========  =====================================================================
dead letter  a record as it was read, with its reason and origin in further headers
resolution   how a key, or one dead letter without a parked key, was resolved
request      a request to replay, discard or erase
reply        why a request was not carried out, or has not been yet
===========  =====================================================================

All entries except dead letters name their kind in a header, and have a JSON object as
their value. All entries about one key have the record's own key, so that they stay in
order.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import orjson

from towpath.schemas import headers as names
from towpath.schemas.topics import BACKFILL
from towpath.sinks.change import Origin, Record, UnreadableError, position_in

# The reason of records that are parked behind an older dead letter of their key.
BEHIND: Final = "parked behind an earlier change of its key"
# The prefix of reasons of changes that the target does not accept for now.
LATER: Final = "not taken for now, tried again by itself: "

Header: TypeAlias = tuple[str, bytes]


_OURS: Final = frozenset(
    {
        names.REASON,
        names.ROUTE,
        names.PARKED,
        names.SOURCE_TOPIC,
        names.SOURCE_PARTITION,
        names.SOURCE_OFFSET,
        names.CONNECT_ERROR_TOPIC,
        names.CONNECT_ERROR_PARTITION,
        names.CONNECT_ERROR_OFFSET,
        names.CONNECT_ERROR_MESSAGE,
    }
)


class ParkedKey(NamedTuple):
    """A key and its topic; for a backfill topic, the topic that it fills."""

    topic: str
    key: bytes


class DeadLetter(NamedTuple):
    """
    A record that could not be applied.

    Attributes:
        route: Names of the routes that read its topic; empty if none does.
        is_parking: Whether later changes of its key are parked behind it.
    """

    record: Record
    reason: str
    route: str
    is_parking: bool

    @property
    def parked(self) -> ParkedKey | None:
        """The key that this dead letter parks, if it parks one."""
        key = self.record.key
        if not self.is_parking or key is None:
            return None
        return ParkedKey(shared_topic(self.record.origin.topic), key)

    @property
    def position(self) -> str:
        """The record's position; empty if it has none."""
        return position_of(self.record) or ""


class Verb(enum.StrEnum):
    """The action that a request asks for."""

    REPLAY = "replay"
    DISCARD = "discard"
    ERASE = "erase"


class Subject(NamedTuple):
    """
    The subject of a request or a resolution: a key, or a dead letter that parks no key.

    Attributes:
        topic: The parked key's topic, or that of the dead letter's record.
        key: The record's key; ``None`` if it had none.
        at: Partition and offset of the record, if the subject is one dead letter.
    """

    topic: str
    key: bytes | None
    at: tuple[int, int] | None = None


class Resolution(NamedTuple):
    """
    The statement that the dead letters of a subject are resolved up to a position.

    ``how`` is the text that operators see.
    """

    subject: Subject
    position: str
    how: str
    request_id: str = ""


class DeadLetterRequest(NamedTuple):
    """
    A request to the sink.

    Attributes:
        route: The route of keys to be erased.
        keys: The keys to be erased, as the target has them.
        is_read_again: Whether the sink requests their rows from the source first; false
            for keys that the source's table cannot have.
    """

    id: str
    verb: Verb
    subject: Subject
    route: str = ""
    keys: tuple[str, ...] = ()
    is_read_again: bool = False


class Reply(NamedTuple):
    """The reason why a request was not carried out, or has not been yet."""

    request_id: str
    text: str
    subject: Subject


Entry: TypeAlias = DeadLetter | Resolution | DeadLetterRequest | Reply


# Names of the kinds in a header, and of two fields in the JSON: part of the format.
_KINDS: Final = {Resolution: b"ending", DeadLetterRequest: b"order", Reply: b"answer"}
_FIELDS: Final = {"subject": "matter", "request_id": "order"}


def shared_topic(topic: str) -> str:
    """Return the topic that a backfill topic fills; any other topic unchanged."""
    return topic.partition(BACKFILL)[0]


def position_of(record: Record) -> str | None:
    """Return a record's position, if it can be read."""
    try:
        return position_in(record.headers)
    except UnreadableError:
        return None


def subject_of(dead_letter: DeadLetter) -> Subject:
    """Return the subject of requests about a dead letter."""
    parked = dead_letter.parked
    if parked is not None:
        return Subject(*parked)
    topic, partition, offset = dead_letter.record.origin
    return Subject(topic, dead_letter.record.key, (partition, offset))


def dead_letter_headers(dead_letter: DeadLetter) -> list[Header]:
    """Return a dead letter's headers: the record's own, then ours."""
    topic, partition, offset = dead_letter.record.origin
    ours = (
        (names.REASON, dead_letter.reason),
        (names.ROUTE, dead_letter.route),
        (names.PARKED, "true" if dead_letter.is_parking else "false"),
        (names.SOURCE_TOPIC, topic),
        (names.SOURCE_PARTITION, partition),
        (names.SOURCE_OFFSET, offset),
        (names.CONNECT_ERROR_TOPIC, topic),
        (names.CONNECT_ERROR_PARTITION, partition),
        (names.CONNECT_ERROR_OFFSET, offset),
        (names.CONNECT_ERROR_MESSAGE, dead_letter.reason),
    )
    return [
        *dead_letter.record.headers.items(),
        *((name, str(value).encode()) for name, value in ours),
    ]


def entry_content(
    entry: Resolution | DeadLetterRequest | Reply,
) -> tuple[list[Header], bytes]:
    """Return the headers and the value of an entry that is not a dead letter."""
    matter = {"topic": entry.subject.topic, "at": entry.subject.at}
    document = {_FIELDS.get(n, n): v for n, v in entry._asdict().items()}
    document["matter"] = matter
    return [(names.DEAD_LETTERS, _KINDS[type(entry)])], orjson.dumps(document)


def entry_of(
    key: bytes | None, value: bytes | None, headers: Sequence[Header]
) -> Entry | None:
    """Decode one record of the topic; ``None`` if it is not an entry."""
    kind = dict(headers).get(names.DEAD_LETTERS)
    if kind is None:
        return _dead_letter(key, value, headers)
    try:
        document = orjson.loads(value or b"")
        matter = document["matter"]
        at = None if matter["at"] is None else (*matter["at"],)
        subject = Subject(matter["topic"], key, at)
        return _other(kind, document, subject)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None


def _other(kind: bytes, document: Mapping[str, Any], subject: Subject) -> Entry | None:
    match kind:
        case b"ending":
            return Resolution(
                subject, document["position"], document["how"], document["order"]
            )
        case b"order":
            request = DeadLetterRequest(document["id"], Verb(document["verb"]), subject)
            return request._replace(
                route=document.get("route", ""),
                keys=tuple(document.get("keys", ())),
                is_read_again=document.get("is_read_again", False),
            )
        case b"answer":
            return Reply(document["order"], document["text"], subject)
        case _:
            return None


def _dead_letter(
    key: bytes | None, value: bytes | None, headers: Sequence[Header]
) -> DeadLetter | None:
    """Decode a dead letter; only the last headers are ours, even if names recur."""
    ours: dict[str, bytes] = {}
    count = len(headers)
    while count:
        name, text = headers[count - 1]
        if name not in _OURS or name in ours:
            break
        ours[name] = text
        count -= 1
    try:
        origin = Origin(
            ours[names.SOURCE_TOPIC].decode(),
            int(ours[names.SOURCE_PARTITION]),
            int(ours[names.SOURCE_OFFSET]),
        )
    except (KeyError, ValueError):
        return None
    return DeadLetter(
        Record(origin, key, value, dict(headers[:count])),
        ours.get(names.REASON, b"").decode("utf-8", "replace"),
        ours.get(names.ROUTE, b"").decode("utf-8", "replace"),
        ours.get(names.PARKED) == b"true",
    )


class DeadLetterStore(Protocol):
    """
    The dead-letter topic of one sink.

    Writes are durable when the call returns. Each call raises ``UnavailableError`` if
    a write may not be durable or a read may not be complete.
    """

    def put(self, dead_letters: Iterable[DeadLetter]) -> int:
        """Write dead letters; return their number."""

    def resolve(self, resolutions: Iterable[Resolution]) -> None:
        """Write resolutions."""

    def reply(self, reply: Reply) -> None:
        """Write the reply to a request."""

    def entries(self) -> Iterator[Entry]:
        """Yield all entries of the topic, oldest first per key."""

    def requests(self) -> list[DeadLetterRequest]:
        """Return requests written since the last ``entries`` or ``requests`` call."""

    def close(self) -> None:
        """Release connections; never raises."""
