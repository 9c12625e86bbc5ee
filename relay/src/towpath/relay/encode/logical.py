"""
Logical messages as records of ``<prefix>.message``, and as events.

``MessageRecords`` writes Debezium's format:

``{"op": "m", "message": {"prefix", "content"}, "source", "ts_*", "transaction"}``,
keyed by ``{"prefix": ...}``, in the format of row changes. The content is written as
``[relay.rows] binaries`` specifies; bytes are base64 in JSON.

The position of a transactional message ends with the message's ordinal in its
transaction; ``source`` has the transaction's id and commit. Any other message has its
own LSN with the ordinal ``-``, neither id nor commit, and the time at which the relay
read the message, because the log does not record a time.

Towpath's own messages (watermarks, heartbeats, table events, messages of the verifier
and of ``towpath wait``, events without a table) never become such records. Excluded
messages are counted.

``LogicalEvents`` turns messages into events without a table, from the JSON of an outbox
row::

    {"id", "aggregate_type", "aggregate_id", "type", "payload",
     "headers", "traceparent", "occurred_at"}

The first five members are required. A string payload is published as its text, without
quotes; any other payload is copied byte for byte. Options such as ``route_by`` and
placements name members. The message becomes a row of a virtual table, and the outbox's
code writes its event. Outside a transaction there is no commit: the record's timestamp
is ``occurred_at``, or the time at which the relay read the message if that is earlier
or there is no ``occurred_at``.

``RawJson`` returns members byte for byte: if they were parsed and written again,
numbers would lose digits, and spaces and the order of members would change. A strict
parser reads the values; a member's text is cut out of the content. A text search finds
the member if its name occurs once; otherwise all members are parsed.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal

import orjson

from towpath.relay.encode.codecs.codec import TransactionPlace
from towpath.relay.encode.codecs.connect_schema import (
    MAYBE_INT64,
    MAYBE_STRING,
    SOURCE,
    STRING,
    TRANSACTION,
)
from towpath.relay.encode.codecs.factory import Documents
from towpath.relay.encode.dead_letters import NO_AGGREGATE, DeadLetters
from towpath.relay.encode.outbox import (
    EPOCH,
    HEADERS_NOT_AN_OBJECT,
    MILLISECOND,
    EventWriter,
    are_exact,
)
from towpath.relay.encode.outbox_columns import EVENT_PARTS
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import FIXED_BYTES, Header, Record
from towpath.relay.encode.types.form import Schema
from towpath.relay.errors import UnroutableError
from towpath.relay.wal.messages import Column, Relation, Row
from towpath.relay.wal.transactions import LogicalMessageEvent
from towpath.schemas import envelope, headers, topics
from towpath.settings.outbox import Outbox, OutboxColumns
from towpath.settings.relay import Relay
from towpath.settings.rows import Binaries, RecordFormat
from towpath.settings.syntax import compiled, parse_placement

# The collection of messages in transaction metadata: their topic without its prefix.
COLLECTION: Final = "message"
EXCLUDED: Final = "the configuration excludes the logical message's prefix"

OWN_PREFIXES: Final = frozenset(
    {
        "towpath.watermark",
        "towpath.heartbeat",
        "towpath.table",
        "towpath.verify",
        "towpath.wait",
    }
)

KEY: Final = Schema(
    "struct",
    name="io.debezium.connector.postgresql.MessageKey",
    version=1,
    fields=(("prefix", MAYBE_STRING),),
)

_FORMS: Final[Mapping[Binaries, Callable[[bytes], bytes]]] = MappingProxyType(
    {
        Binaries.BYTES: base64.b64encode,
        Binaries.BASE64: base64.b64encode,
        Binaries.BASE64_URL_SAFE: base64.urlsafe_b64encode,
        Binaries.HEX: binascii.hexlify,
    }
)


def value_schema(content: Literal["bytes", "string"]) -> Schema:
    """Return the schema of values, by the type of the content."""
    block = Schema(
        "struct",
        name="io.debezium.connector.postgresql.Message",
        version=1,
        fields=(
            ("prefix", MAYBE_STRING),
            ("content", Schema(content, is_optional=True)),
        ),
    )
    return Schema(
        "struct",
        name="io.debezium.connector.postgresql.MessageValue",
        version=1,
        fields=(
            ("op", STRING),
            ("ts_ms", MAYBE_INT64),
            ("ts_us", MAYBE_INT64),
            ("ts_ns", MAYBE_INT64),
            ("source", SOURCE),
            ("message", block),
            ("transaction", TRANSACTION),
        ),
    )


class MessageRecords:
    """Turns logical messages into records."""

    def __init__(
        self,
        prefix: str,
        database: str,
        relay: Relay,
        documents: Documents,
        on_skipped: Callable[[str], None],
        place: Callable[[str], TransactionPlace] | None = None,
    ) -> None:
        """
        Make the writers of keys and values.

        Args:
            prefix: The topics' prefix.
            database: The database's name, for ``source``.
            relay: ``[relay]``: the published messages, and the format of bytes.
            documents: Makes the writers of keys and values.
            on_skipped: Called with the reason for a message that is excluded.
            place: Counts an event in the open transaction; None without transaction
                metadata.
        """
        self._topic = topics.message_topic(prefix)
        self._include = tuple(map(compiled, relay.messages.include))
        self._exclude = tuple(map(compiled, relay.messages.exclude))
        self._own_prefixes = OWN_PREFIXES | {relay.outbox.message_prefix}
        binaries = relay.rows.binaries
        is_raw = binaries is Binaries.BYTES
        self._form = None
        if not is_raw or documents.format is not RecordFormat.AVRO:
            self._form = _FORMS[binaries]
        value = value_schema("bytes" if is_raw else "string")
        self._write_key = documents.writer(KEY, f"{self._topic}-key")
        self._write_value = documents.writer(value, f"{self._topic}-value")
        self._on_skipped = on_skipped
        self._place = place
        self._names = {
            "version": envelope.SOURCE_VERSION,
            "connector": envelope.CONNECTOR,
            "name": prefix,
            "snapshot": envelope.STREAMED,
            "db": database,
            "schema": "",
            "table": "",
        }

    def record(self, message: LogicalMessageEvent, now_us: int) -> Record | None:
        """Return the message's record; None if it is not published."""
        if message.prefix in self._own_prefixes:
            return None
        if not self._is_included(message.prefix):
            self._on_skipped(EXCLUDED)
            return None
        position, timestamp_ms = _place(message, None, now_us)
        value = self._write_value(self._envelope(message, now_us))
        key = self._write_key({"prefix": message.prefix})
        own: list[Header] = [(headers.POSITION, position)]
        size = len(value) + len(key) + FIXED_BYTES
        return Record(self._topic, key, value, own, position, timestamp_ms, size)

    def _is_included(self, prefix: str) -> bool:
        if self._include and not any(each.fullmatch(prefix) for each in self._include):
            return False
        return not any(each.fullmatch(prefix) for each in self._exclude)

    def _envelope(self, message: LogicalMessageEvent, now_us: int) -> dict[str, object]:
        transaction = message.transaction
        source_us = now_us if transaction is None else transaction.committed_us
        commit_lsn = None if transaction is None else transaction.commit_lsn
        place = None
        if transaction is not None and self._place is not None:
            place = self._place(COLLECTION)
        return {
            "op": "m",
            "ts_ms": now_us // 1000,
            "ts_us": now_us,
            "ts_ns": now_us * 1000,
            "source": self._names
            | {
                "ts_ms": source_us // 1000,
                "ts_us": source_us,
                "ts_ns": source_us * 1000,
                "sequence": _sequence(commit_lsn, message.lsn),
                "txId": transaction and transaction.xid,
                "lsn": message.lsn,
                "commit_lsn": commit_lsn,
                "origin": transaction and transaction.origin,
                "origin_lsn": transaction and transaction.origin_lsn,
                "xmin": None,
            },
            "message": {
                "prefix": message.prefix,
                "content": self._content(message.content),
            },
            "transaction": place
            and {
                "id": place.transaction_id,
                "total_order": place.total_order,
                "data_collection_order": place.collection_order,
            },
        }

    def _content(self, content: bytes) -> bytes | str:
        return content if self._form is None else self._form(content).decode()


def _sequence(commit_lsn: int | None, lsn: int) -> str:
    """Return the sequence of both LSNs, in the format of row changes."""
    commit = "null" if commit_lsn is None else f'"{commit_lsn}"'
    return f'[{commit},"{lsn}"]'


NOT_AN_OBJECT: Final = "the message is not a JSON object"
TOO_DEEP: Final = "the message's JSON is nested too deeply"

# Numbers remain strings: only the ends of values are needed.
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str)
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_COLON: Final = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
# Names that a text search can find, and the escapes that could hide their letters.
_PLAIN: Final = re.compile(r"[A-Za-z_]+\Z")
_ESCAPES: Final = ("\\u004", "\\u005", "\\u006", "\\u007")


class RawJson:
    """A JSON object; if several members have the same name, the last counts."""

    def __init__(self, content: bytes) -> None:
        """
        Parse the object.

        Raises:
            UnroutableError: The content is not a JSON object.
        """
        try:
            members = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise UnroutableError(NOT_AN_OBJECT) from error
        if not isinstance(members, dict):
            raise UnroutableError(NOT_AN_OBJECT)
        self.members: dict[str, Any] = members
        self._content = content.decode()
        self._texts: dict[str, str] | None = None

    def text(self, name: str) -> bytes | None:
        """Return a string's text, None for null, and any other value as written."""
        value = self.members.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            return value.encode()
        try:
            return self._as_written(name).encode()
        except RecursionError as error:
            raise UnroutableError(TOO_DEEP) from error

    def _as_written(self, name: str) -> str:
        content = self._content
        quoted = f'"{name}"'
        is_bare = _PLAIN.match(name) and not any(h in content for h in _ESCAPES)
        if is_bare and content.count(quoted) == 1:
            found = _COLON.match(content, content.index(quoted) + len(quoted))
            if found is not None:
                start = found.end()
                return content[start : _end(content, start)]
        if self._texts is None:
            self._texts = _member_texts(content)
        return self._texts[name]


def _end(content: str, start: int) -> int:
    """Return the end of the value that begins at ``start``."""
    end: int = _DECODER.raw_decode(content, start)[1]
    return end


def _member_texts(content: str) -> dict[str, str]:
    """Return the text of every member of a valid object."""
    texts: dict[str, str] = {}
    at = _skip(content, _skip(content, 0) + 1)
    while content[at] != "}":
        name, at = _DECODER.raw_decode(content, at)
        start = _skip(content, _skip(content, at) + 1)
        end = _end(content, start)
        texts[name] = content[start:end]
        at = _skip(content, end)
        if content[at] == ",":
            at = _skip(content, at + 1)
    return texts


def _skip(content: str, at: int) -> int:
    found = _SPACE.match(content, at)
    return at if found is None else found.end()


MISSING_MEMBERS: Final = (
    "the message lacks id, aggregate_type, aggregate_id, type or payload"
)
NO_ID: Final = "the message's id is not a string"
BAD_TIME: Final = "the message's occurred_at is not an RFC 3339 time"

_REQUIRED: Final = frozenset(
    {"id", "aggregate_type", "aggregate_id", "type", "payload"}
)
_TEXT: Final = 25
_JSON: Final = 114
# 2026-01-02T03:04:05.600000Z: the format of Towpath's own writers.
_USUAL_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


class LogicalEvents:
    """Turns logical messages into events."""

    def __init__(
        self,
        outbox: Outbox,
        dead: DeadLetters,
        parked: ParkedAggregates,
        reserved: Container[str],
        on_skipped: Callable[[str], None],
    ) -> None:
        """
        Resolve the options for messages, as for a table.

        Args:
            outbox: ``[relay.outbox]``.
            dead: Makes dead letters.
            parked: The parked aggregates, which ``dead`` uses, too.
            reserved: Topics that no event may use.
            on_skipped: Called with the reason for a header that is dropped.
        """
        self._outbox = outbox
        self._names = _names(outbox)
        self._dead = dead
        self._spans = parked.spans
        whole = outbox.model_copy(update={"columns": _columns(outbox.columns)})
        self._writers = {
            oid: EventWriter(_relation(self._names, oid), whole, reserved, on_skipped)
            for oid in (_TEXT, _JSON)
        }

    def records(self, message: LogicalMessageEvent, now_us: int) -> Sequence[Record]:
        """
        Return the event of a message, or its dead letter.

        Raises:
            ParkedOverflowError: More aggregates are parked than allowed.
        """
        aggregate = NO_AGGREGATE
        try:
            document = RawJson(message.content)
            aggregate = document.text("aggregate_type"), document.text("aggregate_id")
            row, payload_oid = _row(document, self._names)
            place = _place(message, document.members.get("occurred_at"), now_us)
            record = self._writers[payload_oid].event(row, *place)
        except UnroutableError as failure:
            place = _place(message, None, now_us)
            return (self._dead.of_message(message, place, str(failure), aggregate),)
        return (self._dead.unless_parked(record) if self._spans else record,)


def _columns(columns: OutboxColumns) -> OutboxColumns:
    """Return the columns of all parts; a part without one gets a column of its name."""
    absent = {part: part for part in EVENT_PARTS if not getattr(columns, part)}
    return columns.model_copy(update=absent)


def _names(outbox: Outbox) -> dict[str, str]:
    """Return the names of members, by the columns that options may name."""
    columns = _columns(outbox.columns)
    named = {getattr(columns, part): part for part in EVENT_PARTS}
    placed = [parse_placement(text).column for text in outbox.placements]
    more = (outbox.route_by, columns.timestamp, columns.schema_version, *placed)
    return named | {name: name for name in more if name and name not in named}


def _relation(names: Mapping[str, str], payload_oid: int) -> Relation:
    columns = tuple(
        Column(name, payload_oid if member == "payload" else _TEXT)
        for name, member in names.items()
    )
    return Relation(
        oid=0, schema="pg_logical_emit_message", table="()", columns=columns, key=()
    )


def _row(document: RawJson, names: Mapping[str, str]) -> tuple[Row, int]:
    """Return the message as a row, and its payload's type."""
    members = document.members
    if not members.keys() >= _REQUIRED:
        raise UnroutableError(MISSING_MEMBERS)
    if not isinstance(members["id"], str):
        raise UnroutableError(NO_ID)
    values = [
        _READERS[member](document) if member in _READERS else document.text(member)
        for member in names.values()
    ]
    return tuple(values), _TEXT if isinstance(members["payload"], str) else _JSON


def _headers(document: RawJson) -> bytes | None:
    value = document.members.get("headers")
    if isinstance(value, dict) and not are_exact(value):
        return document.text("headers")
    try:
        return None if value is None else orjson.dumps(value)
    except TypeError as error:
        raise UnroutableError(HEADERS_NOT_AN_OBJECT) from error


def _occurred_at(document: RawJson) -> bytes | None:
    """Return a time as Postgres writes it, in UTC."""
    value = document.members.get("occurred_at")
    found = _instant(value)
    if found is None:
        return None
    if isinstance(value, str) and _USUAL_TIME.fullmatch(value):
        return f"{value[:10]} {value[11:26]}+00".encode()
    try:
        text = found.astimezone(UTC).isoformat(" ", "microseconds")
    except OverflowError as error:
        raise UnroutableError(BAD_TIME) from error
    return text.removesuffix(":00").encode()


# Readers of members that need more than their text.
_READERS: Final[Mapping[str, Callable[[RawJson], bytes | None]]] = MappingProxyType(
    {"headers": _headers, "occurred_at": _occurred_at}
)


def _instant(value: object) -> datetime | None:
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)  # type: ignore[arg-type]  # caught
    except (TypeError, ValueError) as error:
        raise UnroutableError(BAD_TIME) from error
    if found.tzinfo is None:
        raise UnroutableError(BAD_TIME)
    return found


def _place(
    message: LogicalMessageEvent, occurred_at: object, now_us: int
) -> tuple[bytes, int]:
    """Return the position's text, and the record's timestamp in milliseconds."""
    transaction = message.transaction
    if transaction is not None:
        position = transaction.place + b"%010d" % message.ordinal
        return position, transaction.committed_us // 1000
    now_ms = now_us // 1000
    found = _instant(occurred_at)
    if found is not None:
        # Kafka refuses times before 1970, and times far ahead of its own clock.
        occurred_ms = (found - EPOCH) // MILLISECOND
        now_ms = min(max(1, occurred_ms), now_ms)
    return b"%016x.-" % message.log_lsn, now_ms
