"""What a row holds comes back exactly, whatever it holds and whatever its key."""

from towpath.sinks.change import Value
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.testing.changes import apply, at, label, live, order
from towpath.testing.target import SinkTarget


class ValueCases:
    """What a row holds comes back exactly, whatever it holds and whatever its key."""

    def test_a_row_arrives_with_every_value_exact(self, target: SinkTarget) -> None:
        """Integers, numerics, text of any alphabet, JSON text and odd times return."""
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

    def test_a_place_that_no_sink_has_opened_holds_nothing(
        self, target: SinkTarget
    ) -> None:
        """It is read back before the first sink is added, and that is no mistake."""
        before = target.contents(target.orders)
        target.connect()

        assert ({}, {}) == (before, target.contents(target.orders))

    def test_a_time_without_end_is_held_or_refused(self, target: SinkTarget) -> None:
        """A target that has no word for infinity refuses the row, and bends none."""
        row = {"status": "placed", "placed_at": "infinity"}
        checkpoint = apply(target.connect(), order(target, at(1), row))
        outcome = (checkpoint.applied, target.contents(target.orders))

        assert outcome in [(1, {"7": live(7, at(1), **row)}), (0, {})]
        assert checkpoint.applied + len(checkpoint.refused) == 1

    def test_null_is_not_what_was_there_before(self, target: SinkTarget) -> None:
        """A full image leaves nothing of the older one, columns set to null too."""
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
            sorted(str(row.fields["name"]) for row in rows),
        )

    def test_routes_do_not_meet(self, target: SinkTarget) -> None:
        """Equal keys of two tables are two rows."""
        sink = target.connect()
        apply(
            sink, order(target, at(1), {"status": "x"}), label(target, at(2), "7", "y")
        )

        assert ({"7": live(7, at(1), status="x")}, ["y"]) == (
            target.contents(target.orders),
            [row.fields["note"] for row in target.contents(target.labels).values()],
        )

    def test_a_column_that_comes_later_is_taken(self, target: SinkTarget) -> None:
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
