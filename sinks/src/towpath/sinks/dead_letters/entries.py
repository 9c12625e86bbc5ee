"""
What stands in the dead-letter topic of a sink, as values and as headers. Pure.

==========  ======================================================================
letter      a record as it was read, with its reason and origin in further headers
ending      a key, or one letter that parked none, needs no more care, and why
order       somebody asks for letters to be replayed or discarded
answer      why an order could not be carried out
==========  ======================================================================

All but letters say in a header which they are, and the rest as JSON in their value.
Everything about one key has the record's own key, so that it stays in order.

What the jobs need of the dead-letter topic of one sink.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import orjson

from towpath.schemas import headers as names
from towpath.schemas.topics import BACKFILL
from towpath.sinks.change import Origin, Record, UnreadableError, position_in

# Reason of what is set aside only because something older of its key is.
BEHIND: Final = "parked behind an earlier change of its key"
# How the reason begins of what the target does not take for now.
LATER: Final = "not taken for now, tried again by itself: "

Header: TypeAlias = tuple[str, bytes]

# The kinds of entries that are no dead letter, as their header names them.
_RESOLUTION: Final = b"ending"
_REQUEST: Final = b"order"
_REPLY: Final = b"answer"

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
    """A key of a topic; of a backfill's topic it is the same as of the shared one."""

    topic: str
    key: bytes


class DeadLetter(NamedTuple):
    """
    One record set aside.

    Attributes:
        route: Names of the routes that read its topic; empty if none does.
        is_parking: Whether later changes of its key wait for it.
    """

    record: Record
    reason: str
    route: str
    is_parking: bool

    @property
    def parked(self) -> ParkedKey | None:
        """Return the key that waits for this letter, if one does."""
        key = self.record.key
        if not self.is_parking or key is None:
            return None
        return ParkedKey(shared_topic(self.record.origin.topic), key)

    @property
    def position(self) -> str:
        """Return the record's position; empty if it has none."""
        return position_of(self.record) or ""


class Verb(enum.StrEnum):
    """What may be asked for."""

    REPLAY = "replay"
    DISCARD = "discard"
    ERASE = "erase"


class DeadLetterSubject(NamedTuple):
    """
    What an order or an ending is about: a key, or a letter that parked none.

    Attributes:
        topic: The key's topic, or the one that the letter's record stood in.
        key: The record's key; ``None`` where it had none.
        at: Partition and offset of the record, if it is about one letter.
    """

    topic: str
    key: bytes | None
    at: tuple[int, int] | None = None


class Resolution(NamedTuple):
    """The letters of a matter, up to a position, are over; ``how`` says by what."""

    subject: DeadLetterSubject
    position: str
    how: str
    request_id: str = ""


class DeadLetterRequest(NamedTuple):
    """
    Somebody asks for something, under an id of their own.

    Attributes:
        route: Of what is to be erased, the route.
        keys: Likewise, the keys as the target has them.
        is_read_again: Likewise, whether the sink asks the source for their rows; not
            for keys that the source's table cannot have.
    """

    id: str
    verb: Verb
    subject: DeadLetterSubject
    route: str = ""
    keys: tuple[str, ...] = ()
    is_read_again: bool = False


class DeadLetterReply(NamedTuple):
    """An order was not carried out, or not yet, and why."""

    request_id: str
    text: str
    subject: DeadLetterSubject


Entry: TypeAlias = DeadLetter | Resolution | DeadLetterRequest | DeadLetterReply


def shared_topic(topic: str) -> str:
    """Return the topic that a backfill's topic stands beside."""
    return topic.partition(BACKFILL)[0]


def position_of(record: Record) -> str | None:
    """Return a record's position, if it can be read."""
    try:
        return position_in(record.headers)
    except UnreadableError:
        return None


def subject_of(dead_letter: DeadLetter) -> DeadLetterSubject:
    """Return what an order about a letter is about."""
    parked = dead_letter.parked
    if parked is not None:
        return DeadLetterSubject(*parked)
    topic, partition, offset = dead_letter.record.origin
    return DeadLetterSubject(topic, dead_letter.record.key, (partition, offset))


def dead_letter_headers(dead_letter: DeadLetter) -> list[Header]:
    """Write a letter's headers: the record's own, then ours."""
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
    entry: Resolution | DeadLetterRequest | DeadLetterReply,
) -> tuple[list[Header], bytes]:
    """Write what is no letter: its headers and its value."""
    matter = {"topic": entry.subject.topic, "at": entry.subject.at}
    kind, document = _document(entry, matter)
    return [(names.DEAD_LETTERS, kind)], orjson.dumps(document)


def _document(
    entry: Resolution | DeadLetterRequest | DeadLetterReply, matter: dict[str, Any]
) -> tuple[bytes, dict[str, Any]]:
    """Return an entry's kind and its JSON object, whose keys readers rely on."""
    match entry:
        case Resolution(_, position, how, request_id):
            return _RESOLUTION, {
                "matter": matter,
                "position": position,
                "how": how,
                "order": request_id,
            }
        case DeadLetterRequest(id_, verb, _, route, keys, is_read_again):
            return _REQUEST, {
                "id": id_,
                "verb": verb,
                "matter": matter,
                "route": route,
                "keys": keys,
                "is_read_again": is_read_again,
            }
        case DeadLetterReply(request_id, text):
            return _REPLY, {"order": request_id, "text": text, "matter": matter}


def entry_of(
    key: bytes | None, value: bytes | None, headers: Sequence[Header]
) -> Entry | None:
    """Read one record of the topic; ``None`` if it is none of ours."""
    kind = dict(headers).get(names.DEAD_LETTERS)
    if kind is None:
        return _dead_letter(key, value, headers)
    try:
        document = orjson.loads(value or b"")
        matter = document["matter"]
        at = None if matter["at"] is None else (*matter["at"],)
        subject = DeadLetterSubject(matter["topic"], key, at)
        return _other(kind, document, subject)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None


def _other(
    kind: bytes, document: Mapping[str, Any], subject: DeadLetterSubject
) -> Entry | None:
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
            return DeadLetterReply(document["order"], document["text"], subject)
        case _:
            return None


def _dead_letter(
    key: bytes | None, value: bytes | None, headers: Sequence[Header]
) -> DeadLetter | None:
    """Part ours, which stand last, from the record's own of the same names."""
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

    What was written is durable when the call returns; each call raises
    ``UnavailableError`` if that, or what was read, is not known to be whole.
    """

    def put(self, dead_letters: Iterable[DeadLetter]) -> int:
        """Set records aside; return how many."""

    def resolve(self, resolutions: Iterable[Resolution]) -> None:
        """State that letters are over."""

    def reply(self, reply: DeadLetterReply) -> None:
        """State why an order was not carried out."""

    def entries(self) -> Iterator[Entry]:
        """Go through all that was ever written, oldest first per key."""

    def requests(self) -> list[DeadLetterRequest]:
        """Return what was asked for since ``entries`` or ``orders`` was last called."""

    def close(self) -> None:
        """Let go of connections; never raises."""
