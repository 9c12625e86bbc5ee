"""
Signals that are left elsewhere than in ``towpath.signal``, which then gets them.

A bare table as Debezium has it, a Kafka topic and the admin port take signals too. Each
becomes a row of the signal table and is answered as any other is; what cannot be such a
row is rejected with the reason.
"""

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from towpath.relay.snapshot.signals import SignalRejectedError, is_storable

# The columns of the signal table, which are Debezium's.
MAX_ID_LENGTH: Final = 64
MAX_TYPE_LENGTH: Final = 32

# Rows of a signal table that are watermarks.
WINDOW_TYPES: Final = frozenset({"snapshot-window-open", "snapshot-window-close"})

_FIELDS: Final = frozenset({"id", "type", "data"})


class LeftSignal(NamedTuple):
    """
    A signal as somebody left it.

    Attributes:
        signal_id: Its id, and the snapshot's.
        type: What is asked for.
        data: A JSON object, as text; None: nothing further.
        source: Where it was left, for people.
        relay: Whose channel it was left in, if it names no relay; None: everybody's.
    """

    signal_id: str
    type: str
    data: str | None
    source: str
    relay: str | None = None


class Refusal(NamedTuple):
    """A signal that was left and cannot be one: what its notification says."""

    signal_id: str
    reason: str
    source: str


def left_signal(
    signal_id: str | None, kind: str | None, data: str | None, source: str
) -> LeftSignal:
    """
    Return a signal that the signal table can take.

    Raises:
        SignalRejectedError: It cannot.
    """
    if not signal_id:
        reason = "the signal has no id"
        raise SignalRejectedError(reason)
    if len(signal_id) > MAX_ID_LENGTH:
        reason = f"the id has {len(signal_id)} characters; at most {MAX_ID_LENGTH} fit"
        raise SignalRejectedError(reason)
    if not kind:
        reason = "the signal has no type"
        raise SignalRejectedError(reason)
    if len(kind) > MAX_TYPE_LENGTH or kind in WINDOW_TYPES:
        reason = f"unknown signal type {kind[:MAX_TYPE_LENGTH]!r}"
        raise SignalRejectedError(reason)
    if not all(map(is_storable, (signal_id, kind, data or ""))):
        reason = "the signal holds what is not a text that Postgres holds"
        raise SignalRejectedError(reason)
    return LeftSignal(signal_id, kind, data, source)


def read_document(document: bytes, fallback_id: str, source: str) -> LeftSignal:
    """
    Read a signal that is a JSON object of ``type``, ``data`` and perhaps ``id``.

    ``data`` may be an object, or its text.

    Args:
        document: The JSON.
        fallback_id: The signal's id if it has none.
        source: Where it was left.

    Raises:
        SignalRejectedError: It is no signal.
    """
    fields = _object(document)
    unknown = sorted(set(fields) - _FIELDS)
    if unknown:
        reason = f"unknown field {unknown[0]!r} beside id, type and data"
        raise SignalRejectedError(reason)
    return left_signal(
        _text(fields, "id") or fallback_id, _text(fields, "type"), _data(fields), source
    )


def _object(document: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(document, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        reason = f"the signal is not JSON: {error}"
        raise SignalRejectedError(reason) from error
    if not isinstance(fields, dict):
        reason = "the signal must be a JSON object of type, data and perhaps id"
        raise SignalRejectedError(reason)
    return fields


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        reason = f"the signal's {name} must be a text"
        raise SignalRejectedError(reason)
    return value


def _data(fields: Mapping[str, Any]) -> str | None:
    data = fields.get("data")
    if data is None or isinstance(data, str):
        return data
    # A decimal may be a key: its text keeps all its digits.
    return json.dumps(data, ensure_ascii=False, default=str)
