"""Whether the source's WAL history is the one that the relay followed before."""

import orjson
import pytest

from support.copying import replace
from towpath.relay.errors import (
    HistoryChangedError,
    NotPreparedError,
    SlotLostError,
    StateLostError,
)
from towpath.relay.recovery.lineage import (
    FORMER_LINEAGES,
    Fork,
    Gap,
    Lineage,
    LineageDecision,
    SlotHistory,
    SourceHistory,
    StoredHistory,
    choose_lineage,
    gap_error,
    lineages_document,
    parse_lineages,
)

AT = "2026-01-02T03:04:05+00:00"
TABLES = ("shop.orders",)
FIRST = Lineage(1, "7", 1, 0, "towpath", start_lsn=1_000)
REMEMBERED = StoredHistory(
    lineages=(FIRST,),
    confirmed_lsn=5_000,
    confirmed_log_lsn=5_000,
    published_log_lsn=4_800,
    heartbeat=30,
    has_records=True,
)
SLOT = SlotHistory(confirmed_lsn=5_000, wal_status="reserved", has_streamed=True)
FOUND = SourceHistory("7", 1, (), 9_000, SLOT, 31, "towpath")


def decide_lineage(
    remembered: StoredHistory = REMEMBERED, found: SourceHistory = FOUND
) -> LineageDecision:
    """Choose the lineage for the tables of these tests."""
    return choose_lineage(remembered, found, TABLES, AT)


def test_the_first_start_begins_a_lineage_without_a_gap():
    """
    Without state and records, the current history is followed from offset zero.
    """
    fresh = replace(FOUND, slot=SlotHistory(confirmed_lsn=700), heartbeat=0)
    decision = decide_lineage(StoredHistory(), fresh)

    assert (
        Lineage(1, "7", 1, 0, "towpath", start_lsn=700, started_at=AT),
        None,
        True,
        700,
    ) == (decision.lineage, decision.gap, decision.is_new, decision.confirmed_lsn)


def test_a_known_lineage_continues():
    """
    A matching history is followed as before, and nothing is written.
    """
    decision = decide_lineage()

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
        replace(FOUND, slot=replace(SLOT, confirmed_lsn=1_000)),
        replace(FOUND, slot=replace(SLOT, wal_status="unreserved")),
        replace(FOUND, heartbeat=30),
        replace(FOUND, current_lsn=5_000),
    ],
    ids=["slot behind after a crash", "endangered", "no new heartbeat", "no new WAL"],
)
def test_no_gap_is_announced_without_a_cause(found: SourceHistory):
    """
    A crashed server, an idle one and an endangered slot do not cause a gap.
    """
    assert None is decide_lineage(found=found).gap


@pytest.mark.parametrize(
    ("found", "part", "needs_slot"),
    [
        (replace(FOUND, system_identifier="8"), "identifier is 8", False),
        (replace(FOUND, slot=None), "no longer exists", True),
        (
            replace(FOUND, slot=replace(SLOT, wal_status="lost")),
            "has lost part of the log",
            True,
        ),
        (
            replace(FOUND, slot=replace(SLOT, invalidation_reason="idle_timeout")),
            "(idle_timeout)",
            True,
        ),
        (replace(FOUND, slot=replace(SLOT, confirmed_lsn=5_001)), "another", False),
        (replace(FOUND, heartbeat=29), "heartbeat is 29", False),
        (replace(FOUND, current_lsn=4_999), "its log ends", False),
        (replace(FOUND, timeline=2, forks=(Fork(1, 4_800),)), "branched off", False),
        (replace(FOUND, timeline=3, forks=(Fork(2, 9_000),)), "descend", False),
    ],
)
def test_every_gap_begins_a_lineage_above_all_positions(
    found: SourceHistory, part: str, *, needs_slot: bool
):
    """
    A92, B73, B74, B77: a new lineage begins above everything that was published.
    """
    decision = decide_lineage(found=found)
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


def test_a_promotion_above_the_last_published_change_is_not_a_gap():
    """
    The lineage continues on the new timeline; the confirmed part ends at the fork.
    """
    promoted = replace(
        FOUND,
        timeline=2,
        forks=(Fork(1, 4_900),),
        slot=replace(SLOT, confirmed_lsn=4_900),
    )
    decision = decide_lineage(found=promoted)

    assert (None, 2, True, 4_900) == (
        decision.gap,
        decision.lineage.timeline,
        decision.is_changed,
        decision.confirmed_lsn,
    )


PROMOTED = replace(
    FOUND, timeline=2, forks=(Fork(1, 4_900),), slot=replace(SLOT, confirmed_lsn=4_900)
)


def test_a_promotion_that_lost_only_heartbeats_is_not_a_gap():
    """
    The standby has the first heartbeat after the last published record, which suffices.
    """
    decision = decide_lineage(
        replace(REMEMBERED, following_heartbeat=28), replace(PROMOTED, heartbeat=28)
    )

    assert (None, 28, 28) == (
        decision.gap,
        decision.heartbeat,
        decision.following_heartbeat,
    )


@pytest.mark.parametrize(
    ("following", "heartbeat"), [(28, 27), (None, 29)], ids=["below", "unknown"]
)
def test_a_promotion_that_lacks_a_following_heartbeat_is_a_gap(
    following: int | None, heartbeat: int
):
    """
    Nothing proves that the server has every published change.
    """
    remembered = replace(REMEMBERED, following_heartbeat=following)
    gap = decide_lineage(remembered, replace(PROMOTED, heartbeat=heartbeat)).gap

    assert gap is not None
    assert f"its heartbeat is {heartbeat}, but 30 was streamed" in gap.reason


def test_a_slot_beyond_the_fork_is_a_gap():
    """
    B73: changes between the fork and the slot on the new timeline were never streamed.
    """
    promoted = replace(FOUND, timeline=2, forks=(Fork(1, 4_900),))
    gap = decide_lineage(found=promoted).gap

    assert gap is not None
    assert "another program" in gap.reason


def test_the_fork_of_the_followed_timeline_counts():
    """
    After two promotions, the followed history ended at the first fork.
    """
    forks = (Fork(1, 4_900), Fork(2, 8_000))
    slot = replace(SLOT, confirmed_lsn=4_850)
    decision = decide_lineage(found=replace(FOUND, timeline=3, forks=forks, slot=slot))

    assert (None, 4_850) == (decision.gap, decision.confirmed_lsn)


def test_a_pending_lineage_is_resumed_and_not_begun_again():
    """
    A crash between announcing a gap and creating its slot repeats nothing.
    """
    begun = decide_lineage(found=replace(FOUND, slot=None))
    remembered = replace(REMEMBERED, lineages=begun.lineages)
    decision = decide_lineage(remembered, replace(FOUND, slot=None))

    assert (None, False, True, begun.lineage) == (
        decision.gap,
        decision.is_new,
        decision.needs_slot,
        decision.lineage,
    )


def test_an_earlier_confirmed_lsn_does_not_limit_a_new_lineage():
    """
    Until the new lineage has confirmed an LSN, the limit is the start of its slot.
    """
    resumed = replace(
        decide_lineage(found=replace(FOUND, heartbeat=3)).lineage, start_lsn=200
    )
    remembered = replace(REMEMBERED, lineages=(FIRST, resumed))
    found = replace(
        FOUND, slot=replace(SLOT, confirmed_lsn=200), heartbeat=3, current_lsn=900
    )
    moved = replace(found, slot=replace(SLOT, confirmed_lsn=201))

    assert decide_lineage(remembered, moved).gap is not None
    decision = decide_lineage(remembered, found)

    assert (None, 0) == (decision.gap, decision.heartbeat)


@pytest.mark.parametrize(
    ("remembered", "found", "error"),
    [
        (StoredHistory(), replace(FOUND, slot=None), NotPreparedError),
        (StoredHistory(), FOUND, StateLostError),
        (
            StoredHistory(has_records=True),
            replace(FOUND, slot=SlotHistory(700)),
            StateLostError,
        ),
        (
            StoredHistory(),
            replace(FOUND, slot=SlotHistory(700, wal_status="lost")),
            SlotLostError,
        ),
        (
            REMEMBERED,
            replace(FOUND, slot=replace(SLOT, is_ours=False, kind="a physical one")),
            NotPreparedError,
        ),
    ],
    ids=["no slot", "slot was read", "topics have records", "lost at once", "foreign"],
)
def test_contradictory_state_gives_a_specific_error(
    remembered: StoredHistory, found: SourceHistory, error: type[Exception]
):
    """
    If no decision is possible, the relay halts with an error specific to the case.
    """
    with pytest.raises(error):
        decide_lineage(remembered, found)


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (replace(FOUND, slot=None), SlotLostError),
        (replace(FOUND, heartbeat=1), HistoryChangedError),
    ],
)
def test_the_error_of_a_refused_gap_depends_on_its_cause(
    found: SourceHistory, error: type[Exception]
):
    """
    If gaps are not allowed, a lost slot and a changed history are different errors.
    """
    failure = gap_error(decide_lineage(found=found), found)

    assert error is type(failure)


def test_lineages_can_be_stored_and_restored():
    """
    The document of the state topic restores the same lineages.
    """
    gap = Gap("restored", 5, AT, TABLES, started=True)
    lineages = (FIRST, Lineage(2, "7", 2, 4_808, "towpath", gap, 10))

    assert lineages == parse_lineages(lineages_document(lineages))


def test_a_lineage_of_a_later_release_can_be_read():
    """
    A relay can thus take over from a later release that stores more fields.
    """
    gap = Gap("restored", 5, AT, TABLES, started=True)
    lineage = Lineage(2, "7", 2, 4_808, "towpath", gap, 10)
    document = lineages_document([lineage])
    for stored in (document["lineages"][0], document["lineages"][0]["gap"]):
        stored["added_later"] = 1

    assert (lineage,) == parse_lineages(document)


def test_the_document_of_lineages_remains_small():
    """
    Only the newest lineage has a plan; the oldest are forgotten, but not their numbers.
    """
    tables = [f"shop.table_{number}" for number in range(10_000)]
    remembered = REMEMBERED
    for number in range(3 * FORMER_LINEAGES):
        other = replace(FOUND, system_identifier=str(number + 8))
        decision = choose_lineage(remembered, other, tables, AT)
        log_lsn = decision.lineage.offset + 8
        remembered = replace(
            REMEMBERED, lineages=decision.lineages, published_log_lsn=log_lsn
        )
    newest = 3 * FORMER_LINEAGES + 1
    numbers = [each.number for each in remembered.lineages]
    plans = [each.gap and len(each.gap.plan) for each in remembered.lineages]

    assert list(range(newest - FORMER_LINEAGES, newest + 1)) == numbers
    assert [*[0] * FORMER_LINEAGES, 10_000] == plans
    assert 500_000 > len(orjson.dumps(lineages_document(remembered.lineages)))


def test_an_empty_state_has_no_lineage():
    """
    Before the first start there is none.
    """
    assert () == parse_lineages(None)


@pytest.mark.parametrize("stored", [{}, {"lineages": 3}, {"lineages": [{"gap": 1}]}])
def test_a_malformed_lineage_document_is_an_error(stored: dict):
    """
    A document of a different form halts the relay.
    """
    with pytest.raises(StateLostError, match="cannot be read"):
        parse_lineages(stored)
