"""
How rows stand in dead letters: as JSON, from which all of them can be made again.

Values are the log's texts. Where JSON has no form they are objects: ``{"base64": ...}``
for bytes, ``{"unchanged": true}`` for what the log left out.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.outbox_columns import BYTEA
from towpath.relay.wal.messages import Delete, Insert, Row, Update, Value
from towpath.relay.wal.pgoutput import parse_message
from towpath.relay.wal.relation import Relation


def texts(relation: Relation, row: Row) -> dict[str, Any]:
    """Return a row by its columns' names."""
    return {
        column.name: _bytea(value) if column.type_oid == BYTEA else _told(value)
        for column, value in zip(relation.columns, row, strict=True)
    }


def _bytea(value: Value) -> Any:  # noqa: ANN401 - a JSON value
    """Return what a ``bytea`` stands for."""
    if not isinstance(value, bytes):
        return _told(value)
    return {"base64": base64.b64encode(binascii.unhexlify(value[2:])).decode()}


def _told(value: Value) -> Any:  # noqa: ANN401 - a JSON value
    if value is None:
        return None
    return plain(value) if isinstance(value, bytes) else {"unchanged": True}


def plain(value: bytes) -> str | dict[str, str]:
    """Return bytes as the text that they are, or as base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def decoded(raw: bytes, relation: Relation | None) -> Mapping[str, Any]:
    """
    Return what a message of the log says of a row: ``new`` and ``old``.

    Args:
        raw: The message, whatever it is.
        relation: Its table's shape, if known; without one rows are lists.
    """
    try:
        message = parse_message(raw)
    except MalformedMessageError:
        return {}
    if not isinstance(message, Insert | Update | Delete):
        return {}
    new = None if isinstance(message, Delete) else message.new
    old = None if isinstance(message, Insert) else message.old
    rows = {"new": new, "old": old}
    return {
        name: _named(relation, row) for name, row in rows.items() if row is not None
    }


def _named(relation: Relation | None, row: Row) -> Any:  # noqa: ANN401 - JSON
    if relation is None or len(relation.columns) != len(row):
        return [_told(value) for value in row]
    return texts(relation, row)
