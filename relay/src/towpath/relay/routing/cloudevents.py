"""
CloudEvents in binary mode: the value stays the payload, headers name the event.

=================  ====================================================
ce_specversion     1.0
ce_id, ce_type     the event's id and type: without them it is none
ce_source          the configured URI
ce_subject         the aggregate's id; left out if it is null or empty
ce_time            when it occurred; left out without a time of RFC 3339
ce_dataschema      the row's header ``schema``; left out without
content-type       the row's own, or by the payload's type; none without a value
=================  ====================================================
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from towpath.relay.errors import UnroutableError
from towpath.relay.routing.draft import Draft, Step
from towpath.relay.routing.outbox_columns import BYTEA, JSON_TYPES
from towpath.relay.routing.record import Header
from towpath.schemas import headers

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


def cloudevent_step(source: str, payload_oid: int, *, is_enveloped: bool) -> Step:
    """
    Return what makes a draft a CloudEvent.

    Args:
        source: The URI of ``ce_source``.
        payload_oid: The type of the payload's column.
        is_enveloped: Whether the value is an envelope of JSON.
    """
    fixed: tuple[Header, ...] = (
        (headers.CE_SPECVERSION, _VERSION),
        (headers.CE_SOURCE, source.encode()),
    )
    content_type = _JSON if is_enveloped else _content_type(payload_oid)

    def step(draft: Draft) -> None:
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
    """Return the key as text; bytes that are none by their hex digits."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return key.hex().encode()
    return key


def _content_type(oid: int) -> bytes:
    if oid in JSON_TYPES:
        return _JSON
    return _BYTES if oid == BYTEA else _TEXT
