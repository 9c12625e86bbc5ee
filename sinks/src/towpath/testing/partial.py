"""A row that lacks columns is merged with what is stored, and never guessed."""

from towpath.sinks.change import Value
from towpath.sinks.fold import ABSENT_ROW
from towpath.testing.changes import apply, at, gone, live, order
from towpath.testing.target import SinkTarget


class PartialCases:
    """A row that lacks columns is merged with what is stored, and never guessed."""

    def test_a_partial_change_keeps_what_it_left_out(self, target: SinkTarget) -> None:
        """Columns listed as unchanged stay; null and new values are taken."""
        sink = target.connect()
        row: dict[str, Value] = {
            "status": "placed",
            "note": "long text",
            "total": "1.00",
            "paid": False,
        }
        apply(sink, order(target, at(1), row))
        partial: dict[str, Value] = {"status": "paid", "total": None, "paid": True}
        checkpoint = apply(sink, order(target, at(2), partial, unchanged=["note"]))

        expected = {"7": live(7, at(2), status="paid", note="long text", paid=True)}

        assert (1, expected) == (checkpoint.applied, target.contents(target.orders))

    def test_an_older_partial_change_never_wins(self, target: SinkTarget) -> None:
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

    def test_a_partial_change_without_its_row_is_refused(
        self, target: SinkTarget
    ) -> None:
        """Neither an absent nor a deleted row is made up of a part: it is asked for."""
        sink = target.connect()
        apply(sink, order(target, at(1), None, key=8))
        absent = order(target, at(2), {"status": "paid"}, key=7, unchanged=["note"])
        deleted = order(target, at(2), {"status": "paid"}, key=8, unchanged=["note"])
        fine = order(target, at(2), {"status": "placed"}, key=9)
        checkpoint = apply(sink, absent, deleted, fine)

        assert (
            {(7, ABSENT_ROW, True), (8, ABSENT_ROW, True)},
            {"8": gone(8, at(1)), "9": live(9, at(2), status="placed")},
        ) == (
            {(r.change.key[0], r.reason, r.asks) for r in checkpoint.refused},
            target.contents(target.orders),
        )

    def test_several_changes_of_one_key_in_a_batch_come_to_one(
        self, target: SinkTarget
    ) -> None:
        """Created, updated in part and updated again within a batch is one row."""
        checkpoint = apply(
            target.connect(),
            order(target, at(1), {"status": "placed", "note": "n", "total": "1.00"}),
            order(target, at(3), {"status": "paid"}, unchanged=["note", "total"]),
            order(
                target, at(2), {"status": "placed", "total": "2.00"}, unchanged=["note"]
            ),
        )

        expected = {"7": live(7, at(3), status="paid", note="n", total="2.00")}

        assert (1, expected) == (checkpoint.applied, target.contents(target.orders))
