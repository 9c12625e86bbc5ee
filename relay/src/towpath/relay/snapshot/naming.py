r"""
How signals name collections: ``schema.table``, quoted names, and regular expressions.

=========================  ===========================================================
``shop.orders``            just this one
``"shop"."My.Orders"``     just ``shop.My.Orders``, with nothing in it being special
``shop\.order.*``          all whose whole name it matches
``outbox.order``           all aggregate views of this type that are declared
=========================  ===========================================================
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# What a plain name holds; anything else makes the entry a regular expression.
_PLAIN_NAME: Final = re.compile(r"[^\\*+?\[\](){}|^$\"]+\Z")
_PART: Final = r'(?:"(?:[^"]|"")+"|[^"\\*+?\[\](){}|^$.]+)'
_QUOTED_NAME: Final = re.compile(rf'(?=.*")({_PART})\.({_PART})\Z', re.DOTALL)

_AGGREGATES: Final = "outbox."


@dataclass(frozen=True, slots=True)
class Expansion:
    """The collections that entries name, in order, and why others name none."""

    collections: tuple[str, ...]
    refusals: Mapping[str, str]


def expand(
    entries: Sequence[str],
    known: Collection[str],
    absent: str = "not a captured table",
) -> Expansion:
    """
    Find the collections that entries name, each once.

    Args:
        entries: What a signal says.
        known: What there is to be named.
        absent: Why an entry that names something else is refused; a regular expression
            may match nothing.
    """
    found: dict[str, None] = {}
    refusals: dict[str, str] = {}
    for entry in entries:
        try:
            names = [name for name in known if matches(entry, name)]
        except re.error as error:
            refusals[entry] = f"not a regular expression: {error}"
            continue
        found.update(dict.fromkeys(names))
        if not names and _exact_name(entry) is not None:
            refusals[entry] = absent
    return Expansion(tuple(found), refusals)


def matches(entry: str, collection: str) -> bool:
    """
    Tell whether an entry names a collection.

    Raises:
        re.error: It is no regular expression, and no name.
    """
    name = _exact_name(entry)
    if name is not None:
        is_further = name.startswith(_AGGREGATES) and collection.startswith(f"{name}.")
        return name == collection or is_further
    return re.fullmatch(entry, collection) is not None


def is_entry(text: str) -> bool:
    """Tell whether a text is a name or a regular expression."""
    try:
        matches(text, "")
    except re.error:
        return False
    return True


def _exact_name(entry: str) -> str | None:
    """Return the one name that an entry stands for; None: it is a pattern."""
    if _PLAIN_NAME.match(entry):
        return entry
    quoted = _QUOTED_NAME.match(entry)
    if quoted is None:
        return None
    return ".".join(map(_unquoted, quoted.groups()))


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
