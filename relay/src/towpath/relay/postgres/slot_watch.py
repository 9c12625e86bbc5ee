"""
What a look at the slot means: which bounds it crosses, and whether all is lost. Pure.

A bound is told once when it is crossed and once when the value is back below it.
"""

from typing import Final, NamedTuple

from towpath.relay.tally import SlotView
from towpath.settings import Relay

OUTBOX_UPDATED: Final = "an outbox row was updated"

_LOST: Final = "lost"
# What Postgres calls a slot whose log it may remove with its next checkpoint.
_ENDANGERED: Final = "unreserved"


class SlotLook(NamedTuple):
    """One look at the slot and the outbox, as the server tells it."""

    retained_bytes: int
    lag_bytes: int
    safe_wal_bytes: int | None
    wal_status: str
    is_active: bool
    inactive_s: float | None
    invalidation_reason: str | None
    outbox_updates: int | None


class Crossing(NamedTuple):
    """A bound that the slot has crossed, or is back below."""

    what: str
    level: str
    is_over: bool


class SlotWatch:
    """Remembers what was told, from look to look."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._over: frozenset[str] = frozenset()
        self._outbox_updates: int | None = None
        self._inactive_since_s: float | None = None

    def view(self, look: SlotLook, now_s: float) -> SlotView:
        """Return what the metrics show; older servers do not tell the inactive time."""
        if look.is_active:
            self._inactive_since_s = None
        elif self._inactive_since_s is None:
            self._inactive_since_s = now_s
        measured = self._inactive_since_s
        inactive_s = look.inactive_s
        if inactive_s is None and measured is not None:
            inactive_s = now_s - measured
        return SlotView(
            retained_bytes=look.retained_bytes,
            lag_bytes=look.lag_bytes,
            safe_wal_bytes=look.safe_wal_bytes,
            wal_status=look.wal_status,
            is_active=look.is_active,
            inactive_s=None if look.is_active else inactive_s,
        )

    def crossings(self, view: SlotView) -> list[Crossing]:
        """Return the bounds that are newly crossed, or newly kept again."""
        relay = self._relay
        bounds = {
            "retained_warning_bytes": (
                "warning",
                view.retained_bytes > relay.retained_warning_bytes,
            ),
            "retained_critical_bytes": (
                "error",
                view.retained_bytes > relay.retained_critical_bytes,
            ),
            "inactive_critical_s": (
                "error",
                (view.inactive_s or 0.0) > relay.inactive_critical_s,
            ),
            "max_slot_wal_keep_size": ("error", view.wal_status == _ENDANGERED),
        }
        over = frozenset(name for name, (_, is_over) in bounds.items() if is_over)
        changed = over ^ self._over
        self._over = over
        return [
            Crossing(name, bounds[name][0], name in over) for name in sorted(changed)
        ]

    def new_outbox_updates(self, look: SlotLook) -> int:
        """Return how many rows of the outbox were updated since the last look."""
        before, self._outbox_updates = self._outbox_updates, look.outbox_updates
        if before is None or look.outbox_updates is None:
            return 0
        return max(0, look.outbox_updates - before)


def loss(look: SlotLook | None, slot: str) -> str | None:
    """Return why the slot serves no more; None if it does."""
    if look is None:
        return f"slot {slot} is gone"
    if look.wal_status == _LOST or look.invalidation_reason is not None:
        cause = look.invalidation_reason or "max_slot_wal_keep_size"
        return f"slot {slot} has lost log that it still needed ({cause})"
    return None
