"""Findings from a reading of the slot."""

import pytest

from support.copying import replace
from towpath.relay.postgres.slot_monitor import (
    BoundCrossing,
    SlotBounds,
    SlotReading,
    slot_loss,
)
from towpath.settings import Relay

READING = SlotReading(
    100, 50, None, "reserved", True, None, None, 0, False
)  # active, no updates
RELAY = Relay(
    retained_warning_bytes=1_000, retained_critical_bytes=2_000, inactive_critical_s=30
)


def crossings(
    bounds: SlotBounds, reading: SlotReading, now_s: float = 0.0
) -> list[BoundCrossing]:
    """Evaluate one more reading."""
    return bounds.crossings(bounds.stats(reading, now_s))


def test_a_crossed_retention_bound_is_logged_once():
    """
    W-15: crossing it and returning below are logged, but remaining beyond is not.
    """
    bounds = SlotBounds(RELAY)
    crossed = [
        [
            (c.bound, c.is_over)
            for c in crossings(bounds, replace(READING, retained_bytes=n))
        ]
        for n in (1_000, 1_001, 1_500, 2_001, 1_500, 10)
    ]

    assert [
        [],
        [("retained_warning_bytes", True)],
        [],
        [("retained_critical_bytes", True)],
        [("retained_critical_bytes", False)],
        [("retained_warning_bytes", False)],
    ] == crossed


def test_a_slot_in_danger_of_losing_wal_is_an_error():
    """
    B77: unreserved means that the next checkpoint may invalidate the slot.
    """
    (crossing,) = crossings(
        SlotBounds(RELAY), replace(READING, wal_status="unreserved")
    )

    assert BoundCrossing("max_slot_wal_keep_size", "error", is_over=True) == crossing


def test_the_inactive_time_of_a_slot_is_measured_on_old_servers():
    """
    Before version 17 the time counts from the first reading of an inactive slot.
    """
    bounds = SlotBounds(RELAY)
    reading = replace(READING, is_active=False)
    first = bounds.stats(reading, 100.0)
    second = bounds.stats(reading, 131.0)
    active = bounds.stats(READING, 132.0)

    assert (0.0, 31.0, None) == (
        first.inactive_s,
        second.inactive_s,
        active.inactive_s,
    )


def test_the_servers_inactive_time_of_a_slot_takes_precedence():
    """
    The server's time is used instead of the measured one.
    """
    reading = replace(READING, is_active=False, inactive_s=99.0)

    assert 99.0 == SlotBounds(RELAY).stats(reading, 5.0).inactive_s


def test_outbox_updates_are_counted_from_the_first_reading():
    """
    Earlier updates are not counted, and neither is a counter that was reset.
    """
    bounds = SlotBounds(RELAY)
    seen = [
        bounds.new_outbox_updates(replace(READING, outbox_updates=n))
        for n in (7, 7, 9, None, 3, 4)
    ]

    assert [0, 0, 2, 0, 0, 1] == seen


@pytest.mark.parametrize(
    ("reading", "part"),
    [
        (None, "no longer exists"),
        (replace(READING, wal_status="lost"), "max_slot_wal_keep_size"),
        (replace(READING, invalidation_reason="idle_timeout"), "idle_timeout"),
    ],
)
def test_a_lost_slot_is_reported_with_its_cause(reading: SlotReading | None, part: str):
    """
    The reason is the one that the server gives.
    """
    assert part in (slot_loss(reading, "towpath") or "")


def test_a_usable_slot_is_not_lost():
    """
    A slot in use, or in danger, is not lost.
    """
    assert None is slot_loss(replace(READING, wal_status="unreserved"), "towpath")
