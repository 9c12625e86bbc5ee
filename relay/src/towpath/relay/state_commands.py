"""
The state in the operator's hands: show it, export it, skip a transaction.

They work beside a running relay, which reads what they write when it starts or connects
again. Whatever Postgres was told to forget cannot be had back: a slot never goes back.
"""

import base64
from collections.abc import Iterator
from typing import Any, Final

import orjson

from towpath.relay.errors import StateRefusedError
from towpath.relay.kafka.parked import read_parked
from towpath.relay.kafka.reading import partition_counts
from towpath.relay.kafka.rescue import known_ends
from towpath.relay.kafka.state import StateTopic
from towpath.relay.lineage import parse_lineages
from towpath.relay.state import SKIP_KEY, parse_state
from towpath.relay.state_reading import newest, require_topic, slot_facts, take_back
from towpath.relay.state_view import Around, document
from towpath.relay.stored_settings import differences
from towpath.schemas import topics as names
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.position import format_lsn, parse_lsn, parse_position
from towpath.settings import Settings

_ALIGNMENT: Final = 8
_NO_LIMIT: Final = 1 << 62


def show(settings: Settings, first: int) -> dict[str, Any]:
    """
    Return everything that is known of the state, as one document.

    Raises:
        StateRefusedError: There is no state topic.
        BrokerUnavailableError: Kafka does not answer.
    """
    kafka, source = settings.kafka, settings.database
    stored = newest(settings)
    state = parse_state(stored)
    has_letters = names.dead_letter_topic(source.prefix, "relay") in partition_counts(
        kafka
    )
    facts, source_error = slot_facts(settings)
    around = Around(
        topic=names.state_topic(source.prefix),
        ends=known_ends(kafka, state.marks),
        parked=read_parked(kafka, source.prefix, _NO_LIMIT) if has_letters else None,
        skips={
            key: orjson.loads(value)
            for key, value in stored.items()
            if key.startswith(SKIP_KEY)
        },
        differing=()
        if state.settings is None
        else differences(settings, state.settings),
        slot=facts,
        source_error=source_error,
    )
    return document(state, around, first)


def export(settings: Settings) -> Iterator[dict[str, Any]]:
    """
    Return every record of the state topic, oldest first.

    Raises:
        StateRefusedError: There is no state topic.
        BrokerUnavailableError: Kafka does not answer.
    """
    require_topic(settings)
    for message in StateTopic(settings.kafka, settings.database.prefix).messages():
        _, timestamp_ms = message.timestamp()
        yield {
            "offset": message.offset(),
            "timestamp_ms": timestamp_ms,
            "key": (message.key() or b"").decode(errors="replace"),
            **_exported(message.value()),
        }


def _exported(value: bytes | None) -> dict[str, Any]:
    try:
        return {"value": orjson.loads(value) if value else None}
    except orjson.JSONDecodeError:
        return {"value_base64": base64.b64encode(value or b"").decode()}


def commit_lsn(settings: Settings, text: str) -> int:
    """
    Return the commit LSN that is meant, after making sure that it can be skipped.

    Args:
        settings: Of the relay.
        text: An LSN as ``X/Y``, or the position of one of its records.

    Raises:
        StateRefusedError: It cannot be skipped; the message says why.
    """
    state = parse_state(newest(settings))
    lineages = parse_lineages(state.lineage)
    if not lineages or state.confirmed is None:
        reason = "nothing is known of what was confirmed: the relay has not run yet"
        raise StateRefusedError(reason)
    lsn = _meant(text, lineages[-1].offset)
    if lsn % _ALIGNMENT:
        reason = f"{format_lsn(lsn)} is no commit's: those are multiples of 8"
        raise StateRefusedError(reason)
    facts, _ = slot_facts(settings)
    highest = max(state.confirmed.lsn, facts.confirmed_lsn if facts else 0)
    if lsn <= highest:
        reason = (
            f"{format_lsn(lsn)} is confirmed already, up to {format_lsn(highest)}: "
            "Postgres never streams it again"
        )
        raise StateRefusedError(reason)
    return lsn


def _meant(text: str, offset: int) -> int:
    try:
        return parse_lsn(text)
    except ValueError:
        pass
    try:
        return parse_position(text).log_lsn - offset
    except ValueError as error:
        reason = f"{text!r} is neither an LSN like 0/16B3748 nor a position"
        raise StateRefusedError(reason) from error


def ask_to_skip(settings: Settings, lsn: int, clock: Clock | None = None) -> None:
    """
    Write that a transaction is to be set aside; ``commit_lsn`` has allowed it.

    Raises:
        BrokerUnavailableError: Kafka does not answer.
    """
    at = (clock or SystemClock()).now().isoformat(timespec="seconds")
    lineages = parse_lineages(parse_state(newest(settings)).lineage)
    # Another lineage may have a transaction at the same LSN.
    log_lsn = lineages[-1].offset + lsn
    StateTopic(settings.kafka, settings.database.prefix).write(
        f"{SKIP_KEY}{format_lsn(lsn)}",
        {"asked_at": at, "done": False, "log_lsn": log_lsn},
    )


def take_back_skip(settings: Settings, text: str) -> str:
    """
    Take a pending skip back, and return its LSN.

    Raises:
        StateRefusedError: No skip of this LSN is pending.
    """
    state = parse_state(newest(settings))
    lineages = parse_lineages(state.lineage)
    offset = lineages[-1].offset if lineages else 0
    lsn = _meant(text, offset)
    if offset + lsn not in state.skips:
        reason = f"no skip of {format_lsn(lsn)} is pending"
        raise StateRefusedError(reason)
    take_back(settings, f"{SKIP_KEY}{format_lsn(lsn)}")
    return format_lsn(lsn)
