"""
Additional columns of an outbox row: as headers, as the partition, in an envelope.

``column:header[:alias]`` adds a header with the column's text (``true`` and ``false``
for booleans), bytes for ``bytea``, no value for NULL. ``column:partition`` chooses the
partition. ``column:envelope[:alias]`` makes the value ``{"payload": ..., "<alias>":
...}``: JSON stands in it as it is, numbers and booleans as such, ``bytea`` as base64,
everything else as text.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Final

import orjson

from towpath.relay.errors import UnroutableError
from towpath.relay.routing.draft import Draft, Step
from towpath.relay.routing.outbox_columns import (
    BYTEA,
    JSON_TYPES,
    PARTS,
    as_bytes,
    names,
    place,
    places,
    type_oid,
)
from towpath.relay.wal.messages import Value
from towpath.relay.wal.relation import Relation
from towpath.settings.outbox import MissingColumn, Outbox, OutboxColumns
from towpath.settings.syntax import PlacedIn, Placement, parse_placement

BAD_PARTITION: Final = "the column that names the partition holds no partition's number"

_BOOLEAN: Final = 16
_NUMBERS: Final = frozenset({20, 21, 23, 26})
_FLOATS: Final = frozenset({700, 701})
_NO_NUMBERS: Final = frozenset({b"NaN", b"Infinity", b"-Infinity"})
_WORDS: Final = {b"t": b"true", b"f": b"false"}
_MAX_PARTITION: Final = (1 << 31) - 1
_PAYLOAD_AT: Final = PARTS.index("payload")

Fragment = Callable[[bytes], bytes]


def placement_steps(relation: Relation, outbox: Outbox) -> Iterable[Step]:
    """
    Return what the placements do to a draft.

    Raises:
        NotPreparedError: The table lacks a column, and that is an error.
    """
    known = places(relation)
    is_strict = outbox.on_missing_column is MissingColumn.ERROR
    wanted = [
        placement
        for placement in map(parse_placement, outbox.placements)
        if not is_there_already(placement, outbox.columns)
        and (is_strict or placement.column in known)
    ]
    for placement in wanted:
        if placement.place is PlacedIn.HEADER:
            yield _header(relation, placement)
        elif placement.place is PlacedIn.PARTITION:
            yield _partition(relation, placement)
    enveloped = [each for each in wanted if each.place is PlacedIn.ENVELOPE]
    if enveloped:
        yield _envelope(relation, outbox.columns, enveloped)


def is_there_already(placement: Placement, columns: OutboxColumns) -> bool:
    """Tell whether it asks for a header that every event has, from the same column."""
    standing = columns.standing_headers.get(placement.name)
    return placement.place is PlacedIn.HEADER and standing == placement.column


def _header(relation: Relation, placement: Placement) -> Step:
    at, oid = place(relation, placement.column), type_oid(relation, placement.column)
    name = placement.name
    words = _WORDS if oid == _BOOLEAN else {}

    def step(draft: Draft) -> None:
        value = as_bytes(draft.row[at], oid)
        draft.extend((name, value if value is None else words.get(value, value)))

    return step


def _partition(relation: Relation, placement: Placement) -> Step:
    at = place(relation, placement.column)

    def step(draft: Draft) -> None:
        draft.partition = _number(draft.row[at])

    return step


def _number(value: Value) -> int:
    """Read a partition; whether the topic has it is for whoever knows the topic."""
    text = value if isinstance(value, bytes) else b""
    if not text.isdigit() or (number := int(text[:20])) > _MAX_PARTITION:
        raise UnroutableError(BAD_PARTITION)
    return number


def _envelope(
    relation: Relation, columns: OutboxColumns, placements: list[Placement]
) -> Step:
    payload_name = names(columns)[_PAYLOAD_AT]
    payload_fragment = _payload_fragment(type_oid(relation, payload_name))
    members = [
        (
            b"," + orjson.dumps(each.name) + b":",
            place(relation, each.column),
            _fragment(type_oid(relation, each.column)),
        )
        for each in placements
    ]

    def step(draft: Draft) -> None:
        parts = [b'{"payload":', _written(draft.value, payload_fragment)]
        for name, at, fragment in members:
            parts += name, _written(draft.row[at], fragment)
        parts.append(b"}")
        before = draft.value
        value = draft.value = b"".join(parts)
        draft.size += len(value) - len(before or b"")

    return step


def _written(value: Value, fragment: Fragment) -> bytes:
    return fragment(value) if isinstance(value, bytes) else b"null"


def _payload_fragment(oid: int) -> Fragment:
    """Write the payload, which is bytes already if it is a ``bytea``."""
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
    return _text(text) if text in _NO_NUMBERS else text


def _text(text: bytes) -> bytes:
    return orjson.dumps(text.decode())
