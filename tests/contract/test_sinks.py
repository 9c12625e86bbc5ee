"""
One contract for all sinks: each ends equal to the fold of its changes.

Whatever is duplicated, reordered, replayed or split: the newest position wins, a delete
is remembered, and a row that lacks columns is merged and never guessed.
"""

import random

from towpath.sinks.change import ALL_PRESENT, Change, Floor, Origin
from towpath.sinks.fold import ABSENT_ROW, newest_per_key
from towpath.sinks.memory import MemorySink
from towpath.sinks.ports import Batch, StoredRow
from towpath.sinks.relations import Column, RelationShape
from towpath.sinks.values import text_of

READ = -1


def at(log_lsn, ordinal=0):
    """Write a position; the log's steps are of eight bytes."""
    place = "-" if ordinal == READ else f"{ordinal:010d}"
    return f"{log_lsn * 8:016x}.{place}"


def order(target, position, row, *, key=7, unchanged=()):
    """Make a change of an order; ``None`` deletes it."""
    full = None if row is None else {"order_id": key, **row}
    return Change(
        target.orders,
        (key,),
        ("order_id",),
        position,
        full,
        frozenset(unchanged) or ALL_PRESENT,
        position.endswith("-"),
        Origin(target.orders_topic, 0, 0),
    )


def label(target, position, name, note):
    """Make a change of a label, whose key is text."""
    row = {"name": name, "note": note}
    origin = Origin("labels", 0, 0)
    return Change(
        target.labels, (name,), ("name",), position, row, ALL_PRESENT, False, origin
    )


def apply(sink, *changes):
    """Fold changes into one batch, apply it, and return what became of it."""
    folded = newest_per_key(changes)
    sink.apply(Batch(0, folded.changes))
    return sink.flush()


def live(key, position, **fields):
    """Describe a row as a target should hold it."""
    told = {"order_id": key, **fields}
    texts = {name: text_of(v) for name, v in told.items() if v is not None}
    return StoredRow(str(key), texts, position, is_deleted=False)


def gone(key, position):
    """Describe a tombstone."""
    return StoredRow(str(key), {}, position, is_deleted=True)


def test_a_row_arrives_with_every_value_exact(target):
    """Integers, numerics, text of any alphabet, JSON text and odd times come back."""
    row = {
        "status": "placed",
        "total": "9999999999.99",
        "weight": "12345678901234567890.50",
        "paid": False,
        "note": 'quo"te, new\nline, ünïcode, 😀, \\',
        "attributes": '{"a": 1.0, "b": [null]}',
        "placed_at": "0987-12-31T23:59:59.999999Z",
    }
    key = 2**63 - 1
    checkpoint = apply(target.connect(), order(target, at(1), row, key=key))

    assert (1, 0, (), {str(key): live(key, at(1), **row)}) == (
        checkpoint.applied,
        checkpoint.stale,
        checkpoint.refused,
        target.contents(target.orders),
    )


def test_a_time_without_end_is_held_or_refused(target):
    """A target that has no word for infinity refuses the row, and never bends it."""
    row = {"status": "placed", "placed_at": "infinity"}
    checkpoint = apply(target.connect(), order(target, at(1), row))
    outcome = (checkpoint.applied, target.contents(target.orders))

    assert outcome in [(1, {"7": live(7, at(1), **row)}), (0, {})]
    assert checkpoint.applied + len(checkpoint.refused) == 1


def test_a_replayed_batch_changes_nothing(target):
    """Applying the same batch twice leaves the target as after the first time."""
    sink = target.connect()
    batch = [
        order(target, at(1), {"status": "placed"}),
        order(target, at(1, 1), None, key=8),
    ]
    apply(sink, *batch)
    before = target.contents(target.orders)
    apply(sink, *batch)

    assert before == target.contents(target.orders)


def test_an_equal_position_is_applied_again(target):
    """Ties are written, not refused: a batch that half failed is simply repeated."""
    sink = target.connect()
    change = order(target, at(1), {"status": "placed"})
    apply(sink, change)
    checkpoint = apply(sink, change)

    assert (1, 0) == (checkpoint.applied, checkpoint.stale)


def test_an_older_change_never_wins(target):
    """What is older than the stored row is counted as stale and leaves no trace."""
    sink = target.connect()
    apply(sink, order(target, at(2), {"status": "paid"}))
    checkpoint = apply(sink, order(target, at(1), {"status": "placed", "note": "old"}))

    assert (0, 1, {"7": live(7, at(2), status="paid")}) == (
        checkpoint.applied,
        checkpoint.stale,
        target.contents(target.orders),
    )


def test_an_older_delete_never_wins(target):
    """A delete that comes late does not take a newer row away."""
    sink = target.connect()
    apply(sink, order(target, at(2), {"status": "paid"}))
    apply(sink, order(target, at(1), None))

    assert {"7": live(7, at(2), status="paid")} == target.contents(target.orders)


def test_a_deleted_row_stays_deleted_when_it_is_replayed(target):
    """An older insert after the delete does not bring the row back."""
    sink = target.connect()
    apply(sink, order(target, at(1), {"status": "placed"}))
    apply(sink, order(target, at(2), None))
    apply(sink, order(target, at(1), {"status": "placed"}))

    assert {"7": gone(7, at(2))} == target.contents(target.orders)


def test_a_delete_is_remembered_over_a_restart(target):
    """Another client, opened anew, refuses the older insert too."""
    first = target.connect()
    apply(first, order(target, at(1), {"status": "placed"}))
    apply(first, order(target, at(2), None))
    first.close()
    apply(target.connect(), order(target, at(1), {"status": "placed"}))

    assert {"7": gone(7, at(2))} == target.contents(target.orders)


def test_a_delete_of_a_row_never_seen_is_remembered(target):
    """A delete that arrives first still refuses the older insert."""
    sink = target.connect()
    apply(sink, order(target, at(2), None))
    apply(sink, order(target, at(1), {"status": "placed"}))

    assert {"7": gone(7, at(2))} == target.contents(target.orders)


def test_a_key_that_is_used_again_lives(target):
    """A newer insert after a delete is an ordinary row."""
    sink = target.connect()
    apply(sink, order(target, at(1), {"status": "placed", "note": "first"}))
    apply(sink, order(target, at(2), None))
    apply(sink, order(target, at(3), {"status": "placed"}))

    assert {"7": live(7, at(3), status="placed")} == target.contents(target.orders)


def test_a_snapshot_row_below_the_stream_loses(target):
    """A READ row stands below every change of the same log position."""
    sink = target.connect()
    apply(sink, order(target, at(5, 0), {"status": "paid"}))
    apply(sink, order(target, at(5, READ), {"status": "placed"}))

    assert {"7": live(7, at(5), status="paid")} == target.contents(target.orders)


def test_a_snapshot_row_above_the_stream_wins(target):
    """A READ row replaces what was committed before its watermark."""
    sink = target.connect()
    apply(sink, order(target, at(4, 9), {"status": "placed", "note": "lost"}))
    apply(sink, order(target, at(5, READ), {"status": "paid"}))

    expected = {"7": live(7, at(5, READ), status="paid")}

    assert expected == target.contents(target.orders)


def test_null_is_not_what_was_there_before(target):
    """A full image leaves nothing of the older one, columns set to null included."""
    sink = target.connect()
    apply(
        sink, order(target, at(1), {"status": "placed", "note": "x", "total": "1.00"})
    )
    apply(sink, order(target, at(2), {"status": "paid", "note": None}))

    assert {"7": live(7, at(2), status="paid")} == target.contents(target.orders)


def test_a_partial_change_keeps_what_it_left_out(target):
    """Columns listed as unchanged stay; null and new values are taken."""
    sink = target.connect()
    row = {"status": "placed", "note": "long text", "total": "1.00", "paid": False}
    apply(sink, order(target, at(1), row))
    partial = {"status": "paid", "total": None, "paid": True}
    checkpoint = apply(sink, order(target, at(2), partial, unchanged=["note"]))

    expected = {"7": live(7, at(2), status="paid", note="long text", paid=True)}

    assert (1, expected) == (checkpoint.applied, target.contents(target.orders))


def test_an_older_partial_change_never_wins(target):
    """A partial change below the stored row is stale."""
    sink = target.connect()
    apply(sink, order(target, at(2), {"status": "paid", "note": "new"}))
    partial = order(target, at(1), {"status": "placed"}, unchanged=["note"])
    checkpoint = apply(sink, partial)

    expected = {"7": live(7, at(2), status="paid", note="new")}

    assert (1, (), expected) == (
        checkpoint.stale,
        checkpoint.refused,
        target.contents(target.orders),
    )


def test_a_partial_change_without_its_row_is_refused(target):
    """Neither an absent nor a deleted row is made up of a part."""
    sink = target.connect()
    apply(sink, order(target, at(1), None, key=8))
    absent = order(target, at(2), {"status": "paid"}, key=7, unchanged=["note"])
    deleted = order(target, at(2), {"status": "paid"}, key=8, unchanged=["note"])
    fine = order(target, at(2), {"status": "placed"}, key=9)
    checkpoint = apply(sink, absent, deleted, fine)

    assert (
        {(7, ABSENT_ROW), (8, ABSENT_ROW)},
        {"8": gone(8, at(1)), "9": live(9, at(2), status="placed")},
    ) == (
        {(refusal.change.key[0], refusal.reason) for refusal in checkpoint.refused},
        target.contents(target.orders),
    )


def test_positions_compare_exactly_at_any_height(target):
    """Positions that differ in one bit far above 2^53 are told apart."""
    sink = target.connect()
    high = 2**47 + 1
    apply(sink, order(target, at(high, 1), {"status": "paid"}))
    apply(sink, order(target, at(high, 0), {"status": "placed"}))
    apply(sink, order(target, at(high - 1, 9), {"status": "placed"}))
    apply(sink, order(target, at(high, 1), {"status": "paid"}, key=8))
    apply(sink, order(target, at(high + 1, 0), {"status": "cancelled"}, key=8))

    assert {
        "7": live(7, at(high, 1), status="paid"),
        "8": live(8, at(high + 1, 0), status="cancelled"),
    } == target.contents(target.orders)


def test_changes_of_one_huge_transaction_keep_their_order(target):
    """Ordinals beyond what a packed version can hold still decide."""
    sink = target.connect()
    apply(sink, order(target, at(3, 70_000), {"status": "paid"}))
    apply(sink, order(target, at(3, 5_000), {"status": "placed"}))
    apply(sink, order(target, at(3, 4_094), {"status": "placed"}, key=8))
    apply(sink, order(target, at(3, 4_095), {"status": "paid"}, key=8))

    assert {
        "7": live(7, at(3, 70_000), status="paid"),
        "8": live(8, at(3, 4_095), status="paid"),
    } == target.contents(target.orders)


def test_several_changes_of_one_key_in_a_batch_come_to_one(target):
    """Created, updated in part and updated again within a batch is one row."""
    checkpoint = apply(
        target.connect(),
        order(target, at(1), {"status": "placed", "note": "n", "total": "1.00"}),
        order(target, at(3), {"status": "paid"}, unchanged=["note", "total"]),
        order(target, at(2), {"status": "placed", "total": "2.00"}, unchanged=["note"]),
    )

    expected = {"7": live(7, at(3), status="paid", note="n", total="2.00")}

    assert (1, expected) == (checkpoint.applied, target.contents(target.orders))


def test_keys_with_odd_characters_are_different_rows(target):
    """Joints, escapes, globs, blanks and the empty text are keys like others."""
    names = [
        *("a:b", "a%3Ab", "a%253Ab", "a", "b", "", " ", "%00", ":", "*", "[a]"),
        *("a/b", "a?b", "a#b", "ä", "😀", "A", "-", "_", 'quo"te', "new\nline"),
    ]
    changes = [label(target, at(1, n), name, name) for n, name in enumerate(names)]
    checkpoint = apply(target.connect(), *changes)
    rows = target.contents(target.labels).values()

    assert (len(names), sorted(names)) == (
        checkpoint.applied,
        sorted(row.fields["name"] for row in rows),
    )


def test_routes_do_not_meet(target):
    """Equal keys of two tables are two rows."""
    sink = target.connect()
    apply(sink, order(target, at(1), {"status": "x"}), label(target, at(2), "7", "y"))

    assert ({"7": live(7, at(1), status="x")}, ["y"]) == (
        target.contents(target.orders),
        [row.fields["note"] for row in target.contents(target.labels).values()],
    )


def test_a_column_that_comes_later_is_taken(target):
    """A row with a column announced since the sink was opened is written whole."""
    sink = target.connect()
    apply(sink, order(target, at(1), {"status": "placed"}))
    old = target.relations.shape(target.orders_topic)
    wider = RelationShape(
        old.schema,
        old.table,
        (*old.columns, Column("channel", "text")),
        old.key,
        at(2),
    )
    target.relations.announce(target.orders_topic, wider)
    apply(sink, order(target, at(3), {"status": "paid", "channel": "web"}))

    expected = {"7": live(7, at(3), status="paid", channel="web")}

    assert expected == target.contents(target.orders)


def test_opening_again_is_safe(target):
    """A second open finds everything there and changes nothing."""
    apply(target.connect(), order(target, at(1), {"status": "placed"}))
    target.connect().open()

    assert {"7": live(7, at(1), status="placed")} == target.contents(target.orders)


def floor(target, position):
    """Make a floor of the orders."""
    origin = Origin(target.orders_topic, 0, 0)
    return Floor(target.orders, position, needs_all=False, origin=origin)


def sweep(sink, floor, *changes):
    """Apply changes in one batch with a floor, and return what became of it."""
    folded = newest_per_key(changes)
    sink.apply(Batch(0, folded.changes, (), (floor,)))
    return sink.flush()


def live_keys(target, route):
    """Return the keys of a route's live rows."""
    return {k for k, row in target.contents(route).items() if not row.is_deleted}


def test_what_is_below_a_floor_goes_and_the_rest_stays(target):
    """Rows and tombstones below go; a row at the floor, above, or elsewhere stays."""
    sink = target.connect()
    apply(
        sink,
        order(target, at(4, 9), {"status": "placed"}, key=1),
        order(target, at(4), None, key=2),
        order(target, at(5, READ), {"status": "placed"}, key=3),
        order(target, at(6), {"status": "paid"}, key=4),
        label(target, at(1), "a", "x"),
    )
    sweep(sink, floor(target, at(5, READ)))

    assert ({"3", "4"}, {"a"}) == (
        live_keys(target, target.orders),
        live_keys(target, target.labels),
    )
    assert {"3", "4"} == target.contents(target.orders).keys()


def test_what_comes_late_from_below_a_floor_is_refused(target):
    """Rows never seen and rows taken away count as stale; above it all goes on."""
    sink = target.connect()
    apply(sink, order(target, at(1), {"status": "placed"}, key=1))
    sweep(sink, floor(target, at(5, 3)))
    checkpoint = apply(
        sink,
        order(target, at(1), {"status": "placed"}, key=1),
        order(target, at(5, 2), {"status": "placed"}, key=2),
        order(target, at(5, 4), {"status": "paid"}, key=3),
        label(target, at(1), "a", "x"),
    )

    assert (2, 2, (), {"3"}, {"a"}) == (
        checkpoint.applied,
        checkpoint.stale,
        checkpoint.refused,
        live_keys(target, target.orders),
        live_keys(target, target.labels),
    )


def test_a_floor_is_remembered_over_a_restart(target):
    """Another client, opened anew, refuses what is below it, too."""
    first = target.connect()
    sweep(first, floor(target, at(5)), order(target, at(6), {"status": "paid"}))
    first.close()
    second = target.connect()
    checkpoint = apply(second, order(target, at(4), {"status": "placed"}, key=8))

    assert (1, {"7"}) == (checkpoint.stale, live_keys(target, target.orders))


def test_a_lower_floor_changes_nothing(target):
    """Floors that come again or late take nothing away, and open nothing."""
    sink = target.connect()
    sweep(sink, floor(target, at(5)), order(target, at(6), {"status": "paid"}))
    sweep(sink, floor(target, at(5)))
    sweep(sink, floor(target, at(3)))
    checkpoint = apply(sink, order(target, at(4), {"status": "placed"}, key=8))

    assert (1, {"7"}) == (checkpoint.stale, live_keys(target, target.orders))


def test_any_delivery_ends_equal_to_the_reference(target):
    """Histories shuffled, repeated and split at random end as they were told."""
    rng = random.Random(20_260_101)  # noqa: S311 - a repeatable test
    history = _history(target, rng, changes=120, keys=25)
    reference = MemorySink()
    for change in history:
        apply(reference, change)
    sink = target.connect()
    for _ in range(3):
        delivery = history + rng.choices(history, k=40)
        rng.shuffle(delivery)
        while delivery:
            size = rng.randint(1, 50)
            apply(sink, *delivery[:size])
            delivery = delivery[size:]

    expected = {
        key: gone(key, stored.position)
        if stored.row is None
        else live(stored.row["order_id"], stored.position, **dict(stored.row))
        for key, stored in reference.rows[target.orders].items()
    }

    assert expected == target.contents(target.orders)


def _history(target, rng, *, changes, keys):
    """Tell full images and deletes of a few keys, READ rows among them."""
    told = []
    for number in range(1, changes + 1):
        kind = rng.random()
        position = at(
            number // 2, READ if kind < 0.2 and not number % 2 else number % 2
        )
        row = {"status": rng.choice(("placed", "paid")), "note": f"{number}"}
        body = None if kind > 0.8 else row
        told.append(order(target, position, body, key=rng.randint(1, keys)))
    return sorted(told, key=lambda change: change.position)
