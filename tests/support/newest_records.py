"""The newest record of each key, as a reader of one partition sees it."""

import json
from typing import Any

from confluent_kafka import Message

from support.topics import headers_of


def folded(records: list[Message]) -> dict[bytes, dict[str, Any]]:
    """Return the row of each key after these records of a topic with one partition."""
    held: dict[bytes, tuple[str, dict[str, Any] | None]] = {}
    floor = ""
    for record in records:
        if record.value() is None:
            continue
        headers, envelope = headers_of(record), json.loads(record.value())
        position = headers["position"][:27]
        if envelope["op"] == "t" or "sweep" in headers:
            floor = max(floor, headers.get("sweep") or position)
            held = {k: v for k, v in held.items() if v[0] >= floor}
        elif record.key() is not None and position >= floor:
            _apply(held, record.key(), position, envelope["after"], headers)
    return {key: row for key, (_, row) in held.items() if row is not None}


def _apply(
    held: dict[bytes, tuple[str, dict[str, Any] | None]],
    key: bytes,
    position: str,
    after: dict[str, Any] | None,
    headers: dict[str, Any],
) -> None:
    """Apply a change to the stored row of its key; keep unchanged columns."""
    before, row = held.get(key, ("", None))
    if position < before:
        return
    if after is not None and "unchanged" in headers and row is not None:
        kept = {n: row[n] for n in json.loads(headers["unchanged"]) if n in row}
        after = {**after, **kept}
    held[key] = (position, after)
