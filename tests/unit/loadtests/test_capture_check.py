"""The check of a captured topic: each kind of loss is found in an invented history."""

import json
from typing import NamedTuple

import pytest

from towpath.loadtests.capture import (
    CREATE,
    DELETE,
    UPDATE,
    CapturedRecord,
    RowImage,
    TopicRecord,
    decoded,
)
from towpath.loadtests.capture.check import CaptureHistory, CommittedChange
from towpath.loadtests.capture.load import HOT_KEYS, image_of, plan_load
from towpath.loadtests.capture.server import committed_changes
from towpath.loadtests.capture.writers import write_all
from towpath.loadtests.errors import BenchError

# Row 1: created, updated, deleted, created again. Row 2: created, updated.
COMMITTED = [
    CommittedChange(1, CREATE, 10, 1_000_000),
    CommittedChange(2, CREATE, 20, 2_000_000),
    CommittedChange(1, UPDATE, 11, 3_000_000),
    CommittedChange(1, DELETE, None, 4_000_000),
    CommittedChange(2, UPDATE, 21, 5_000_000),
    CommittedChange(1, CREATE, 12, 6_000_000),
]
TABLE = {1: image_of(12), 2: image_of(21)}


def records(*changes: tuple[int, int | None]) -> list[TopicRecord]:
    """Make a topic from keys and numbers; a delete has no number."""
    return [
        TopicRecord(
            key % 2,
            offset,
            7_000,
            CapturedRecord(
                key,
                DELETE if number is None else UPDATE,
                None if number is None else image_of(number),
                f"{offset:03}",
            ),
        )
        for offset, (key, number) in enumerate(changes)
    ]


WHOLE = ((1, 10), (1, 11), (1, None), (1, 12), (2, 20), (2, 21))


def counts(*changes: tuple[int, int | None], late: int = 0) -> dict[str, int]:
    """Check a topic, and return the counts above zero."""
    history = CaptureHistory(COMMITTED, TABLE, records(*changes))
    found = history.check(frozenset({late})).counts()
    return {name: count for name, count in found.items() if count}


def test_a_topic_with_every_change_once_and_in_order_is_clean():
    """
    Nothing is counted, and no key is wrong.
    """
    history = CaptureHistory(COMMITTED, TABLE, records(*WHOLE))

    assert (True, ()) == (history.check().is_clean, history.wrong([1, 2]))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        # Row 2 never arrives.
        (WHOLE[:4], {"missing": 1, "wrong_by_version": 1, "unseen": 2}),
        # The last change of row 2 is lost.
        (WHOLE[:5], {"stale": 1, "wrong_by_version": 1, "unseen": 1}),
        # An intermediate state is lost, but the final one is right.
        ((WHOLE[0], *WHOLE[2:]), {"unseen": 1}),
        # The delete is lost, but the recreated row follows.
        ((*WHOLE[:2], *WHOLE[3:]), {"unseen": 1, "unseen_deletes": 1}),
        # A record is repeated at once.
        ((*WHOLE, WHOLE[5]), {"duplicates": 1}),
        # A delete is repeated at the end: the reader lacks the row.
        (
            (*WHOLE, (1, None)),
            {"missing": 1, "wrong_by_version": 1, "unknown": 1},
        ),
        # A record of a rolled-back transaction, with a new key.
        ((*WHOLE, (3, 30)), {"ghosts": 1, "wrong_by_version": 1, "unknown": 1}),
        # Two changes arrive in the wrong order, and so do their versions.
        (
            (*WHOLE[:4], WHOLE[5], WHOLE[4]),
            {"stale": 1, "wrong_by_version": 1, "disordered": 1},
        ),
    ],
)
def test_each_kind_of_loss_is_counted(changes, found: dict[str, int]):
    """
    A history with one defect has the counts of that defect, and no others.
    """
    assert found == counts(*changes)


def test_a_deleted_row_that_remains_in_the_topic_is_a_ghost():
    """
    The table has no such key, and no record in the topic deletes it.
    """
    committed = [*COMMITTED, CommittedChange(2, DELETE, None, 8_000_000)]
    history = CaptureHistory(committed, {1: image_of(12)}, records(*WHOLE))
    check = history.check()

    assert (1, 1, 1) == (check.ghosts, check.unseen, check.unseen_deletes)
    assert [("ghost", "unseen"), ()] == [history.wrong([key]) for key in (2, 1)]


def test_an_unseen_change_of_a_transaction_held_open_counts_as_late():
    """
    It also counts as unseen; other changes do not count as late.
    """
    lost = WHOLE[:5]

    assert (1, 1) == (counts(*lost, late=21)["unseen_late"], counts(*lost)["unseen"])
    assert "unseen_late" not in counts(*lost, late=20)


def test_a_reader_that_compares_versions_is_right():
    """
    An older record that arrives last is ignored by version, but wins by order.
    """
    topic = records(*WHOLE[:4], WHOLE[5], WHOLE[4])
    topic[4] = topic[4]._replace(record=topic[4].record._replace(version="900"))
    check = CaptureHistory(COMMITTED, TABLE, topic).check()

    assert (1, 0, 1) == (check.stale, check.wrong_by_version, check.disordered)


def test_a_row_with_a_different_note_is_stale():
    """
    All columns of the contract are compared, not just the number.
    """
    topic = records(*WHOLE)
    other = RowImage(21, "other")
    topic[5] = topic[5]._replace(record=topic[5].record._replace(image=other))

    assert 1 == CaptureHistory(COMMITTED, TABLE, topic).check().stale


def test_the_lag_ends_at_the_first_record_of_each_change():
    """
    It begins at the commit; duplicates and earlier commits do not count.
    """
    topic = records(*WHOLE, WHOLE[5])
    topic[6] = topic[6]._replace(appended_ms=90_000)
    history = CaptureHistory(COMMITTED, TABLE, topic)

    assert [1000.5, 2000.5] == sorted(history.lags_ms(since_us=5_000_000))


LINES = """
BEGIN 745
table public.item: INSERT: id[bigint]:1 change[bigint]:10 note[text]:'COMMIT 1 (at x)'
table towpath.outbox: INSERT: id[bigint]:9 change[bigint]:9
COMMIT 745 (at 1970-01-01 00:00:01.5+00)
BEGIN 746
table public.item: UPDATE: id[bigint]:1 change[bigint]:11 note[text]:'a'
table public.item: DELETE: id[bigint]:1
COMMIT 746 (at 1970-01-01 00:00:02+00)
BEGIN 747
table public.item: INSERT: id[bigint]:2 change[bigint]:20 note[text]:'open'
"""


def test_the_servers_text_is_parsed_as_committed_changes():
    """
    Other tables, and a transaction without its commit, are left out.
    """
    found = list(committed_changes(iter(LINES.strip().splitlines())))

    assert [
        CommittedChange(1, CREATE, 10, 1_500_000),
        CommittedChange(1, UPDATE, 11, 2_000_000),
        CommittedChange(1, DELETE, None, 2_000_000),
    ] == found


class Received(NamedTuple):
    """A message as the client returns it."""

    record: CapturedRecord
    has_value: bool = True

    def value(self) -> bytes | None:
        return self.record.value_bytes() if self.has_value else None

    def key(self) -> bytes:
        return self.record.key_bytes()

    def headers(self) -> list[tuple[str, str | bytes | None]]:
        return self.record.headers()

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 4

    def timestamp(self) -> tuple[int, int]:
        return 2, 5


@pytest.mark.parametrize("image", [image_of(7), None])
def test_a_record_of_the_contract_can_be_read_back(image: RowImage | None):
    """
    Key, operation, row and version are the same; a tombstone yields no record.
    """
    record = CapturedRecord(12, UPDATE if image else DELETE, image, "007")

    assert TopicRecord(3, 4, 5, record) == decoded(Received(record))
    assert None is decoded(Received(record, has_value=False))
    assert {"id": 12} == json.loads(record.key_bytes())


def test_a_seed_repeats_its_plan():
    """
    The same seed gives the same load; a different seed gives a different one.
    """
    assert plan_load(500, 4, 400.0, 7) == plan_load(500, 4, 400.0, 7)
    assert plan_load(500, 4, 400.0, 7) != plan_load(500, 4, 400.0, 8)


def test_a_plan_is_executable_and_has_every_kind_of_transaction():
    """
    Updates and deletes find their rows; writers share only the hot keys.
    """
    plan = plan_load(2000, 4, 400.0, 1)
    rows: set[int] = set(HOT_KEYS)
    owners: dict[int, set[int]] = {}
    kinds: set[str] = set()
    for number, transactions in enumerate(plan.writers):
        for one in transactions:
            after = set(rows)
            for change in one.changes:
                assert (change.key in after) == (change.operation != CREATE)
                after ^= {change.key} if change.operation != UPDATE else set()
                owners.setdefault(change.key, set()).add(number)
                kinds.add(change.operation)
            rows = rows if one.is_rolled_back else after
    numbers = [c.number for each in plan.writers for one in each for c in one.changes]

    assert {CREATE, UPDATE, DELETE} == kinds
    assert len(numbers) == len(set(numbers))
    assert 2000 == sum(map(len, plan.writers))
    assert 0 < 2000 - plan.committed < 200
    assert 20 == len(plan.late_changes)
    shared = {key for key, writers in owners.items() if len(writers) > 1}
    assert set(HOT_KEYS) == shared


def test_no_transaction_of_a_plan_updates_two_hot_keys():
    """
    Otherwise two writers could deadlock.
    """
    plan = plan_load(2000, 4, 400.0, 2)
    most = max(
        sum(change.key in HOT_KEYS for change in one.changes)
        for each in plan.writers
        for one in each
    )

    assert 1 == most


class LongWriter:
    """A writer whose transactions take a given time."""

    def __init__(self, takes_s):
        self._takes_s = takes_s

    def send(self):
        """Begin at once."""

    def receive(self, within_s):
        """Return the times, unless the timeout is too short."""
        if within_s < self._takes_s:
            message = f"a writer did nothing for {within_s:.0f} s"
            raise BenchError(message)
        return [self._takes_s]


def test_writers_are_given_the_whole_time_of_their_load():
    """
    A load of an hour is not cut off after five minutes.
    """
    plan = plan_load(200, 2, 200 / 3600, 1)
    takes_s = plan.duration_s

    assert 3000 < takes_s < 3700
    assert [takes_s] == write_all([LongWriter(takes_s)], plan)
