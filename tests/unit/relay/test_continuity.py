"""Whether the history at hand is the one that was followed before."""

from dataclasses import replace

import pytest

from towpath.relay.continuity import decide, refusal
from towpath.relay.errors import (
    HistoryChangedError,
    NotPreparedError,
    SlotLostError,
    StateLostError,
)
from towpath.relay.lineage import (
    Decision,
    Fork,
    Found,
    FoundSlot,
    Gap,
    Lineage,
    Remembered,
    document,
    parse_lineages,
)

AT = "2026-01-02T03:04:05+00:00"
TABLES = ("shop.orders",)
FIRST = Lineage(1, "7", 1, 0, "towpath", start_lsn=1_000)
REMEMBERED = Remembered(
    lineages=(FIRST,),
    confirmed_lsn=5_000,
    confirmed_log_lsn=5_000,
    published_log_lsn=4_800,
    heartbeat=30,
    has_records=True,
)
SLOT = FoundSlot(confirmed_lsn=5_000, wal_status="reserved", has_streamed=True)
FOUND = Found("7", 1, (), 9_000, SLOT, 31, "towpath")


def judged(remembered: Remembered = REMEMBERED, found: Found = FOUND) -> Decision:
    """Decide on the tables of these tests."""
    return decide(remembered, found, TABLES, AT)


def test_the_first_start_begins_a_lineage_without_a_gap():
    """
    Without state and records, the history at hand is followed from offset zero.
    """
    fresh = FOUND._replace(slot=FoundSlot(confirmed_lsn=700), heartbeat=0)
    decision = judged(Remembered(), fresh)

    assert (
        Lineage(1, "7", 1, 0, "towpath", start_lsn=700),
        None,
        True,
        700,
    ) == (decision.lineage, decision.gap, decision.is_new, decision.confirmed_lsn)


def test_a_known_lineage_goes_on():
    """
    What fits is followed as before, and nothing is written.
    """
    decision = judged()

    assert (FIRST, None, False, False, 5_000, 30) == (
        decision.lineage,
        decision.gap,
        decision.needs_slot,
        decision.is_changed,
        decision.confirmed_lsn,
        decision.heartbeat,
    )


@pytest.mark.parametrize(
    "found",
    [
        FOUND._replace(slot=SLOT._replace(confirmed_lsn=1_000)),
        FOUND._replace(slot=SLOT._replace(wal_status="unreserved")),
        FOUND._replace(heartbeat=30),
        FOUND._replace(current_lsn=5_000),
    ],
    ids=["slot behind after a crash", "endangered", "no beat since", "no log since"],
)
def test_no_gap_is_announced_without_cause(found: Found):
    """
    A server that crashed, a quiet one and a slot in danger are no gap.
    """
    assert None is judged(found=found).gap


@pytest.mark.parametrize(
    ("found", "part", "needs_slot"),
    [
        (FOUND._replace(system_identifier="8"), "the server is 8", False),
        (FOUND._replace(slot=None), "is gone", True),
        (FOUND._replace(slot=SLOT._replace(wal_status="lost")), "has lost log", True),
        (
            FOUND._replace(slot=SLOT._replace(invalidation_reason="idle_timeout")),
            "(idle_timeout)",
            True,
        ),
        (FOUND._replace(slot=SLOT._replace(confirmed_lsn=5_001)), "somebody", False),
        (FOUND._replace(heartbeat=29), "heartbeat is 29", False),
        (FOUND._replace(current_lsn=4_999), "its log ends", False),
        (FOUND._replace(timeline=2, forks=(Fork(1, 4_800),)), "left timeline", False),
        (FOUND._replace(timeline=3, forks=(Fork(2, 9_000),)), "descend", False),
    ],
)
def test_every_gap_is_announced_and_lies_above_all(
    found: Found, part: str, *, needs_slot: bool
):
    """
    A92, B73, B74, B77: a new lineage begins above everything that was published.
    """
    decision = judged(found=found)
    gap, lineage = decision.gap, decision.lineage

    assert gap is not None
    assert part in gap.reason
    assert (5_000, AT, TABLES, False) == (gap.since_lsn, gap.at, gap.plan, gap.started)
    assert (2, True, needs_slot, None, 0) == (
        lineage.number,
        decision.is_new,
        decision.needs_slot,
        lineage.start_lsn,
        lineage.offset % 8,
    )
    assert lineage.offset > max(REMEMBERED.published_log_lsn, 5_000)


def test_a_promotion_above_what_was_published_is_no_gap():
    """
    The lineage goes on, on the new timeline, and what was confirmed ends at the fork.
    """
    promoted = FOUND._replace(
        timeline=2, forks=(Fork(1, 4_900),), slot=SLOT._replace(confirmed_lsn=4_900)
    )
    decision = judged(found=promoted)

    assert (None, 2, True, 4_900) == (
        decision.gap,
        decision.lineage.timeline,
        decision.is_changed,
        decision.confirmed_lsn,
    )


def test_a_slot_beyond_the_fork_is_a_gap():
    """
    B73: what the new timeline wrote between the fork and its slot was never streamed.
    """
    promoted = FOUND._replace(timeline=2, forks=(Fork(1, 4_900),))
    gap = judged(found=promoted).gap

    assert gap is not None
    assert "somebody else" in gap.reason


def test_the_fork_of_our_own_timeline_counts():
    """
    After two promotions the first fork is where our history was left.
    """
    forks = (Fork(1, 4_900), Fork(2, 8_000))
    slot = SLOT._replace(confirmed_lsn=4_850)
    decision = judged(found=FOUND._replace(timeline=3, forks=forks, slot=slot))

    assert (None, 4_850) == (decision.gap, decision.confirmed_lsn)


def test_a_pending_lineage_is_taken_up_and_not_begun_again():
    """
    A crash between the announcement of a gap and its slot repeats nothing.
    """
    begun = judged(found=FOUND._replace(slot=None))
    remembered = REMEMBERED._replace(lineages=begun.lineages)
    decision = judged(remembered, FOUND._replace(slot=None))

    assert (None, False, True, begun.lineage) == (
        decision.gap,
        decision.is_new,
        decision.needs_slot,
        decision.lineage,
    )


def test_what_was_confirmed_before_does_not_bind_a_new_lineage():
    """
    Until the new lineage has confirmed something, its slot's beginning is the bound.
    """
    taken_up = replace(judged(found=FOUND._replace(heartbeat=3)).lineage, start_lsn=200)
    remembered = REMEMBERED._replace(lineages=(FIRST, taken_up))
    found = FOUND._replace(
        slot=SLOT._replace(confirmed_lsn=200), heartbeat=3, current_lsn=900
    )
    moved = found._replace(slot=SLOT._replace(confirmed_lsn=201))

    assert judged(remembered, moved).gap is not None
    decision = judged(remembered, found)

    assert (None, 0) == (decision.gap, decision.heartbeat)


@pytest.mark.parametrize(
    ("remembered", "found", "error"),
    [
        (Remembered(), FOUND._replace(slot=None), NotPreparedError),
        (Remembered(), FOUND, StateLostError),
        (
            Remembered(has_records=True),
            FOUND._replace(slot=FoundSlot(700)),
            StateLostError,
        ),
        (
            Remembered(),
            FOUND._replace(slot=FoundSlot(700, wal_status="lost")),
            SlotLostError,
        ),
        (
            REMEMBERED,
            FOUND._replace(slot=SLOT._replace(is_ours=False, kind="a physical one")),
            NotPreparedError,
        ),
    ],
    ids=["no slot", "slot was read", "topics have records", "lost at once", "foreign"],
)
def test_what_does_not_belong_together_is_a_named_error(
    remembered: Remembered, found: Found, error: type[Exception]
):
    """
    Where nothing can be decided, the relay halts by the case's own name.
    """
    with pytest.raises(error):
        judged(remembered, found)


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (FOUND._replace(slot=None), SlotLostError),
        (FOUND._replace(heartbeat=1), HistoryChangedError),
    ],
)
def test_a_refused_gap_is_named_by_what_is_missing(
    found: Found, error: type[Exception]
):
    """
    Without leave to go on, a lost slot and a changed history halt by different names.
    """
    failure = refusal(judged(found=found), found)

    assert error is type(failure)


def test_lineages_are_stored_and_read_again():
    """
    The document of the state topic gives the same lineages back.
    """
    gap = Gap("restored", 5, AT, TABLES, started=True)
    lineages = (FIRST, Lineage(2, "7", 2, 4_808, "towpath", gap, 10))

    assert lineages == parse_lineages(document(lineages))


def test_nothing_stored_is_no_lineage():
    """
    Before the first start there is none.
    """
    assert () == parse_lineages(None)


@pytest.mark.parametrize("stored", [{}, {"lineages": 3}, {"lineages": [{"gap": 1}]}])
def test_what_is_no_lineage_is_named(stored: dict):
    """
    A document of another form halts instead of being guessed at.
    """
    with pytest.raises(StateLostError, match="cannot be read"):
        parse_lineages(stored)
