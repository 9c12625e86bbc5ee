"""
What rules are made of: small functions from a value to an outcome.

A rule raises ``ValueError`` with a sentence where a value makes no sense; the
conversion tells it as not supported.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from towpath.deploy.debezium.connector import Connector, split
from towpath.deploy.debezium.outcome import (
    KeyPath,
    Outcome,
    not_needed,
    not_supported,
    same,
    taken,
)
from towpath.settings.mistakes import did_you_mean

_BOOLEANS: Final = {"true": True, "false": False}


class Given(NamedTuple):
    """
    A property as it was written.

    Attributes:
        name: Its whole name.
        value: Its value.
        parts: What stands where the known name has its stars.
    """

    name: str
    value: str
    parts: tuple[str, ...] = ()


Rule = Callable[[Given, Connector], Outcome]
Read = Callable[[str], object]


class Property(NamedTuple):
    """
    A property that is known.

    Attributes:
        name: Its name; ``*`` stands for any text.
        rule: What becomes of it.
        older: Its names in older versions.
        implied: Debezium's default, where it differs from ours and must be written.
        is_secret: Whether its value is masked.
    """

    name: str
    rule: Rule
    older: tuple[str, ...] = ()
    implied: str | None = None
    is_secret: bool = False


def pattern_of(name: str) -> re.Pattern[str]:
    """Return the expression for a name with stars."""
    return re.compile("(.+)".join(map(re.escape, name.split("*"))), re.DOTALL)


def boolean(text: str) -> bool:
    """Read a boolean as Kafka Connect does."""
    if text.strip().lower() not in _BOOLEANS:
        message = f"{text!r} is not true or false"
        raise ValueError(message)
    return _BOOLEANS[text.strip().lower()]


def whole(text: str) -> int:
    """Read a whole number."""
    if re.fullmatch(r"-?[0-9]{1,18}", text.strip(), re.ASCII) is None:
        message = f"{text!r} is not a whole number"
        raise ValueError(message)
    return int(text)


def seconds(text: str) -> float | int:
    """Read milliseconds as seconds, exactly."""
    ms = whole(text)
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


def listed(text: str) -> list[str]:
    """Read a list."""
    return list(split(text))


def key(path: str, read: Read = str, remark: str = "") -> Rule:
    """Take the value as one key."""
    where: KeyPath = tuple(path.split("."))

    def rule(given: Given, _connector: Connector) -> Outcome:
        return taken({where: read(given.value)}, remark)

    return rule


def choice(path: str, ours: Mapping[str, object], instead: str = "") -> Rule:
    """Take one of several values as one of ours."""
    where: KeyPath = tuple(path.split("."))

    def rule(given: Given, _connector: Connector) -> Outcome:
        value = given.value.strip().lower()
        if value in ours:
            return taken({where: ours[value]})
        known = ", ".join(ours)
        advice = f"; {instead}" if instead else did_you_mean(value, ours)
        return not_supported(f"{given.value!r} is none of {known}{advice}")

    return rule


def needless(reason: str) -> Rule:
    """Say of any value that it is not needed."""
    return lambda _given, _connector: not_needed(reason)


def refused(instead: str) -> Rule:
    """Say of any value what to do instead."""
    return lambda _given, _connector: not_supported(instead)


def always(remark: str) -> Rule:
    """Say of any value that nothing changes."""
    return lambda _given, _connector: same(remark)


def only(value: str, remark: str, instead: str) -> Rule:
    """Say of one value that it is what happens anyway, of others what to do."""

    def rule(given: Given, _connector: Connector) -> Outcome:
        if given.value.strip().lower() == value.lower():
            return same(remark)
        return not_supported(instead)

    return rule
