"""Dead letters as a person reads them: by key, newest reason first said. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from towpath.sinks.dead_letters.letter import BEHIND, Letter, Matter
from towpath.sinks.dead_letters.parked import OpenDeadLetters


def listed(book: OpenDeadLetters, key: str | None = None) -> list[dict[str, Any]]:
    """Return a line per open matter, in the order they came to be."""
    return [summary(matter, book.of(matter)) for matter in chosen(book, key)]


def chosen(book: OpenDeadLetters, key: str | None) -> list[Matter]:
    """
    Return the open matters that a key's text means.

    Args:
        book: The open letters.
        key: As the records have it, or its values alone (``7``, ``7:de``), or
            ``<topic>/<partition>/<offset>`` of one letter; ``None`` for all.
    """
    if key is None:
        return list(book.letters)
    return [matter for matter in book.letters if key in _names(matter)]


def summary(matter: Matter, letters: Sequence[Letter]) -> dict[str, Any]:
    """Say what is open of a matter."""
    cause = next((x for x in letters if x.reason != BEHIND), letters[0])
    return {
        "topic": matter.topic,
        "route": cause.route,
        "key": text_of_key(matter.key),
        "is_parked": matter.at is None,
        "letters": len(letters),
        "reason": cause.reason,
        "first_position": letters[0].position,
        "last_position": letters[-1].position,
        "record": "/".join(map(str, cause.record.origin)),
    }


def shown(letters: Iterable[Letter]) -> list[dict[str, Any]]:
    """Return each letter with all that its record said."""
    return [
        {
            "record": "/".join(map(str, letter.record.origin)),
            "route": letter.route,
            "reason": letter.reason,
            "position": letter.position,
            "key": text_of_key(letter.record.key),
            "headers": {n: _text(v) for n, v in letter.record.headers.items()},
            "value": None
            if letter.record.value is None
            else _text(letter.record.value),
        }
        for letter in letters
    ]


def text_of_key(key: bytes | None) -> str:
    """Write a record's key as text; empty if it has none."""
    return "" if key is None else _text(key)


def _names(matter: Matter) -> set[str]:
    text = text_of_key(matter.key)
    names = {text} if matter.key is not None else set()
    if matter.at is not None:
        names.add("/".join(map(str, (matter.topic, *matter.at))))
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        return names
    if isinstance(values, dict):
        names.add(":".join(str(value) for value in values.values()))
    return names


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
