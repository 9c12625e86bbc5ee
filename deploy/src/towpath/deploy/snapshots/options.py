"""
The options of ``towpath snapshot start``, as a signal spells them.

A key is written as its text, or as a JSON list when it has several columns:
``--key 7``, ``--key '[7, "a"]'``; a file of keys has one on each line.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from towpath.schemas.failure import UsageError

# What one signal may list.
MAX_KEYS: Final = 10_000
_COLLECTION: Final = re.compile(r'(?:"(?:[^"]|"")*"|[^"=])*')

_Words = Annotated[tuple[str, ...], Parameter(negative="")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SnapshotOptions:
    """
    The options of ``start`` that go into the signal.

    Attributes:
        target: The one sink that gets the rows; left out, all sinks.
        where: "schema.table=filter": only these rows; a whole SELECT with --type
            blocking. May be said once for each table.
        key: Only the row with this key: its text, or a JSON list of its columns. May be
            said again.
        keys: A file of keys, one on a line; - is standard input.
        type: Blocking: all in one view of the database, while the stream waits.
        surrogate_key: Read in the order of this unique column instead of the key's.
        max_rows_per_second: Bound of the reading speed.
        sweep: At the end, have sinks delete the rows that the tables do not have.
        id: The signal's id; left out, one is made.
    """

    target: str | None = None
    where: _Words = ()
    key: _Words = ()
    keys: Path | None = None
    type: Literal["incremental", "blocking"] = "incremental"
    surrogate_key: _Words = ()
    max_rows_per_second: int | None = None
    sweep: Annotated[bool, Parameter(negative="")] = False
    id: str | None = None

    def fields(self, collections: Sequence[str]) -> dict[str, Any]:
        """
        Return what the signal says beside collections, target and speed.

        Raises:
            UsageError: Keys or filters are not as they must be.
        """
        listed = keys(self.key, self.keys)
        if listed is not None and len(collections) != 1:
            message = "keys are those of one table: name just that"
            raise UsageError(message)
        return {
            "type": self.type,
            "keys": listed,
            "additional-conditions": conditions(self.where),
            "surrogate-key": list(self.surrogate_key) or None,
            "sweep": self.sweep or None,
        }


def conditions(words: Iterable[str]) -> list[dict[str, str]] | None:
    """
    Read ``COLLECTION=FILTER`` words; None if there are none.

    Raises:
        UsageError: A word has no equals sign, or nothing beside it.
    """
    found = []
    for word in words:
        collection, sign, condition = _cut(word)
        if not (sign and collection.strip() and condition.strip()):
            message = f'--where {word!r}: write "schema.table=filter"'
            raise UsageError(message)
        entry = {"data-collection": collection.strip(), "filter": condition.strip()}
        found.append(entry)
    return found or None


def _cut(word: str) -> tuple[str, str, str]:
    """Cut at the first equals sign that is not between quotes."""
    end = len(word)
    if found := _COLLECTION.match(word):
        end = found.end()
    return word[:end], word[end : end + 1], word[end + 1 :]


def keys(words: Sequence[str], file: Path | None) -> list[list[Any]] | None:
    """
    Read keys from words and from a file (``-``: standard input); None without any.

    Raises:
        UsageError: The file cannot be read, a line is no key, or there are too many.
    """
    lines = [*words, *_lines(file)]
    found = [_key(line) for line in lines if line.strip()]
    if len(found) > MAX_KEYS:
        message = f"{len(found):,} keys: one signal takes {MAX_KEYS:,}; send several"
        raise UsageError(message)
    if file is not None and not found:
        message = f"{file} has no keys"
        raise UsageError(message)
    return found or None


def _lines(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except OSError as error:
        message = f"{file}: {error.strerror}"
        raise UsageError(message) from error
    except UnicodeDecodeError as error:
        message = f"{file} is not in UTF-8"
        raise UsageError(message) from error
    return text.splitlines()


def _key(line: str) -> list[Any]:
    text = line.strip()
    if not text.startswith("["):
        return [text]
    try:
        # Numbers keep all their digits as texts.
        key = json.loads(text, parse_float=str, parse_int=str)
    except ValueError as error:
        message = f"the key {text[:80]} is not a JSON list: {error}"
        raise UsageError(message) from error
    if not isinstance(key, list) or not key:
        message = f"the key {text[:80]} is not a list of values"
        raise UsageError(message)
    return key
