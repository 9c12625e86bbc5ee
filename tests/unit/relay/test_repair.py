"""Repair of lost state: pure decisions from the remaining evidence."""

import orjson
import pytest

from support.copying import replace
from towpath.relay.commands.repair import streamed_marks
from towpath.relay.errors import StateRefusedError
from towpath.relay.recovery.lineage import SlotHistory, SourceHistory, parse_lineages
from towpath.relay.recovery.marks import FormerCount, Mark
from towpath.relay.recovery.rebuild import (
    LOST,
    Evidence,
    MarkMismatch,
    MismatchFacts,
    find_mismatches,
    plan_marks,
    plan_repair,
)
from towpath.relay.recovery.state import parse_state
from towpath.schemas.position import format_position

SLOT = SlotHistory(confirmed_lsn=0x5000, wal_status="reserved")


def source_facts(
    slot: SlotHistory | None = SLOT, current_lsn: int = 0x9000
) -> SourceHistory:
    """Make the source's facts."""
    return SourceHistory("77", 2, (), current_lsn, slot, 5, "towpath")


def evidence(
    log_lsn: int,
    offsets: dict[int, int] | None = None,
    source: SourceHistory | None = None,
) -> Evidence:
    """Make the evidence whose highest published position is ``log_lsn``."""
    position = format_position(log_lsn, 3).encode()
    return Evidence(
        marks={"t": {0: Mark(9, position), 1: Mark(0, None)}},
        published_log_lsn=log_lsn,
        offsets=offsets or {},
        found=source or source_facts(),
        highest_gap=0,
        settings={"source": {"slot": "towpath"}},
        tables=("shop.orders",),
        at="2026-01-02T03:04:05+00:00",
    )


def test_positions_within_the_wal_imply_the_first_lineage():
    """
    Nothing was published beyond the server's WAL, so the lineage offset is zero.
    """
    documents = plan_repair(evidence(0x8000)).documents
    lineage = parse_lineages(documents["lineage"])[0]
    assert (lineage.offset, lineage.start_lsn, lineage.gap) == (0, 0x5000, None)

    assert (documents["confirmed"] or {})["log_lsn"] == 0x5000


def test_a_row_change_proves_the_lineage_offset():
    """
    The newest proof counts, and the history continues without a gap.
    """
    planned = plan_repair(evidence(0x18000, {0x8000: 0, 0x18000: 0x10000}))
    lineage = parse_lineages(planned.documents["lineage"])[0]
    assert "a row change proves the lineage's offset 65536" in planned.notes[0]
    confirmed = planned.documents["confirmed"] or {}
    assert (confirmed["lsn"], confirmed["log_lsn"]) == (0x5000, 0x15000)

    assert (lineage.offset, lineage.gap) == (0x10000, None)


@pytest.mark.parametrize(
    "offsets", [{}, {0x8000: 0}, {0x18000: 0x10001}, {0x18000: -8}]
)
def test_without_proof_a_lineage_begins_above_every_position(offsets: dict[int, int]):
    """
    The new lineage is above a position without a proof, and a gap is planned.
    """
    planned = plan_repair(evidence(0x18000, offsets))
    lineage = parse_lineages(planned.documents["lineage"])[0]
    assert "confirmed" not in planned.documents
    assert lineage.offset > 0x18000
    assert lineage.offset % 8 == 0
    assert lineage.start_lsn is None
    gap = lineage.gap

    assert gap is not None
    assert (gap.reason, gap.plan) == (LOST, ("shop.orders",))


def test_a_rebuilt_lineage_has_a_number_that_no_gap_has():
    """
    A gap's fill signal contains the number, and a used signal id requests nothing.
    """
    planned = plan_repair(evidence(0x18000)._replace(highest_gap=2))
    lineage = parse_lineages(planned.documents["lineage"])[0]

    assert 3 == lineage.number


def test_a_planned_repair_can_be_read_as_state():
    """
    The documents are those that a relay reads; the lineage is written last.
    """
    documents = plan_repair(evidence(0x8000)).documents
    state = parse_state({key: orjson.dumps(each) for key, each in documents.items()})
    assert list(documents)[-1] == "lineage"

    assert state.marks["t"][0].next_offset == 9


@pytest.mark.parametrize(
    ("slot", "reason"),
    [
        (None, "is missing or unusable"),
        (replace(SLOT, wal_status="lost"), "is missing or unusable"),
        (replace(SLOT, is_ours=False, kind="a physical one"), "is missing or unusable"),
        (replace(SLOT, is_active=True), "stop the relay first"),
    ],
)
def test_a_repair_needs_a_free_slot(slot: SlotHistory | None, reason: str):
    """
    Without a slot there is no stream to continue.

    While the relay is running, nothing is written.
    """
    with pytest.raises(StateRefusedError, match=reason):
        plan_repair(evidence(0x8000, source=source_facts(slot)))


def test_marks_that_match_their_topics_are_unchanged():
    """
    A topic that is longer than its mark is normal after a crash.
    """
    marks = {"a": {0: Mark(5, None)}}

    assert find_mismatches(marks, {"a": 1}, {("a", 0): 7}) == {}


def test_marks_that_do_not_match_are_rebuilt():
    """
    Truncated, deleted and widened topics are reported; a deleted one loses its mark.
    """
    marks = {
        "gone": {0: Mark(5, None)},
        "short": {0: Mark(5, None), 1: Mark(1, None)},
        "wide": {0: Mark(5, None)},
    }
    ends = {("gone", 0): -1, ("short", 0): 4, ("short", 1): 1, ("wide", 0): 5}
    mismatches = find_mismatches(marks, {"short": 2, "wide": 3}, ends)
    assert mismatches == {
        "gone": MarkMismatch("was deleted", 0, has_lost=True),
        "short": MarkMismatch("ends below its mark in partition 0", 2, has_lost=True),
        "wide": MarkMismatch("changed from 1 to 3 partitions", 3, has_lost=False),
    }
    has = {"short": {0: Mark(4, None)}}
    planned = plan_marks(
        MismatchFacts(mismatches, marks, {}, has, {}, "now"), source_facts()
    )
    expected = {
        "marks:gone": None,
        "marks:short": {"partitions": {"0": {"next_offset": 4, "position": None}}},
        "marks:wide": None,
    }

    assert expected == planned.documents


def test_published_records_keep_the_former_partition_count():
    """
    A widened topic uses its new partitions after its last transaction.

    A topic that was widened twice keeps both limits.
    """
    before = FormerCount(2, b"0000000000000008.9999999999")
    marks = {"wide": {n: Mark(5, b"0000000000000010.0000000001") for n in range(3)}}
    mismatches = {
        "wide": MarkMismatch("changed from 3 to 4 partitions", 4, has_lost=False)
    }
    has = {"wide": {0: Mark(7, None), 1: Mark(9, b"0000000000000018.0000000002")}}
    topics = MismatchFacts(mismatches, marks, {"wide": (before,)}, has, {}, "now")
    document = plan_marks(topics, source_facts()).documents["marks:wide"]

    assert document is not None
    assert (document["partitions"]["0"]["position"], document["former"]) == (
        "0000000000000010.0000000001",
        [
            {"count": 2, "until": "0000000000000008.9999999999"},
            {"count": 3, "until": "0000000000000018.9999999999"},
        ],
    )


def test_lost_topics_are_recreated_and_their_tables_requested():
    """
    A deleted topic gets its former partition count; one without a table is reported.
    """
    marks = {name: {0: Mark(5, None), 1: Mark(5, None)} for name in ("a", "b", "c")}
    gone = MarkMismatch("was deleted", 0, has_lost=True)
    collections = {"a": "shop.a", "b": None}
    topics = MismatchFacts(
        dict.fromkeys(marks, gone), marks, {}, {}, collections, "now"
    )
    planned = plan_marks(topics, source_facts())

    assert (planned.recreated, planned.requested, planned.signal_id) == (
        {"a": 2, "b": 2},
        ("shop.a",),
        "repair-now",
    )

    assert any("topic b cannot be read" in note for note in planned.notes)


def test_the_topics_of_sinks_get_no_marks():
    """
    The template of events may match them, and ``towpath sink drop`` deletes them.
    """
    kept = ["shop.dead.relay", "outbox.event.order", "shop.public.item"]
    excluded = ["outbox.event.order.backfill.search", "shop.dead.search"]
    marks = {topic: {0: Mark(1, None)} for topic in (*kept, *excluded)}

    assert kept == list(streamed_marks("shop", marks))
