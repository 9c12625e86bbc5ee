"""
The whole contract, to be subclassed: each case runs against the fixture ``target``.

::

    class TestMySink(ContractSuite):
        ...
"""

import random
from collections.abc import Iterable

from towpath.schemas.failure import UnavailableError
from towpath.sinks.change import Change, Value
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.fold import newest_per_key
from towpath.sinks.ports import Batch, StoredRow
from towpath.sinks.targets.memory import MemorySink
from towpath.testing.guard import FloorCases, GuardCases, PartialCases
from towpath.testing.target import (
    READ,
    FailingChanges,
    SinkTarget,
    apply,
    at,
    gone,
    label,
    live,
    order,
)


class ValueCases:
    """Rows are read back exactly, for every value and every key."""

    def test_a_row_arrives_with_every_value_exact(self, target: SinkTarget) -> None:
        """Integers, numerics, text, JSON and unusual times are read back exactly."""
        row: dict[str, Value] = {
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

    def test_a_target_that_no_sink_has_opened_is_empty(
        self, target: SinkTarget
    ) -> None:
        """Reading a target before its first sink is opened is not an error."""
        before = target.contents(target.orders)
        target.connect()

        assert ({}, {}) == (before, target.contents(target.orders))

    def test_an_infinite_time_is_stored_or_refused(self, target: SinkTarget) -> None:
        """A target without infinity refuses the row and does not change the value."""
        row = {"status": "placed", "placed_at": "infinity"}
        checkpoint = apply(target.connect(), order(target, at(1), row))
        outcome = (checkpoint.applied, target.contents(target.orders))

        assert outcome in [(1, {"7": live(7, at(1), **row)}), (0, {})]
        assert checkpoint.applied + len(checkpoint.refused) == 1

    def test_a_full_image_replaces_columns_with_null(self, target: SinkTarget) -> None:
        """A full image keeps nothing of the older row, null columns included."""
        sink = target.connect()
        apply(
            sink,
            order(target, at(1), {"status": "placed", "note": "x", "total": "1.00"}),
        )
        apply(sink, order(target, at(2), {"status": "paid", "note": None}))

        assert {"7": live(7, at(2), status="paid")} == target.contents(target.orders)

    def test_keys_with_odd_characters_are_different_rows(
        self, target: SinkTarget
    ) -> None:
        """Separators, escapes, globs, spaces and "" are keys like any other."""
        names = [
            *("a:b", "a%3Ab", "a%253Ab", "a", "b", "", " ", "%00", ":", "*", "[a]"),
            *("a/b", "a?b", "a#b", "ä", "😀", "A", "-", "_", 'quo"te', "new\nline"),
        ]
        changes = [label(target, at(1, n), name, name) for n, name in enumerate(names)]
        checkpoint = apply(target.connect(), *changes)
        rows = target.contents(target.labels).values()

        assert (len(names), sorted(names)) == (
            checkpoint.applied,
            sorted(str(row.fields["name"]) for row in rows),
        )

    def test_routes_are_separate(self, target: SinkTarget) -> None:
        """Equal keys of two routes are two rows."""
        sink = target.connect()
        apply(
            sink, order(target, at(1), {"status": "x"}), label(target, at(2), "7", "y")
        )

        assert ({"7": live(7, at(1), status="x")}, ["y"]) == (
            target.contents(target.orders),
            [row.fields["note"] for row in target.contents(target.labels).values()],
        )

    def test_a_column_added_later_is_written(self, target: SinkTarget) -> None:
        """A column that is announced after the sink was opened is written, too."""
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


class DeliveryCases:
    """Any delivery order, split or repetition gives the same result as the fold."""

    def test_opening_again_is_safe(self, target: SinkTarget) -> None:
        """A second open finds everything in place and changes nothing."""
        apply(target.connect(), order(target, at(1), {"status": "placed"}))
        target.connect().open()

        assert {"7": live(7, at(1), status="placed")} == target.contents(target.orders)

    def test_an_unflushed_batch_is_delivered_again(self, target: SinkTarget) -> None:
        """A process that ends between apply and flush loses and duplicates nothing."""
        batch = (
            order(target, at(1), {"status": "placed"}),
            order(target, at(1, 1), None, key=8),
        )
        first = target.connect()
        first.apply(Batch(0, newest_per_key(batch).changes))
        first.close()
        apply(target.connect(), *batch)

        expected = {"7": live(7, at(1), status="placed"), "8": gone(8, at(1, 1))}

        assert expected == target.contents(target.orders)

    def test_a_call_that_fails_midway_is_not_counted(self, target: SinkTarget) -> None:
        """The batch is delivered again; until then, an atomic target has none of it."""
        sink = target.connect()
        apply(sink, order(target, at(1), {"status": "placed"}))
        before = target.contents(target.orders)
        changes = (
            order(target, at(2), {"status": "paid"}),
            order(target, at(2, 1), {"status": "placed"}, key=8),
        )
        failed = False
        try:
            sink.apply(Batch(-1, FailingChanges(changes)))
        except UnavailableError:
            failed = True
        between = target.contents(target.orders)
        checkpoint = apply(sink, *changes)
        expected = {
            "7": live(7, at(2), status="paid"),
            "8": live(8, at(2, 1), status="placed"),
        }

        assert failed
        assert between == before or not target.is_atomic
        assert (2, 0, expected) == (
            checkpoint.applied,
            checkpoint.stale,
            target.contents(target.orders),
        )

    def test_each_flush_counts_only_changes_since_the_last(
        self, target: SinkTarget
    ) -> None:
        """Counts start at zero after each flush; an empty batch counts nothing."""
        sink = target.connect()
        first = apply(sink, order(target, at(1), {"status": "placed"}))
        second = apply(sink)

        assert (1, 0, 0) == (first.applied, second.applied, second.stale)

    def test_any_delivery_matches_the_reference(self, target: SinkTarget) -> None:
        """Shuffled, repeated and split histories give the result of the ordered one."""
        rng = random.Random(20_260_101)  # noqa: S311 - a repeatable test
        history = _history(target, rng, changes=120, keys=25)
        expected = _expected(target, history)
        for _ in range(3):
            sink = target.connect()
            delivery = history + rng.choices(history, k=40)
            rng.shuffle(delivery)
            while delivery:
                size = rng.randint(1, 50)
                apply(sink, *delivery[:size])
                delivery = delivery[size:]

        assert expected == target.contents(target.orders)


def _expected(target: SinkTarget, history: Iterable[Change]) -> dict[str, StoredRow]:
    """Return the rows of the reference after a history, in the form of a target."""
    reference = MemorySink()
    for change in history:
        apply(reference, change)
    return {
        key: gone(int(key), stored.position)
        if stored.row is None
        else live(int(key), stored.position, **dict(stored.row))
        for key, stored in reference.rows[target.orders].items()
    }


def _history(
    target: SinkTarget, rng: random.Random, *, changes: int, keys: int
) -> list[Change]:
    """Return full images and deletes of a few keys, with READ rows among them."""
    changes_made = []
    for number in range(1, changes + 1):
        kind = rng.random()
        position = at(
            number // 2, READ if kind < 0.2 and not number % 2 else number % 2
        )
        row = {"status": rng.choice(("placed", "paid")), "note": f"{number}"}
        body = None if kind > 0.8 else row
        changes_made.append(order(target, position, body, key=rng.randint(1, keys)))
    return sorted(changes_made, key=lambda change: change.position)


class ContractSuite(ValueCases, GuardCases, PartialCases, FloorCases, DeliveryCases):
    """One contract for all sinks: the result equals the fold of the changes."""
