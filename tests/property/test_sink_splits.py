"""One batch or many have the same outcome, even with unreadable records."""

from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.copying import replace
from support.parked_shop import FILL, TOPIC, Shop, change
from towpath.schemas.envelope import Operation
from towpath.sinks.change import Origin, Record
from towpath.sinks.changes import decode
from towpath.sinks.dead_letters.entries import Verb
from towpath.sinks.dead_letters.parked import OpenDeadLetters

pytestmark = pytest.mark.timeout(300)

KEYS = (7, 8)
# An operation of a later release.
UNKNOWN = "z"


class SourceHistory(NamedTuple):
    """
    A source's history.

    Attributes:
        records: The records, in the order of their positions.
        fold: The final row of each key that has one.
    """

    records: list[Record]
    fold: dict[str, dict]


@st.composite
def histories(draw):
    """Draw changes of any kind, truncates, and records that are not readable yet."""
    records: list[Record] = []
    fold: dict[str, dict] = {}
    for number in range(1, draw(st.integers(2, 11))):
        key = draw(st.sampled_from(KEYS))
        row = fold.get(str(key))
        kinds = ["c"] if row is None else ["u", "partial", "partial", "d", "r"]
        kind = draw(st.sampled_from([*kinds, "t"] if number % 5 == 0 else kinds))
        if kind == "t":
            fold.clear()
            headers = {"position": f"{number * 8:016x}.0000000000".encode()}
            truncate_origin = Origin(TOPIC, 0, number)
            records.append(Record(truncate_origin, None, b'{"op": "t"}', headers))
            continue
        note = row["note"] if row and kind in {"partial", "r"} else f"note {number}"
        after = {"status": f"{number}", "note": note}
        if kind == "d":
            fold.pop(str(key))
        else:
            fold[str(key)] = {"order_id": key, **after}
        records.append(_record(number, kind, key, after))
        if kind not in {"d", "r"} and draw(st.booleans()):
            records[-1] = _with_unknown_operation(records[-1])
    return SourceHistory(records, fold)


def _record(number, kind, key, after):
    """Make a record; reads are in the sink's own topic."""
    if kind == "r":
        return change(number, kind, order=key, topic=FILL, **after)
    if kind == "partial":
        status = after["status"]
        return change(number, "u", order=key, unchanged=["note"], status=status)
    return change(number, kind, order=key, **after)


def _with_unknown_operation(record):
    """Make a record's operation unknown."""
    value = record.value.replace(b'"op":"c"', b'"op":"z"')
    return replace(record, value=value.replace(b'"op":"u"', b'"op":"z"'))


@contextmanager
def _later_release():
    """Support the unknown operation during the block."""
    known = decode._OPERATIONS
    known[UNKNOWN] = Operation.UPDATE
    try:
        yield
    finally:
        del known[UNKNOWN]


def _cut(draw, records):
    """Split the records into batches at random."""
    cuts = draw(st.sets(st.integers(1, max(1, len(records) - 1))))
    bounds = [0, *sorted(cuts), len(records)]
    return [records[a:b] for a, b in pairwise(bounds)]


def _outcome(shop):
    """
    Return the rows, the open dead letters, and the positions where keys are parked.
    """
    rows = shop.sink.rows.get("orders", {})
    open_dead_letters = OpenDeadLetters().read(shop.letters.entries())
    return (
        {k: (s.position, s.row and dict(s.row)) for k, s in rows.items()},
        sorted(
            letter.record.origin
            for m in open_dead_letters.dead_letters
            for letter in open_dead_letters.of(m)
        ),
        {key: shop.parked.waiting(key) for key in sorted(shop.parked.keys())},
    )


def _written(batches):
    """Write batches; return the shop."""
    shop = Shop(accepts_repairs=True)
    for batch in batches:
        shop.write(*batch)
    return shop


@given(histories(), st.data())
def test_one_batch_or_many_have_the_same_outcome(written, data):
    """
    Rows, dead letters and parked keys are the same, even after a restart.
    """
    alone = _written([[record] for record in written.records])
    once = _written([written.records])
    cut = _written(_cut(data.draw, written.records))
    known = _outcome(cut)
    cut.begin()

    assert [_outcome(alone)] * 3 == [_outcome(once), known, _outcome(cut)]


@given(histories(), st.data())
def test_records_that_become_readable_have_the_result_of_readable_ones(written, data):
    """
    Once a release can read the dead letters, a replay makes the sink equal the source.

    Reads may arrive anywhere among the streamed changes.
    """
    logs = [[r for r in written.records if r.origin.topic == t] for t in (TOPIC, FILL)]
    order = data.draw(st.permutations([0] * len(logs[0]) + [1] * len(logs[1])))
    shop = _written(_cut(data.draw, [logs[log].pop(0) for log in order]))
    with _later_release():
        for subject in OpenDeadLetters().read(shop.letters.entries()).dead_letters:
            shop.ask(Verb.REPLAY, subject)
    rows = shop.sink.rows.get("orders", {})
    refetched_keys = {str(key) for _, (key,) in shop.repairs.keys}

    assert {k: v for k, v in written.fold.items() if k not in refetched_keys} == {
        k: s.row
        for k, s in rows.items()
        if s.row is not None and k not in refetched_keys
    }
