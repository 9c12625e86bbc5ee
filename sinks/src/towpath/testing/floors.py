"""What lies below a floor goes, and never comes back."""

from towpath.testing.changes import READ, apply, at, floor, label, order, sweep
from towpath.testing.target import SinkTarget


class FloorCases:
    """What lies below a floor goes, and never comes back."""

    def test_what_is_below_a_floor_goes_and_the_rest_stays(
        self, target: SinkTarget
    ) -> None:
        """Rows and tombstones below go; those at it, above it or elsewhere stay."""
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

    def test_what_comes_late_from_below_a_floor_is_refused(
        self, target: SinkTarget
    ) -> None:
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
            _live_keys(target, target.orders),
            _live_keys(target, target.labels),
        )

    def test_a_floor_is_remembered_over_a_restart(self, target: SinkTarget) -> None:
        """Another client, opened anew, refuses what is below it, too."""
        first = target.connect()
        sweep(first, floor(target, at(5)), order(target, at(6), {"status": "paid"}))
        first.close()
        second = target.connect()
        checkpoint = apply(second, order(target, at(4), {"status": "placed"}, key=8))

        assert (1, {"7"}) == (checkpoint.stale, _live_keys(target, target.orders))

    def test_a_lower_floor_changes_nothing(self, target: SinkTarget) -> None:
        """Floors that come again or late take nothing away, and open nothing."""
        sink = target.connect()
        sweep(sink, floor(target, at(5)), order(target, at(6), {"status": "paid"}))
        sweep(sink, floor(target, at(5)))
        sweep(sink, floor(target, at(3)))
        checkpoint = apply(sink, order(target, at(4), {"status": "placed"}, key=8))

        assert (1, {"7"}) == (checkpoint.stale, _live_keys(target, target.orders))


def _live_keys(target: SinkTarget, route: str) -> set[str]:
    """Return the keys of a route's live rows."""
    return {k for k, row in target.contents(route).items() if not row.is_deleted}
