"""The fold has the same result for any order, split or repetition of its input."""

import random

from hypothesis import given
from hypothesis import strategies as st

from towpath.sinks.change import ALL_PRESENT, Change, Floor, Origin
from towpath.sinks.fold import newest_per_key
from towpath.sinks.ports import Batch
from towpath.sinks.targets.memory import MemorySink

COLUMNS = ("id", "name", "note", "size")


@st.composite
def histories(draw, *, truncates=False):
    """Draw changes to a few keys, in the order of their positions, which are unique."""
    count = draw(st.integers(1, 14))
    live: set[int] = set()
    changes = []
    for number in range(count):
        key = draw(st.integers(1, 3))
        kinds = ["full", "delete"] + (["partial"] if key in live else [])
        kind = draw(st.sampled_from([*kinds, *(["truncate"] if truncates else [])]))
        position = f"{number // 3:016x}.{number % 3:010d}"
        if kind == "truncate":
            origin = Origin("orders", 0, 0)
            changes.append(Floor("orders", position, needs_all=False, origin=origin))
            live.clear()
            continue
        changes.append(_change(draw, key, position, kind))
        (live.discard if kind == "delete" else live.add)(key)
    return changes


def _change(draw, key, position, kind):
    row: dict | None = None
    unchanged = ALL_PRESENT
    if kind != "delete":
        value = st.one_of(st.none(), st.integers(0, 9))
        row = {"id": key} | {name: draw(value) for name in COLUMNS[1:]}
    if kind == "partial":
        unchanged = frozenset(draw(st.sets(st.sampled_from(COLUMNS[1:]), min_size=1)))
        row = {name: v for name, v in (row or {}).items() if name not in unchanged}
    origin = Origin("orders", 0, int(position[17:]))
    return Change("orders", (key,), ("id",), position, row, unchanged, False, origin)


def _expected(changes):
    """Apply every change in position order, without folding any."""
    state: dict = {}
    for change in changes:
        if isinstance(change, Floor):
            state.clear()
        elif change.row is None:
            state[change.key] = (change.position, None)
        elif change.unchanged:
            state[change.key] = (change.position, state[change.key][1] | change.row)
        else:
            state[change.key] = (change.position, dict(change.row))
    return state


def _content(sink):
    return {
        (int(key),): (stored.position, stored.row and dict(stored.row))
        for key, stored in sink.rows.get("orders", {}).items()
    }


@given(histories(), st.randoms(use_true_random=False))
def test_a_shuffled_batch_with_duplicates_folds_to_the_same_result(
    changes, rng: random.Random
):
    """A shuffled batch with duplicates folds to the same result as the sorted one."""
    shuffled = [*changes, *rng.sample(changes, k=rng.randint(0, len(changes)))]
    rng.shuffle(shuffled)

    expected = {(c.key, c.position): c.row for c in newest_per_key(changes).changes}
    actual = {(c.key, c.position): c.row for c in newest_per_key(shuffled).changes}

    assert expected == actual


@given(histories())
def test_a_fold_of_one_batch_equals_its_changes_one_by_one(changes):
    """
    Applying a folded history has the same result as applying its changes one by one.
    """
    sink = MemorySink()
    folded = newest_per_key(changes)
    sink.apply(Batch(0, folded.changes))

    assert (_expected(changes), ()) == (_content(sink), folded.refused)


@given(histories(), st.lists(st.integers(1, 5), max_size=8), st.booleans())
def test_a_fold_of_any_split_equals_the_whole_history(changes, sizes, replayed):
    """
    Batches of any size end in the same state, even if one batch repeats the history.
    """
    sink = MemorySink()
    rest = list(changes)
    for size in [*sizes, len(changes)]:
        sink.apply(Batch(0, newest_per_key(rest[:size]).changes))
        rest = rest[size:]
    if replayed:
        sink.apply(Batch(0, newest_per_key(changes).changes))

    assert _expected(changes) == _content(sink)


@st.composite
def deliveries(draw):
    """
    Draw a history with truncates, and the batches in which two partitions deliver it.
    """
    records = draw(histories(truncates=True))
    partitions = [
        [c for c in records if isinstance(c, Floor) or c.key[0] % 2 == partition]
        for partition in (0, 1)
    ]
    batches: list[list[Change | Floor]] = []
    while any(partitions):
        partition = draw(st.sampled_from([p for p in partitions if p]))
        size = draw(st.integers(1, len(partition)))
        begins_batch = draw(st.booleans()) or not batches
        if begins_batch:
            batches.append([])
        batches[-1] += partition[:size]
        del partition[:size]
    return records, batches


@given(deliveries(), st.booleans())
def test_a_truncate_keeps_later_rows(delivery, replayed):
    """
    Earlier rows are removed for good, whichever partition delivers the truncate first.
    """
    found, batches = delivery
    sink = MemorySink()
    for batch in [*batches, *(batches if replayed else [])]:
        floors = tuple(one for one in batch if isinstance(one, Floor))
        changes = [one for one in batch if isinstance(one, Change)]
        folded = newest_per_key(changes, floors)
        sink.apply(Batch(0, folded.changes, (), floors))

    assert _expected(found) == _content(sink)


@given(histories())
def test_a_folded_batch_has_one_change_per_key(changes):
    """
    A MERGE would refuse a key that occurs twice.
    """
    keys = [change.key for change in newest_per_key(changes).changes]

    assert sorted({change.key for change in changes}) == sorted(keys)
