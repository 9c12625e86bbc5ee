"""
Conversion rules: small functions from a property's value to an outcome.

An outcome is one of five statuses with a sentence, and the keys for the file. A rule
raises ``ValueError`` with a sentence if a value is invalid; the conversion reports it
as not supported.
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
    """The status of a converted property."""

    TAKEN = "taken"
    SAME = "same by default"
    NOT_NEEDED = "not needed"
    NOT_SUPPORTED = "not supported"
    UNKNOWN = "unknown property"


class Outcome(NamedTuple):
    """
    A status with its sentence, and the keys for the file.

    A property that is not supported may still have keys, for its supported part.
    """

    status: PropertyStatus
    text: str = ""
    keys: Keys = NO_KEYS


class Finding(NamedTuple):
    """
    One property with the status of its conversion.

    Attributes:
        name: The property's name, as written, but with the salt of a hash masked.
        value: The property's value, with secrets masked.
        status: The status of the conversion.
        text: The whole sentence, including the status.
        is_implied: Whether the value is Debezium's default.
    """

    name: str
    value: str
    status: PropertyStatus
    text: str
    is_implied: bool


def taken(keys: Keys, remark: str = "") -> Outcome:
    """Return the outcome of a property that is converted to keys."""
    return Outcome(PropertyStatus.TAKEN, remark, keys)


def same(remark: str = "") -> Outcome:
    """Return the outcome of a property whose effect is the platform's default."""
    return Outcome(PropertyStatus.SAME, remark)


def not_needed(reason: str) -> Outcome:
    """Return the outcome of a property that is not needed, with the reason."""
    return Outcome(PropertyStatus.NOT_NEEDED, reason)


def not_supported(instead: str, keys: Keys = NO_KEYS) -> Outcome:
    """Return the outcome of an unsupported property, with an alternative."""
    return Outcome(PropertyStatus.NOT_SUPPORTED, instead, keys)


def sentence(outcome: Outcome) -> str:
    """Return the sentence of an outcome."""
    text = outcome.text
    if outcome.status is PropertyStatus.TAKEN:
        return f"taken as {assignments(outcome.keys)}" + (f"; {text}" if text else "")
    if outcome.status is PropertyStatus.SAME:
        return "same by default" + (f": {text}" if text else "")
    if outcome.status is PropertyStatus.NOT_NEEDED:
        return f"not needed because {text}"
    if outcome.status is PropertyStatus.UNKNOWN:
        return f"unknown property{text}"
    supported = f"; {assignments(outcome.keys)} is taken" if outcome.keys else ""
    return f"not supported: {text}{supported}"


def assignments(keys: Keys) -> str:
    """Return keys with their values, on one line, with secrets masked."""
    return ", ".join(
        f"{'.'.join(path)} = {json.dumps(masked(value, path[-1]), ensure_ascii=False)}"
        for path, value in keys.items()
    )


_MAX_DIGITS: Final = 18
_BOOLEANS: Final = {"true": True, "false": False}


class PropertyValue(NamedTuple):
    """
    A property as written.

    Attributes:
        name: The property's full name.
        value: The property's value.
        parts: The texts that the wildcards of the known name matched.
    """

    name: str
    value: str
    parts: tuple[str, ...] = ()


Rule = Callable[[PropertyValue, Connector], Outcome]
Read = Callable[[str], object]


class Property(NamedTuple):
    """
    A known property.

    Attributes:
        name: The property's name; ``*`` matches any text.
        rule: The rule that converts the property.
        older: The property's names in older versions of Debezium.
        implied: Debezium's default, if it differs from ours and must be written.
        is_secret: Whether the value is masked if it contains the word password.
    """

    name: str
    rule: Rule
    older: tuple[str, ...] = ()
    implied: str | None = None
    is_secret: bool = False


def pattern_of(name: str) -> re.Pattern[str]:
    """Return the regular expression for a name with wildcards."""
    return re.compile("(.+)".join(map(re.escape, name.split("*"))), re.DOTALL)


def boolean(text: str) -> bool:
    """Read a boolean as Kafka Connect does."""
    if text.strip().lower() not in _BOOLEANS:
        message = f"{text!r} is not true or false"
        raise ValueError(message)
    return _BOOLEANS[text.strip().lower()]


def whole_number(text: str) -> int:
    """Read a whole number of at most 18 digits."""
    found = re.fullmatch(r"-?([0-9]+)", text.strip(), re.ASCII)
    if found is None:
        message = f"{text!r} is not a whole number"
        raise ValueError(message)
    if len(found[1]) > _MAX_DIGITS:
        message = f"{text!r} has more than {_MAX_DIGITS} digits"
        raise ValueError(message)
    return int(text)


def seconds(text: str) -> float | int:
    """Read milliseconds as seconds, exactly."""
    ms = whole_number(text)
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


def list_of(text: str) -> list[str]:
    """Read a list."""
    return list(split(text))


def key(path: str, read: Read = str, remark: str = "") -> Rule:
    """Return the rule that converts the value to one key."""
    key_path: KeyPath = tuple(path.split("."))

    def rule(given: PropertyValue, _connector: Connector) -> Outcome:
        return taken({key_path: read(given.value)}, remark)

    return rule


def choice(path: str, ours: Mapping[str, object], instead: str = "") -> Rule:
    """Return the rule that maps Debezium's value to a value of a key."""
    key_path: KeyPath = tuple(path.split("."))

    def rule(given: PropertyValue, _connector: Connector) -> Outcome:
        value = given.value.strip().lower()
        if value in ours:
            return taken({key_path: ours[value]})
        known = ", ".join(ours)
        advice = f"; {instead}" if instead else did_you_mean(value, ours)
        return not_supported(f"{given.value!r} is not one of {known}{advice}")

    return rule


def not_needed_because(reason: str) -> Rule:
    """Return the rule of a property that is not needed."""
    return lambda _given, _connector: not_needed(reason)


def unsupported(instead: str) -> Rule:
    """Return the rule of a property that is not supported."""
    return lambda _given, _connector: not_supported(instead)


def always(remark: str) -> Rule:
    """Return the rule of a property whose effect is the default."""
    return lambda _given, _connector: same(remark)


def only(value: str, remark: str, instead: str) -> Rule:
    """Return the rule of a property that has one supported value."""

    def rule(given: PropertyValue, _connector: Connector) -> Outcome:
        if given.value.strip().lower() == value.lower():
            return same(remark)
        return not_supported(instead)

    return rule
