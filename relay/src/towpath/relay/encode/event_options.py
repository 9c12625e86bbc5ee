"""
The options that change an event's draft: placements of columns, and CloudEvents.

``column:header[:alias]`` adds a header with the column's text (``true`` and ``false``
for booleans), bytes for ``bytea``, and no value for NULL. ``column:partition`` chooses
the partition. ``column:envelope[:alias]`` makes the value ``{"payload": ..., "<alias>":
...}``, with JSON, integers, finite floats and booleans unchanged, ``bytea`` as base64,
and all other values as text.

CloudEvents are in binary mode: the value remains the payload, and headers describe it.

=================  ====================================================
ce_specversion     1.0
ce_id, ce_type     the event's id and type, both required
ce_source          the configured URI
ce_subject         the aggregate's id, unless it is null or empty
ce_time            the time of occurrence, if it is an RFC 3339 time
ce_dataschema      the row's header ``schema``, if there is one
content-type       set by the row; otherwise derived from the type of the value, if any
=================  ====================================================
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from towpath.relay.encode.outbox_columns import (
    BYTEA,
    EVENT_PARTS,
    JSON_TYPES,
    EventParts,
    as_bytes,
    column_names,
    column_place,
    column_places,
    type_oid,
)
from towpath.relay.encode.record import (
    ANY_PARTITION,
    HEADER_BYTES,
    Header,
    Record,
)
from towpath.relay.encode.types.scalar import NON_FINITE
from towpath.relay.errors import UnroutableError
from towpath.relay.wal.messages import Relation, Row, Value
from towpath.schemas import headers
from towpath.settings.outbox import MissingColumn, Outbox, OutboxColumns
from towpath.settings.syntax import PlacedIn, Placement, parse_placement

# Skips a named tuple's own constructor, which costs more than creating the tuple.
_make: Final = tuple.__new__


@dataclass(slots=True)
class EventDraft:
    """
    An event that options may still change.

    Attributes:
        topic: Its topic; empty until the topic rule has run.
        key: The aggregate's id.
        value: The payload.
        headers: The record's headers, in order.
        position: The text of the position.
        timestamp_ms: The commit time, or the time from a column.
        size: An upper bound on its bytes.
        parts: The row's parts, in the order of ``EVENT_PARTS``.
        row: The whole row.
        partition: Explicit, or ``ANY_PARTITION``.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    position: bytes
    timestamp_ms: int
    size: int
    parts: EventParts
    row: Row
    partition: int = ANY_PARTITION

    def extend(self, *more: Header) -> None:
        """Append headers."""
        self.headers += more
        self.size += sum(
            [
                len(name.encode()) + len(value or b"") + HEADER_BYTES
                for name, value in more
            ]
        )

    def rewrite(self, name: str, change: Callable[[bytes], bytes]) -> None:
        """Replace the value of each header of this name with one that is not longer."""
        for at, (known, value) in enumerate(self.headers):
            if known == name and isinstance(value, bytes):
                self.headers[at] = name, change(value)

    def record(self) -> Record:
        """Return the finished record."""
        return _make(
            Record,
            (
                self.topic,
                self.key,
                self.value,
                self.headers,
                self.position,
                self.timestamp_ms,
                self.size,
                self.partition,
            ),
        )


# One option's change to a draft.
DraftStep = Callable[[EventDraft], None]


BAD_PARTITION: Final = "the column that names the partition has no partition number"

_BOOLEAN: Final = 16
_NUMBERS: Final = frozenset({20, 21, 23, 26})
_FLOATS: Final = frozenset({700, 701})
_WORDS: Final = {b"t": b"true", b"f": b"false"}
_MAX_PARTITION: Final = (1 << 31) - 1
_PAYLOAD_AT: Final = EVENT_PARTS.index("payload")

Fragment = Callable[[bytes], bytes]


def placement_steps(relation: Relation, outbox: Outbox) -> Iterable[DraftStep]:
    """
    Yield the steps of the placements.

    Raises:
        NotPreparedError: A column is missing, and the options forbid that.
    """
    placements = _applied(relation, outbox)
    for placement in placements:
        if placement.place is PlacedIn.HEADER:
            yield _header(relation, placement)
        elif placement.place is PlacedIn.PARTITION:
            yield _partition(relation, placement)
    enveloped = [each for each in placements if each.place is PlacedIn.ENVELOPE]
    if enveloped:
        yield _envelope(relation, outbox.columns, enveloped)


def has_envelope(relation: Relation, outbox: Outbox) -> bool:
    """Return whether the values of a table's events are JSON envelopes."""
    return any(each.place is PlacedIn.ENVELOPE for each in _applied(relation, outbox))


def _applied(relation: Relation, outbox: Outbox) -> list[Placement]:
    """Return the placements, without standard ones and those of missing columns."""
    known = column_places(relation)
    is_strict = outbox.on_missing_column is MissingColumn.ERROR
    return [
        placement
        for placement in map(parse_placement, outbox.placements)
        if not is_standard(placement, outbox.columns)
        and (is_strict or placement.column in known)
    ]


def is_standard(placement: Placement, columns: OutboxColumns) -> bool:
    """Return whether every event has the placement's header, from the same column."""
    standard = columns.standard_headers.get(placement.name)
    return placement.place is PlacedIn.HEADER and standard == placement.column


def _header(relation: Relation, placement: Placement) -> DraftStep:
    at, oid = (
        column_place(relation, placement.column),
        type_oid(relation, placement.column),
    )
    name = placement.name
    words = _WORDS if oid == _BOOLEAN else {}

    def step(draft: EventDraft) -> None:
        value = as_bytes(draft.row[at], oid)
        draft.extend((name, value if value is None else words.get(value, value)))

    return step


def _partition(relation: Relation, placement: Placement) -> DraftStep:
    at = column_place(relation, placement.column)

    def step(draft: EventDraft) -> None:
        draft.partition = _number(draft.row[at])

    return step


def _number(value: Value) -> int:
    """Parse a partition's number; the publisher checks that the topic has it."""
    text = value if isinstance(value, bytes) else b""
    if not text.isdigit() or (number := int(text[:20])) > _MAX_PARTITION:
        raise UnroutableError(BAD_PARTITION)
    return number


def _envelope(
    relation: Relation, columns: OutboxColumns, placements: list[Placement]
) -> DraftStep:
    payload_name = column_names(columns)[_PAYLOAD_AT]
    payload_fragment = _payload_fragment(type_oid(relation, payload_name))
    members = [
        (
            b"," + orjson.dumps(each.name) + b":",
            column_place(relation, each.column),
            _fragment(type_oid(relation, each.column)),
        )
        for each in placements
    ]

    def step(draft: EventDraft) -> None:
        parts = [b'{"payload":', _json_or_null(draft.value, payload_fragment)]
        for name, at, fragment in members:
            parts += name, _json_or_null(draft.row[at], fragment)
        parts.append(b"}")
        before = draft.value
        value = draft.value = b"".join(parts)
        draft.size += len(value) - len(before or b"")

    return step


def _json_or_null(value: Value, fragment: Fragment) -> bytes:
    return fragment(value) if isinstance(value, bytes) else b"null"


def _payload_fragment(oid: int) -> Fragment:
    """Return the payload's writer; a ``bytea`` has already been decoded."""
    return _base64 if oid == BYTEA else _fragment(oid)


def _fragment(oid: int) -> Fragment:
    if oid in JSON_TYPES or oid in _NUMBERS:
        return bytes
    if oid == BYTEA:
        return lambda text: _base64(binascii.unhexlify(text[2:]))
    if oid == _BOOLEAN:
        return _WORDS.__getitem__
    return _float if oid in _FLOATS else _text


def _base64(value: bytes) -> bytes:
    return b'"' + base64.b64encode(value) + b'"'


def _float(text: bytes) -> bytes:
    return _text(text) if text in NON_FINITE else text


def _text(text: bytes) -> bytes:
    return orjson.dumps(text.decode())


NOT_A_CLOUDEVENT: Final = "a CloudEvent needs an id and a type, and the row lacks one"

ATTRIBUTES: Final = frozenset(
    {
        headers.CE_SPECVERSION,
        headers.CE_ID,
        headers.CE_SOURCE,
        headers.CE_TYPE,
        headers.CE_SUBJECT,
        headers.CE_TIME,
        headers.CE_DATASCHEMA,
    }
)
_VERSION: Final = b"1.0"
_RFC_3339: Final = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z\Z")
_JSON: Final = b"application/json"
_BYTES: Final = b"application/octet-stream"
_TEXT: Final = b"text/plain; charset=utf-8"


def cloudevent_step(source: str, payload_oid: int, *, is_enveloped: bool) -> DraftStep:
    """
    Return the step that makes an event a CloudEvent.

    Args:
        source: The URI of ``ce_source``.
        payload_oid: The type of the payload's column.
        is_enveloped: Whether the value is a JSON envelope.
    """
    fixed: tuple[Header, ...] = (
        (headers.CE_SPECVERSION, _VERSION),
        (headers.CE_SOURCE, source.encode()),
    )
    content_type = _JSON if is_enveloped else _content_type(payload_oid)

    def step(draft: EventDraft) -> None:
        event_id, event_type = draft.parts[0], draft.parts[3]
        if not event_id or not event_type:
            raise UnroutableError(NOT_A_CLOUDEVENT)
        found = dict(draft.headers)
        draft.extend(
            *fixed,
            (headers.CE_ID, event_id),
            (headers.CE_TYPE, event_type),
            *_optional(found, draft.key),
        )
        if draft.value is not None and headers.CONTENT_TYPE not in found:
            draft.extend((headers.CONTENT_TYPE, content_type))

    return step


def _optional(
    found: Mapping[str, str | bytes | None], key: bytes | None
) -> Iterable[Header]:
    if key:
        yield headers.CE_SUBJECT, _subject(key)
    occurred_at = found.get(headers.OCCURRED_AT)
    if isinstance(occurred_at, bytes) and _RFC_3339.match(occurred_at):
        yield headers.CE_TIME, occurred_at
    schema = found.get(headers.EVENT_SCHEMA)
    if schema:
        yield headers.CE_DATASCHEMA, schema


def _subject(key: bytes) -> bytes:
    """Return the key if it is UTF-8, or else its hex digits."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return key.hex().encode()
    return key


def _content_type(oid: int) -> bytes:
    if oid in JSON_TYPES:
        return _JSON
    return _BYTES if oid == BYTEA else _TEXT
