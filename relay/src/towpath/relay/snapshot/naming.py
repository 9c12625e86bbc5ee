r"""
Resolves the names of collections and relays in signals.

Collections are named by ``schema.table``, quoted names, and regular expressions, which
are matched in linear time:

=========================  ===========================================================
``shop.orders``            this table
``"shop"."My.Orders"``     ``shop.My.Orders``, with every character taken literally
``shop\.order.*``          every collection whose full name it matches
``outbox.order``           all declared aggregate views of this type
=========================  ===========================================================

Several relays may follow one database. A signal names its relay in its data, or arrives
in one relay's own channel, which writes the name into the signal's row. A signal
without a name belongs to the only registered relay; if there are several, the signal is
rejected, and the reason lists their names. Each relay decides from the same rows, and
the first stored answer counts.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from towpath.schemas.table_name import TableName, is_quoted_name
from towpath.settings.syntax import linear_matcher

# The characters of a plain name; an entry with any other character is a quoted name or
# a regular expression.
_PLAIN_NAME: Final = re.compile(r"[^\\*+?\[\](){}|^$\"]+\Z")

_AGGREGATES: Final = "outbox."


class AmbiguousNameError(ValueError):
    """A name applies to several collections."""


class NoExpressionError(ValueError):
    """A string is neither a name nor a regular expression."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """
    The collections that entries name, in order, and the refused entries.

    Attributes:
        collections: The collections, each once.
        refusals: The reason per refused entry.
        expressions: The entries that were used as expressions.
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
    Return the collections that entries name, each once.

    Args:
        entries: The signal's entries.
        known: The existing collections.
        absent: The reason for refusing a name that no collection has.
        unmatched: The reason for refusing an expression without a match; empty to
            accept it.
    """
    found: dict[str, None] = {}
    refusals: dict[str, str] = {}
    expressions: list[str] = []
    by_name = _by_name(known)
    for entry in entries:
        try:
            names = _matching(entry, by_name)
        except AmbiguousNameError as ambiguous:
            refusals[entry] = str(ambiguous)
            continue
        except NoExpressionError as error:
            refusals[entry] = str(error)
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
    Return the collections that an entry names or matches.

    Raises:
        AmbiguousNameError: Several collections have this name, apart from quotes.
        NoExpressionError: The entry is neither a name nor a regular expression.
    """
    return _matching(entry, _by_name(known))


class _ByName(NamedTuple):
    """Collections, and an index of them by name, with and without quotes."""

    collections: Sequence[str]
    named: Mapping[str, Sequence[str]]


def _by_name(known: Iterable[str]) -> _ByName:
    collections = list(known)
    named: dict[str, list[str]] = {}
    for name in collections:
        for text in dict.fromkeys((name, _joined(name))):
            named.setdefault(text, []).append(name)
    return _ByName(collections, named)


def _matching(entry: str, known: _ByName) -> list[str]:
    same = list(known.named.get(entry, ()))
    if is_quoted_name(entry):
        text = TableName.parse(entry).text
        literal = known.named.get(text, ())
        same += [name for name in literal if name == text and name not in same]
    if len(same) > 1:
        message = f"it may mean {' or '.join(same)}: name one of them, with its quotes"
        raise AmbiguousNameError(message)
    exact = _exact_name(entry)
    if exact is not None:
        head = f"{exact}."
        further = known.collections if head.startswith(_AGGREGATES) else ()
        return [*same, *(n for n in further if n.startswith(head) and n not in same)]
    if same:
        return same
    try:
        is_match = linear_matcher(entry)
    except ValueError as error:
        raise NoExpressionError(str(error)) from error
    return [name for name in known.collections if is_match(_joined(name))]


def matches(entry: str, collection: str) -> bool:
    """
    Return whether an entry names or matches a collection, regardless of others.

    Raises:
        NoExpressionError: The entry is neither a name nor a regular expression.
    """
    return bool(matching_collections(entry, [collection]))


def is_entry(text: str) -> bool:
    """Return whether a string is a name or a regular expression."""
    try:
        matches(text, "")
    except NoExpressionError:
        return False
    return True


def _is_name_of(entry: str, collection: str) -> bool:
    """Return whether an entry is a collection's name, with or without quotes."""
    return (
        collection == entry
        or _joined(collection) == entry
        or (is_quoted_name(entry) and TableName.parse(entry).text == collection)
    )


def _joined(collection: str) -> str:
    """Return a collection's name without quotes; return other strings unchanged."""
    if '"' not in collection:
        return collection
    try:
        return TableName.parse(collection).joined
    except ValueError:
        return collection


def _exact_name(entry: str) -> str | None:
    """Return the name that an entry spells; None if it is a regular expression."""
    if _PLAIN_NAME.match(entry):
        return entry
    return TableName.parse(entry).text if is_quoted_name(entry) else None


class Registration(NamedTuple):
    """
    A relay's row in ``towpath.relay``.

    Attributes:
        name: The name of its slot.
        number: The id of its heartbeat; the first relay's is 1.
    """

    name: str
    number: int

    @property
    def suffix(self) -> str:
        """The suffix of the ids of its own requests, different for each relay."""
        return "" if self.number == 1 else f"~{self.number}"


class SignalAddress(NamedTuple):
    """Whether a signal is for this relay; with a ``refusal`` it is for no relay."""

    is_ours: bool
    refusal: str | None = None


def address_of(data: str | None, relay: str | None) -> str | None:
    """
    Return the relay that a signal names; None if it names none.

    Args:
        data: The signal's JSON.
        relay: The relay's name in the signal's row, if there is one.
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
    Decide whether a signal is for this relay.

    Args:
        address: The relay that the signal names, if any.
        own: This relay's name.
        registered: The names of all relays of the database, in order.
    """
    if address == own or (address is None and list(registered) == [own]):
        return SignalAddress(is_ours=True)
    if address in registered:
        return SignalAddress(is_ours=False)
    names = ", ".join(registered) or "none"
    if address is None and len(registered) < 2:  # noqa: PLR2004 - several
        reason = f"relay {own!r} is not registered in this database; known: {names}"
    elif address is None:
        reason = (
            f"several relays follow this database: {names}; name one as "
            '"relay" in the signal\'s data'
        )
    else:
        reason = f"no relay {address!r} follows this database; known: {names}"
    return SignalAddress(is_ours=False, refusal=reason)
