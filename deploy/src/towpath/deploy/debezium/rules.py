"""
Conversion rules: small functions from a property's value to an outcome.

An outcome is one of five statuses with its sentence, and the keys that the file gets. A
rule raises ``ValueError`` with a sentence where a value makes no sense; the conversion
reports it as not supported.
"""

import enum
import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from towpath.deploy.debezium.connector import Connector, split
from towpath.settings.mistakes import did_you_mean
from towpath.settings.secrets import masked

# A key of towpath.toml with its sections; `source` means the one source.
KeyPath = tuple[str, ...]
Keys = Mapping[KeyPath, object]

NO_KEYS: Final[Keys] = MappingProxyType({})


class PropertyStatus(enum.StrEnum):
    """What became of a property."""

    TAKEN = "taken"
    SAME = "same by default"
    NOT_NEEDED = "not needed"
    NOT_SUPPORTED = "not supported"
    UNKNOWN = "unknown property"


class Outcome(NamedTuple):
    """
    A verdict with its sentence, and what the file gets from it.

    A property that is not supported may still give keys: as much of it as there is.
    """

    verdict: PropertyStatus
    text: str = ""
    keys: Keys = NO_KEYS


class Finding(NamedTuple):
    """
    One property, and what became of it.

    Attributes:
        name: The property as it was written.
        value: Its value, secrets masked.
        verdict: What became of it.
        text: The whole sentence, the verdict included.
        is_implied: Whether the value is Debezium's default, not a written one.
    """

    name: str
    value: str
    verdict: PropertyStatus
    text: str
    is_implied: bool


def taken(keys: Keys, remark: str = "") -> Outcome:
    """Say that the property is now these keys."""
    return Outcome(PropertyStatus.TAKEN, remark, keys)


def same(remark: str = "") -> Outcome:
    """Say that the platform does the same without being told."""
    return Outcome(PropertyStatus.SAME, remark)


def not_needed(reason: str) -> Outcome:
    """Say why there is nothing to set."""
    return Outcome(PropertyStatus.NOT_NEEDED, reason)


def not_supported(instead: str, keys: Keys = NO_KEYS) -> Outcome:
    """Say what to do instead."""
    return Outcome(PropertyStatus.NOT_SUPPORTED, instead, keys)


def sentence(outcome: Outcome) -> str:
    """Write the outcome out."""
    text = outcome.text
    if outcome.verdict is PropertyStatus.TAKEN:
        return f"taken as {assignments(outcome.keys)}" + (f"; {text}" if text else "")
    if outcome.verdict is PropertyStatus.SAME:
        return "same by default" + (f": {text}" if text else "")
    if outcome.verdict is PropertyStatus.NOT_NEEDED:
        return f"not needed because {text}"
    if outcome.verdict is PropertyStatus.UNKNOWN:
        return f"unknown property{text}"
    also = f"; {assignments(outcome.keys)} is taken" if outcome.keys else ""
    return f"not supported: {text}{also}"


def assignments(keys: Keys) -> str:
    """Write keys with their values, as a person would type them; secrets masked."""
    return ", ".join(
        f"{'.'.join(path)} = {json.dumps(masked(value, path[-1]), ensure_ascii=False)}"
        for path, value in keys.items()
    )


_BOOLEANS: Final = {"true": True, "false": False}


class PropertyValue(NamedTuple):
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


Rule = Callable[[PropertyValue, Connector], Outcome]
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

    def rule(given: PropertyValue, _connector: Connector) -> Outcome:
        return taken({where: read(given.value)}, remark)

    return rule


def choice(path: str, ours: Mapping[str, object], instead: str = "") -> Rule:
    """Take one of several values as one of ours."""
    where: KeyPath = tuple(path.split("."))

    def rule(given: PropertyValue, _connector: Connector) -> Outcome:
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

    def rule(given: PropertyValue, _connector: Connector) -> Outcome:
        if given.value.strip().lower() == value.lower():
            return same(remark)
        return not_supported(instead)

    return rule
