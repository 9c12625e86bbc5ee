"""
``route_regex`` and ``route_replacement``: rewriting of the value in a topic's name.

The syntax is Java's, as in Debezium's router: the whole value must match, ``$1`` and
``${name}`` refer to groups, and a backslash escapes the next character. A value that
does not match stays as it is.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from towpath.schemas.failure import ConfigurationError
from towpath.settings.syntax import compiled

_REFERENCE: Final = re.compile(
    r"\\(?P<plain>.)|\$\{(?P<name>[^}]*)\}|\$(?P<digits>\d+)", re.DOTALL
)

Part = Callable[["re.Match[str]"], str]


def rewriting(route_regex: str, replacement: str) -> Callable[[str], str]:
    """
    Return a function that rewrites a value; without a pattern it changes nothing.

    Raises:
        ConfigurationError: The replacement names a group that the pattern lacks.
    """
    if not route_regex:
        return str
    pattern = compiled(route_regex)
    parts = tuple(_parts(replacement, pattern))

    def rewritten(value: str) -> str:
        if pattern.fullmatch(value) is None:
            return value
        found = pattern.search(value)
        if found is None:
            return value
        written = "".join(part(found) for part in parts)
        return value[: found.start()] + written + value[found.end() :]

    return rewritten


def _parts(replacement: str, pattern: "re.Pattern[str]") -> Iterable[Part]:
    """Split a replacement into plain texts and references to groups."""
    at = 0
    for found in _REFERENCE.finditer(replacement):
        yield _text(replacement[at : found.start()])
        at = found.end()
        if found["plain"] is not None:
            yield _text(found["plain"])
        elif found["name"] is not None:
            yield _group(found["name"], pattern)
        else:
            yield from _numbered(found["digits"], pattern)
    yield _text(replacement[at:])


def _numbered(digits: str, pattern: "re.Pattern[str]") -> Iterable[Part]:
    """Use as many digits as name a group; the others are plain text."""
    length = len(digits)
    while length > 1 and int(digits[:length]) > pattern.groups:
        length -= 1
    yield _group(int(digits[:length]), pattern)
    yield _text(digits[length:])


def _group(group: str | int, pattern: "re.Pattern[str]") -> Part:
    known = group in pattern.groupindex or (
        isinstance(group, int) and group <= pattern.groups
    )
    if not known:
        mistake = f"relay.outbox.route_replacement: route_regex has no group {group}"
        raise ConfigurationError([mistake])
    return lambda found: found[group] or ""


def _text(text: str) -> Part:
    return lambda _found: text
