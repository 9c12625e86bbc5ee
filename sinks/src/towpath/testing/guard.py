"""The newest position wins, and a delete is remembered."""

from towpath.testing.changes import READ, apply, at, gone, live, order
from towpath.testing.target import SinkTarget


class GuardCases:
    """The newest position wins, and a delete is remembered."""

    def test_a_replayed_batch_changes_nothing(self, target: SinkTarget) -> None:
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

    def test_an_equal_position_is_applied_again(self, target: SinkTarget) -> None:
        """Ties are written, not refused: a batch that half failed is repeated."""
        sink = target.connect()
        change = order(target, at(1), {"status": "placed"})
        apply(sink, change)
        checkpoint = apply(sink, change)

        assert (1, 0) == (checkpoint.applied, checkpoint.stale)

    def test_an_older_change_never_wins(self, target: SinkTarget) -> None:
        """What is older than the stored row is counted as stale and leaves no trace."""
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
        """A delete that comes late does not take a newer row away."""
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

    def test_a_delete_is_remembered_over_a_restart(self, target: SinkTarget) -> None:
        """Another client, opened anew, refuses the older insert too."""
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

    def test_a_key_that_is_used_again_lives(self, target: SinkTarget) -> None:
        """A newer insert after a delete is an ordinary row."""
        sink = target.connect()
        apply(sink, order(target, at(1), {"status": "placed", "note": "first"}))
        apply(sink, order(target, at(2), None))
        apply(sink, order(target, at(3), {"status": "placed"}))

        assert {"7": live(7, at(3), status="placed")} == target.contents(target.orders)

    def test_a_snapshot_row_below_the_stream_loses(self, target: SinkTarget) -> None:
        """A READ row stands below every change of the same log position."""
        sink = target.connect()
        apply(sink, order(target, at(5, 0), {"status": "paid"}))
        apply(sink, order(target, at(5, READ), {"status": "placed"}))

        assert {"7": live(7, at(5), status="paid")} == target.contents(target.orders)

    def test_a_snapshot_row_above_the_stream_wins(self, target: SinkTarget) -> None:
        """A READ row replaces what was committed before its watermark."""
        sink = target.connect()
        apply(sink, order(target, at(4, 9), {"status": "placed", "note": "lost"}))
        apply(sink, order(target, at(5, READ), {"status": "paid"}))

        expected = {"7": live(7, at(5, READ), status="paid")}

        assert expected == target.contents(target.orders)

    def test_positions_compare_exactly_at_any_height(self, target: SinkTarget) -> None:
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

    def test_changes_of_one_huge_transaction_keep_their_order(
        self, target: SinkTarget
    ) -> None:
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
