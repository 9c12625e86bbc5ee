"""What becomes of a property: one of five verdicts, in one sentence."""

import enum
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from towpath.settings.secrets import masked

# A key of towpath.toml with its sections; `source` means the one source.
KeyPath = tuple[str, ...]
Keys = Mapping[KeyPath, object]

NO_KEYS: Final[Keys] = MappingProxyType({})


class Verdict(enum.StrEnum):
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

    verdict: Verdict
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
    verdict: Verdict
    text: str
    is_implied: bool


def taken(keys: Keys, remark: str = "") -> Outcome:
    """Say that the property is now these keys."""
    return Outcome(Verdict.TAKEN, remark, keys)


def same(remark: str = "") -> Outcome:
    """Say that the platform does the same without being told."""
    return Outcome(Verdict.SAME, remark)


def not_needed(reason: str) -> Outcome:
    """Say why there is nothing to set."""
    return Outcome(Verdict.NOT_NEEDED, reason)


def not_supported(instead: str, keys: Keys = NO_KEYS) -> Outcome:
    """Say what to do instead."""
    return Outcome(Verdict.NOT_SUPPORTED, instead, keys)


def sentence(outcome: Outcome) -> str:
    """Write the outcome out."""
    text = outcome.text
    if outcome.verdict is Verdict.TAKEN:
        return f"taken as {assignments(outcome.keys)}" + (f"; {text}" if text else "")
    if outcome.verdict is Verdict.SAME:
        return "same by default" + (f": {text}" if text else "")
    if outcome.verdict is Verdict.NOT_NEEDED:
        return f"not needed because {text}"
    if outcome.verdict is Verdict.UNKNOWN:
        return f"unknown property{text}"
    also = f"; {assignments(outcome.keys)} is taken" if outcome.keys else ""
    return f"not supported: {text}{also}"


def assignments(keys: Keys) -> str:
    """Write keys with their values, as a person would type them; secrets masked."""
    return ", ".join(
        f"{'.'.join(path)} = {json.dumps(masked(value, path[-1]), ensure_ascii=False)}"
        for path, value in keys.items()
    )
