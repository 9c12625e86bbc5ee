"""
Lineages: whether the history at hand is the one that was followed before.

A lineage begins at first start. One that is stored must fit the server and the slot:
going on beside a gap would lose changes without a word.
"""

from dataclasses import dataclass

from towpath.relay.errors import (
    ForeignSourceError,
    NotPreparedError,
    SlotLostError,
    StateLostError,
)


@dataclass(frozen=True, slots=True)
class Lineage:
    """
    One unbroken history of the source's log.

    Attributes:
        system_identifier: The database cluster's own.
        timeline: The timeline on which the lineage began.
        offset: What is added to each LSN.
        slot: The slot that follows it.
    """

    system_identifier: str
    timeline: int
    offset: int
    slot: str


def agree(
    stored: Lineage | None, found: Lineage, *, has_slot: bool, has_log: bool
) -> Lineage:
    """
    Return the lineage to follow: the stored one, or the first.

    Args:
        stored: What the state topic holds.
        found: What the server says of itself, at offset 0.
        has_slot: Whether the slot exists.
        has_log: Whether the log that the slot needs is still there.

    Raises:
        NotPreparedError: There is no slot, and never was.
        StateLostError: There is no slot any more.
        ForeignSourceError: The server is not the one that was followed.
        SlotLostError: The slot has lost its log.
    """
    if stored is not None and stored.system_identifier != found.system_identifier:
        reason = (
            f"the database's system identifier is {found.system_identifier}, "
            f"the history followed so far is that of {stored.system_identifier}"
        )
        raise ForeignSourceError(reason)
    if not has_slot and stored is None:
        reason = f"there is no slot {found.slot}"
        raise NotPreparedError(reason)
    if not has_slot:
        reason = f"slot {found.slot} is gone, but the state topic tells of its history"
        raise StateLostError(reason)
    if not has_log:
        reason = f"slot {found.slot} has lost log that it still needed"
        raise SlotLostError(reason)
    return found if stored is None else stored
