"""
Cases of the guard: the newest position wins, for rows, parts of rows and floors.

Stored positions, deletes and floors all refuse changes below them.
"""

from towpath.sinks.change import Value
from towpath.sinks.fold import ABSENT_ROW
from towpath.testing.target import (
    READ,
    SinkTarget,
    apply,
    at,
    floor,
    gone,
    label,
    live,
    order,
    sweep,
)


class GuardCases:
    """The newest position wins, and a delete is remembered."""

    def test_a_replayed_batch_changes_nothing(self, target: SinkTarget) -> None:
        """Applying the same batch a second time leaves the target unchanged."""
        sink = target.connect()
        batch = [
            order(target, at(1), {"status": "placed"}),
            order(target, at(1, 1), None, key=8),
        ]
        apply(sink, *batch)
        before = target.contents(target.orders)
        apply(sink, *batch)

        assert before == target.contents(target.orders)

    def test_an_equal_position_is_applied_again(self, target: SinkTarget) -> None:
        """Ties are written, because a batch that failed halfway is repeated."""
        sink = target.connect()
        change = order(target, at(1), {"status": "placed"})
        apply(sink, change)
        checkpoint = apply(sink, change)

        assert (1, 0) == (checkpoint.applied, checkpoint.stale)

    def test_an_older_change_never_wins(self, target: SinkTarget) -> None:
        """A change older than the stored row counts as stale and leaves no trace."""
        sink = target.connect()
        apply(sink, order(target, at(2), {"status": "paid"}))
        checkpoint = apply(
            sink, order(target, at(1), {"status": "placed", "note": "old"})
        )

        assert (0, 1, {"7": live(7, at(2), status="paid")}) == (
            checkpoint.applied,
            checkpoint.stale,
            target.contents(target.orders),
        )

    def test_an_older_delete_never_wins(self, target: SinkTarget) -> None:
        """A delete that arrives late does not remove a newer row."""
        sink = target.connect()
        apply(sink, order(target, at(2), {"status": "paid"}))
        apply(sink, order(target, at(1), None))

        assert {"7": live(7, at(2), status="paid")} == target.contents(target.orders)

    def test_a_deleted_row_stays_deleted_when_it_is_replayed(
        self, target: SinkTarget
    ) -> None:
        """An older insert after the delete does not bring the row back."""
        sink = target.connect()
        apply(sink, order(target, at(1), {"status": "placed"}))
        apply(sink, order(target, at(2), None))
        apply(sink, order(target, at(1), {"status": "placed"}))

        assert {"7": gone(7, at(2))} == target.contents(target.orders)

    def test_a_delete_is_remembered_across_a_restart(self, target: SinkTarget) -> None:
        """Another client, opened later, refuses the older insert too."""
        first = target.connect()
        apply(first, order(target, at(1), {"status": "placed"}))
        apply(first, order(target, at(2), None))
        first.close()
        apply(target.connect(), order(target, at(1), {"status": "placed"}))

        assert {"7": gone(7, at(2))} == target.contents(target.orders)

    def test_a_delete_of_a_row_never_seen_is_remembered(
        self, target: SinkTarget
    ) -> None:
        """A delete that arrives first still refuses the older insert."""
        sink = target.connect()
        apply(sink, order(target, at(2), None))
        apply(sink, order(target, at(1), {"status": "placed"}))

        assert {"7": gone(7, at(2))} == target.contents(target.orders)

    def test_a_reused_key_is_a_live_row(self, target: SinkTarget) -> None:
        """A newer insert after a delete is an ordinary row."""
        sink = target.connect()
        apply(sink, order(target, at(1), {"status": "placed", "note": "first"}))
        apply(sink, order(target, at(2), None))
        apply(sink, order(target, at(3), {"status": "placed"}))

        assert {"7": live(7, at(3), status="placed")} == target.contents(target.orders)

    def test_a_snapshot_row_below_the_stream_loses(self, target: SinkTarget) -> None:
        """A READ row sorts below every change at the same log position."""
        sink = target.connect()
        apply(sink, order(target, at(5, 0), {"status": "paid"}))
        apply(sink, order(target, at(5, READ), {"status": "placed"}))

        assert {"7": live(7, at(5), status="paid")} == target.contents(target.orders)

    def test_a_snapshot_row_above_the_stream_wins(self, target: SinkTarget) -> None:
        """A READ row replaces a row that was committed before its watermark."""
        sink = target.connect()
        apply(sink, order(target, at(4, 9), {"status": "placed", "note": "lost"}))
        apply(sink, order(target, at(5, READ), {"status": "paid"}))

        expected = {"7": live(7, at(5, READ), status="paid")}

        assert expected == target.contents(target.orders)

    def test_large_positions_compare_exactly(self, target: SinkTarget) -> None:
        """Positions that exceed 2^53 when packed into one number stay distinct."""
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

    def test_changes_of_one_huge_transaction_keep_their_order(
        self, target: SinkTarget
    ) -> None:
        """Ordinals that are too large for a packed version still decide which wins."""
        sink = target.connect()
        apply(sink, order(target, at(3, 70_000), {"status": "paid"}))
        apply(sink, order(target, at(3, 5_000), {"status": "placed"}))
        apply(sink, order(target, at(3, 4_094), {"status": "placed"}, key=8))
        apply(sink, order(target, at(3, 4_095), {"status": "paid"}, key=8))

        assert {
            "7": live(7, at(3, 70_000), status="paid"),
            "8": live(8, at(3, 4_095), status="paid"),
        } == target.contents(target.orders)


class PartialCases:
    """A partial row is merged with the stored row; missing values are never guessed."""

    def test_a_partial_change_keeps_unchanged_columns(self, target: SinkTarget) -> None:
        """Unchanged columns keep their values; null and new values are written."""
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
        """Neither an absent nor a deleted row is completed: the row is refetched."""
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
            {(r.change.key[0], r.reason, r.needs_refetch) for r in checkpoint.refused},
            target.contents(target.orders),
        )

    def test_changes_to_one_key_in_a_batch_fold_into_one(
        self, target: SinkTarget
    ) -> None:
        """A key created, partly updated and updated again in one batch is one row."""
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


class FloorCases:
    """Rows below a floor are deleted, and do not return."""

    def test_a_floor_deletes_rows_below_it_and_no_others(
        self, target: SinkTarget
    ) -> None:
        """Rows and tombstones below the floor are deleted; others are kept."""
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
            _live_keys(target, target.orders),
            _live_keys(target, target.labels),
        )
        assert {"3", "4"} == target.contents(target.orders).keys()

    def test_a_late_change_below_a_floor_is_refused(self, target: SinkTarget) -> None:
        """Changes below the floor are stale, even of new keys; others are applied."""
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
            _live_keys(target, target.orders),
            _live_keys(target, target.labels),
        )

    def test_a_floor_is_remembered_across_a_restart(self, target: SinkTarget) -> None:
        """Another client, opened later, refuses changes below the floor, too."""
        first = target.connect()
        sweep(first, floor(target, at(5)), order(target, at(6), {"status": "paid"}))
        first.close()
        second = target.connect()
        checkpoint = apply(second, order(target, at(4), {"status": "placed"}, key=8))

        assert (1, {"7"}) == (checkpoint.stale, _live_keys(target, target.orders))

    def test_a_lower_floor_changes_nothing(self, target: SinkTarget) -> None:
        """Repeated and lower floors delete no rows and accept no older changes."""
        sink = target.connect()
        sweep(sink, floor(target, at(5)), order(target, at(6), {"status": "paid"}))
        sweep(sink, floor(target, at(5)))
        sweep(sink, floor(target, at(3)))
        checkpoint = apply(sink, order(target, at(4), {"status": "placed"}, key=8))

        assert (1, {"7"}) == (checkpoint.stale, _live_keys(target, target.orders))


def _live_keys(target: SinkTarget, route: str) -> set[str]:
    """Return the keys of a route's live rows."""
    return {k for k, row in target.contents(route).items() if not row.is_deleted}
