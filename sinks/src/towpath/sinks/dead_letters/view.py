"""Summaries of dead letters for display, by key. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from towpath.sinks.dead_letters.entries import BEHIND, DeadLetter, Subject
from towpath.sinks.dead_letters.parked import OpenDeadLetters


def listed(
    open_letters: OpenDeadLetters, key: str | None = None
) -> list[dict[str, Any]]:
    """Return a summary per open subject, in the order of their first dead letters."""
    return [
        summary(subject, open_letters.of(subject))
        for subject in chosen(open_letters, key)
    ]


def chosen(open_letters: OpenDeadLetters, key: str | None) -> list[Subject]:
    """
    Return the open subjects that a key's text names.

    Args:
        open_letters: The open dead letters.
        key: The key as in the records, or only its values (``7``, ``7:de``), or
            ``<topic>/<partition>/<offset>`` of one dead letter; ``None`` for all.
    """
    if key is None:
        return list(open_letters.dead_letters)
    return [subject for subject in open_letters.dead_letters if key in _names(subject)]


def summary(subject: Subject, dead_letters: Sequence[DeadLetter]) -> dict[str, Any]:
    """Return the summary of a subject's open dead letters."""
    cause = next((x for x in dead_letters if x.reason != BEHIND), dead_letters[0])
    return {
        "topic": subject.topic,
        "route": cause.route,
        "key": text_of_key(subject.key),
        "is_parked": subject.at is None,
        "letters": len(dead_letters),
        "reason": cause.reason,
        "first_position": dead_letters[0].position,
        "last_position": dead_letters[-1].position,
        "record": "/".join(map(str, cause.record.origin)),
    }


def shown(dead_letters: Iterable[DeadLetter]) -> list[dict[str, Any]]:
    """Return each dead letter with its record."""
    return [
        {
            "record": "/".join(map(str, dead_letter.record.origin)),
            "route": dead_letter.route,
            "reason": dead_letter.reason,
            "position": dead_letter.position,
            "key": text_of_key(dead_letter.record.key),
            "headers": {n: _text(v) for n, v in dead_letter.record.headers.items()},
            "value": None
            if dead_letter.record.value is None
            else _text(dead_letter.record.value),
        }
        for dead_letter in dead_letters
    ]


def text_of_key(key: bytes | None) -> str:
    """Return a record's key as text; empty if it has none."""
    return "" if key is None else _text(key)


def _names(subject: Subject) -> set[str]:
    text = text_of_key(subject.key)
    names = {text} if subject.key is not None else set()
    if subject.at is not None:
        names.add("/".join(map(str, (subject.topic, *subject.at))))
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        return names
    if isinstance(values, dict):
        names.add(":".join(str(value) for value in values.values()))
    return names


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
