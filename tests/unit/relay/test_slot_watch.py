"""What a look at the slot means."""

import pytest

from towpath.relay.postgres.slot_watch import Crossing, SlotLook, SlotWatch, loss
from towpath.settings import Relay

LOOK = SlotLook(100, 50, None, "reserved", True, None, None, 0)  # active, no updates
RELAY = Relay(
    retained_warning_bytes=1_000, retained_critical_bytes=2_000, inactive_critical_s=30
)


def crossings(watch: SlotWatch, look: SlotLook, now_s: float = 0.0) -> list[Crossing]:
    """Look once more."""
    return watch.crossings(watch.view(look, now_s))


def test_a_bound_is_told_once_per_crossing():
    """
    W-15: crossing is told, staying beyond is not, coming back is.
    """
    watch = SlotWatch(RELAY)
    told = [
        [(c.what, c.is_over) for c in crossings(watch, LOOK._replace(retained_bytes=n))]
        for n in (1_000, 1_001, 1_500, 2_001, 1_500, 10)
    ]

    assert [
        [],
        [("retained_warning_bytes", True)],
        [],
        [("retained_critical_bytes", True)],
        [("retained_critical_bytes", False)],
        [("retained_warning_bytes", False)],
    ] == told


def test_a_slot_whose_log_may_go_is_an_error():
    """
    B77: unreserved means that the next checkpoint may lose the slot.
    """
    (told,) = crossings(SlotWatch(RELAY), LOOK._replace(wal_status="unreserved"))

    assert Crossing("max_slot_wal_keep_size", "error", is_over=True) == told


def test_inactive_time_is_measured_where_the_server_does_not_tell():
    """
    Before version 17 the time counts from the first look at an inactive slot.
    """
    watch = SlotWatch(RELAY)
    look = LOOK._replace(is_active=False)
    first = watch.view(look, 100.0)
    second = watch.view(look, 131.0)
    active = watch.view(LOOK, 132.0)

    assert (0.0, 31.0, None) == (
        first.inactive_s,
        second.inactive_s,
        active.inactive_s,
    )


def test_the_servers_word_on_inactive_time_goes_first():
    """
    What the server tells holds over what was measured.
    """
    look = LOOK._replace(is_active=False, inactive_s=99.0)

    assert 99.0 == SlotWatch(RELAY).view(look, 5.0).inactive_s


def test_outbox_updates_are_counted_from_the_first_look():
    """
    What happened before is not counted, nor is a counter that was reset.
    """
    watch = SlotWatch(RELAY)
    seen = [
        watch.new_outbox_updates(LOOK._replace(outbox_updates=n))
        for n in (7, 7, 9, None, 3, 4)
    ]

    assert [0, 0, 2, 0, 0, 1] == seen


@pytest.mark.parametrize(
    ("look", "part"),
    [
        (None, "is gone"),
        (LOOK._replace(wal_status="lost"), "max_slot_wal_keep_size"),
        (LOOK._replace(invalidation_reason="idle_timeout"), "idle_timeout"),
    ],
)
def test_a_loss_names_its_cause(look: SlotLook | None, part: str):
    """
    A slot that serves no more is told with the reason that the server gives.
    """
    assert part in (loss(look, "towpath") or "")


def test_a_slot_that_serves_is_no_loss():
    """
    A slot in use, or in danger, is not lost.
    """
    assert None is loss(LOOK._replace(wal_status="unreserved"), "towpath")
