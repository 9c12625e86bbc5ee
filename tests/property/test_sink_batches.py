"""
After any repetition, split or crash, rows equal the fold and no dead letter is lost.
"""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.copying import replace
from support.dying_process import Death, repeat
from support.parked_shop import FILL, TOPIC, Shop, change
from towpath.sinks.change import Origin, Record
from towpath.sinks.dead_letters.entries import (
    DeadLetterRequest,
    ParkedKey,
    Subject,
    Verb,
)
from towpath.sinks.dead_letters.parked import OpenDeadLetters

KEYS = (7, 8, 9)


class SourceHistory(NamedTuple):
    """
    A source's history.

    Attributes:
        logs: The records of each partition, in order; the last is the backfill's.
        fold: The final position and row of each key.
    """

    logs: list[list[Record]]
    fold: dict[str, tuple[str, dict | None]]


@st.composite
def histories(draw, *, with_unreadable=True):
    """Draw whole and partial changes, deletes, reads, and unreadable records."""
    logs: list[list[Record]] = [[], [], []]
    fold: dict[str, tuple[str, dict | None]] = {}
    for number in range(1, draw(st.integers(1, 18))):
        key = draw(st.sampled_from(KEYS))
        row = fold.get(str(key), ("", None))[1]
        kinds = ["c"] if row is None else ["u", "d", "r"]
        kinds += ["partial"] if row and with_unreadable else []
        kinds += ["unreadable"] if with_unreadable else []
        kind = draw(st.sampled_from(kinds))
        if kind == "unreadable":
            unreadable_origin = Origin(TOPIC, 0, number)
            logs[0].append(Record(unreadable_origin, b"{}", b"{", {}))
            continue
        notes = ["a", "b", "bad"] if with_unreadable else ["a", "b"]
        after = {"note": draw(st.sampled_from(notes)), "status": f"{number}"}
        unchanged = ["note"] if kind == "partial" else None
        if kind == "partial":
            del after["note"]
        if kind == "r":
            after = {k: v for k, v in row.items() if k != "order_id"}
        topic = FILL if kind == "r" else TOPIC
        operation = "u" if kind == "partial" else kind
        record = change(
            number, operation, order=key, topic=topic, unchanged=unchanged, **after
        )
        log = 2 if kind == "r" else key % 2
        origin = Origin(topic, log % 2, number)
        logs[log].append(replace(record, origin=origin))
        position = record.headers["position"].decode()
        whole = {"order_id": key, **(row or {} if unchanged else {}), **after}
        fold[str(key)] = (position, None if kind == "d" else whole)
    return SourceHistory(logs, fold)


@st.composite
def deliveries(draw):
    """Draw a history and its batches, some of them repeated."""
    records = draw(histories())
    at = [0, 0, 0]
    batches = []
    starts = draw(st.integers(0, 2))
    while any(a < len(log) for a, log in zip(at, records.logs, strict=True)) or starts:
        batch = []
        for number, log in enumerate(records.logs):
            size = draw(st.integers(0, 4))
            batch += log[at[number] : at[number] + size]
            at[number] += size
        batches.append(batch)
        if starts and draw(st.booleans()):
            # A query restarts like this after a lost checkpoint or an uncommitted last
            # batch.
            starts -= 1
            at = [draw(st.integers(0, a)) for a in at]
    return records, batches


def content(shop):
    """Return the position and the row of each key."""
    rows = shop.sink.rows.get("orders", {})
    return {
        k: (s.position, None if s.row is None else dict(s.row)) for k, s in rows.items()
    }


def shop_of(mode, rng, **options):
    """Make a shop that writes its batches in one of the modes."""
    return Shop(
        **options,
        in_slices=mode != "records",
        rng=rng if mode == "tasks" else None,
    )


MODES = pytest.mark.parametrize("mode", ["records", "slice", "tasks"])
DEATHS = st.lists(st.integers(1, 12), max_size=6)


@MODES
@given(deliveries(), DEATHS, st.booleans(), st.randoms(use_true_random=False))
def test_a_sink_equals_the_fold_after_any_crash(mode, delivery, deaths, is_after, rng):
    """
    Rows equal the fold immediately; those of parked or refetched keys do so later.

    Each unreadable record becomes one dead letter.
    """
    actual, batches = delivery
    shop = shop_of(mode, rng, accepts_repairs=True)
    if deaths:
        Death(*deaths, is_after=is_after).wrap_calls(shop)
    for batch in batches:
        repeat(shop, lambda batch=batch: shop.write(*batch))
    refetched_keys = {str(key) for _, (key,) in shop.repairs.keys}
    unaffected = {str(k) for k in KEYS if not is_parked(shop, k)} - refetched_keys
    found = {k: v for k, v in content(shop).items() if k in unaffected}
    shop.sink.is_repaired = True
    for key in KEYS:
        subject = Subject(TOPIC, b'{"order_id":%d}' % key)
        shop.letters.request(DeadLetterRequest(f"replay {key}", Verb.REPLAY, subject))

    def process_requests():
        """Process requests as a new process does."""
        shop.requests.process()

    repeat(shop, process_requests)
    refetched_keys = {str(key) for _, (key,) in shop.repairs.keys}
    repeat(
        shop,
        lambda: shop.write(*(refetched(actual, key) for key in sorted(refetched_keys))),
    )
    open_dead_letters = OpenDeadLetters().read(shop.letters.entries())
    open_ = {
        letter.record.origin
        for m in open_dead_letters.dead_letters
        for letter in open_dead_letters.of(m)
    }

    assert {k: v for k, v in actual.fold.items() if k in unaffected} == found
    assert (
        {k: row for k, (_, row) in actual.fold.items()},
        {k: v for k, v in actual.fold.items() if k not in refetched_keys},
        {r.origin for log in actual.logs for r in log if r.value == b"{"},
        {},
    ) == (
        {k: row for k, (_, row) in content(shop).items()},
        {k: v for k, v in content(shop).items() if k not in refetched_keys},
        open_,
        open_dead_letters.requests,
    )


def refetched(given, key):
    """Return the record of a key's final row, as a snapshot delivers it."""
    row = given.fold[key][1]
    # The position is above the history, and each record has its own offset.
    number = 99 + int(key)
    if row is None:
        return change(number, "d", order=int(key), topic=FILL)
    after = {k: v for k, v in row.items() if k != "order_id"}
    return change(number, "r", order=int(key), topic=FILL, **after)


def is_parked(shop, key):
    """Return whether a key is parked."""
    return ParkedKey(TOPIC, b'{"order_id":%d}' % key) in shop.parked


@MODES
@given(
    histories(with_unreadable=False),
    st.data(),
    DEATHS,
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_whole_rows_in_any_order_equal_the_fold(
    mode, written, data, deaths, is_after, rng
):
    """
    Whole rows and deletes need no order at all, not even within one key.
    """
    records = [record for log in written.logs for record in log]
    twice = data.draw(st.lists(st.sampled_from(records), max_size=9)) if records else []
    left = data.draw(st.permutations([*records, *twice]))
    shop = shop_of(mode, rng)
    if deaths:
        Death(*deaths, is_after=is_after).wrap_calls(shop)
    while left:
        size = data.draw(st.integers(1, 6))
        batch, left = left[:size], left[size:]
        repeat(shop, lambda batch=batch: shop.write(*batch))

    assert (written.fold, []) == (content(shop), shop.letters.records)
