"""
Which relay a signal belongs to, where several follow one database. Pure.

A signal names its relay in its data, or is left in one relay's own channel, which
writes the name into its row. One that names none belongs to the only relay that is
registered; of several, none may guess, so it is rejected with their names. Each relay
decides by the same rows, and the first answer that is stored counts.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple


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


class Claim(NamedTuple):
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


def claim(address: str | None, own: str, registered: Sequence[str]) -> Claim:
    """
    Decide whose a signal is.

    Args:
        address: The relay that it names, if it names one.
        own: This relay's name.
        registered: The names of all relays of the database, in their order.
    """
    if address == own or (address is None and list(registered) == [own]):
        return Claim(is_ours=True)
    if address in registered:
        return Claim(is_ours=False)
    names = ", ".join(registered)
    if address is None:
        reason = (
            f"several relays follow this database: {names}; name one as "
            '"relay" in the signal\'s data'
        )
    else:
        reason = f"no relay {address!r} follows this database; there are: {names}"
    return Claim(is_ours=False, refusal=reason)
