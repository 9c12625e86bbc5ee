r"""
How signals name collections: ``schema.table``, quoted names, and regular expressions.

=========================  ===========================================================
``shop.orders``            just this one
``"shop"."My.Orders"``     just ``shop.My.Orders``, with nothing in it being special
``shop\.order.*``          all whose whole name it matches
``outbox.order``           all aggregate views of this type that are declared
=========================  ===========================================================

Which relay a signal belongs to, where several follow one database. Pure.

A signal names its relay in its data, or is left in one relay's own channel, which
writes the name into its row. One that names none belongs to the only relay that is
registered; of several, none may guess, so it is rejected with their names. Each relay
decides by the same rows, and the first answer that is stored counts.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from towpath.schemas.table_name import TableName, is_quoted_name

# What a plain name holds; anything else makes the entry a regular expression.
_PLAIN_NAME: Final = re.compile(r"[^\\*+?\[\](){}|^$\"]+\Z")

_AGGREGATES: Final = "outbox."


class AmbiguousNameError(ValueError):
    """Several collections have the name."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """
    The collections that entries name, in order, and why others name none.

    Attributes:
        collections: Each once.
        refusals: Why, by entry.
        expressions: The entries that were read as expressions.
    """

    collections: tuple[str, ...]
    refusals: Mapping[str, str]
    expressions: tuple[str, ...] = ()


def expand(
    entries: Sequence[str],
    known: Collection[str],
    absent: str = "not a captured table",
    unmatched: str = "",
) -> Expansion:
    """
    Find the collections that entries name, each once.

    Args:
        entries: The signal's entries.
        known: The existing collections.
        absent: Why an entry that names something else is refused.
        unmatched: Why an expression that matches nothing is; empty: it is not.
    """
    found: dict[str, None] = {}
    refusals: dict[str, str] = {}
    expressions: list[str] = []
    for entry in entries:
        try:
            names = matching_collections(entry, known)
        except AmbiguousNameError as ambiguous:
            refusals[entry] = str(ambiguous)
            continue
        except re.error as error:
            refusals[entry] = f"not a regular expression: {error}"
            continue
        found.update(dict.fromkeys(names))
        is_name = _exact_name(entry) is not None
        if not names and (is_name or unmatched):
            refusals[entry] = absent if is_name else unmatched
        if not is_name and not any(_is_name_of(entry, name) for name in names):
            expressions.append(entry)
    return Expansion(tuple(found), refusals, tuple(expressions))


def matching_collections(entry: str, known: Iterable[str]) -> list[str]:
    """
    List the collections that an entry names: the one of this name, or what it matches.

    Raises:
        AmbiguousNameError: It is the name of several, without their quotes.
        re.error: It is no regular expression, and no name.
    """
    collections = list(known)
    same = [name for name in collections if _is_name_of(entry, name)]
    if len(same) > 1:
        message = f"it may be {' or '.join(same)}: name one of them, with its quotes"
        raise AmbiguousNameError(message)
    exact = _exact_name(entry)
    if exact is not None:
        head = f"{exact}."
        further = (n for n in collections if n.startswith(head) and n not in same)
        return [*same, *(further if head.startswith(_AGGREGATES) else ())]
    return same or [
        name for name in collections if re.fullmatch(entry, _joined(name)) is not None
    ]


def matches(entry: str, collection: str) -> bool:
    """
    Tell whether an entry names a collection, if there are no others.

    Raises:
        re.error: It is no regular expression, and no name.
    """
    return bool(matching_collections(entry, [collection]))


def is_entry(text: str) -> bool:
    """Tell whether a text is a name or a regular expression."""
    try:
        matches(text, "")
    except re.error:
        return False
    return True


def _is_name_of(entry: str, collection: str) -> bool:
    """Tell whether an entry is a collection's name: its text, in quotes, or without."""
    return (
        collection == entry
        or _joined(collection) == entry
        or (is_quoted_name(entry) and TableName.parse(entry).text == collection)
    )


def _joined(collection: str) -> str:
    """Return a collection's name without quotes."""
    return TableName.parse(collection).joined if '"' in collection else collection


def _exact_name(entry: str) -> str | None:
    """Return the one name that an entry stands for; None: it is a pattern."""
    if _PLAIN_NAME.match(entry):
        return entry
    return TableName.parse(entry).text if is_quoted_name(entry) else None


class Registration(NamedTuple):
    """
    A relay as the database knows it.

    Attributes:
        name: The name of its slot.
        number: The id of its heartbeat. The first relay's is 1.
    """

    name: str
    number: int

    @property
    def suffix(self) -> str:
        """What keeps the ids of its own requests apart from another relay's."""
        return "" if self.number == 1 else f"~{self.number}"


class SignalAddress(NamedTuple):
    """Whether a signal is this relay's; ``refusal``: nobody can carry it out."""

    is_ours: bool
    refusal: str | None = None


def address_of(data: str | None, relay: str | None) -> str | None:
    """
    Return the name of the relay that a signal is for; None: it names none.

    Args:
        data: The signal's JSON.
        relay: The name in its row, if there is one.
    """
    try:
        fields = json.loads(data or "{}")
    except (ValueError, RecursionError):
        return relay
    named = fields.get("relay") if isinstance(fields, dict) else None
    return named if isinstance(named, str) and named else relay


def resolve_address(
    address: str | None, own: str, registered: Sequence[str]
) -> SignalAddress:
    """
    Decide whose a signal is.

    Args:
        address: The relay that it names, if it names one.
        own: This relay's name.
        registered: The names of all relays of the database, in their order.
    """
    if address == own or (address is None and list(registered) == [own]):
        return SignalAddress(is_ours=True)
    if address in registered:
        return SignalAddress(is_ours=False)
    names = ", ".join(registered)
    if address is None:
        reason = (
            f"several relays follow this database: {names}; name one as "
            '"relay" in the signal\'s data'
        )
    else:
        reason = f"no relay {address!r} follows this database; there are: {names}"
    return SignalAddress(is_ours=False, refusal=reason)
