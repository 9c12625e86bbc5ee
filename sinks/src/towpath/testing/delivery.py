"""However often, in whatever order and pieces: a target ends equal to the fold."""

import random
from collections.abc import Iterable

from towpath.sinks.change import Change
from towpath.sinks.fold import newest_per_key
from towpath.sinks.ports import Batch, StoredRow
from towpath.sinks.targets.memory import MemorySink
from towpath.testing.changes import READ, apply, at, gone, live, order
from towpath.testing.target import SinkTarget


class DeliveryCases:
    """However often, in whatever order and pieces: a target ends equal to the fold."""

    def test_opening_again_is_safe(self, target: SinkTarget) -> None:
        """A second open finds everything there and changes nothing."""
        apply(target.connect(), order(target, at(1), {"status": "placed"}))
        target.connect().open()

        assert {"7": live(7, at(1), status="placed")} == target.contents(target.orders)

    def test_a_batch_that_was_never_flushed_comes_again(
        self, target: SinkTarget
    ) -> None:
        """A process that ends between apply and flush loses and doubles nothing."""
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

    def test_each_flush_tells_only_what_came_since(self, target: SinkTarget) -> None:
        """Counts begin anew with each flush, and an empty batch counts nothing."""
        sink = target.connect()
        first = apply(sink, order(target, at(1), {"status": "placed"}))
        second = apply(sink)

        assert (1, 0, 0) == (first.applied, second.applied, second.stale)

    def test_any_delivery_ends_equal_to_the_reference(self, target: SinkTarget) -> None:
        """Histories shuffled, repeated, split and interrupted end as they were told."""
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
    """Return what the reference holds after a history, as a target gives it back."""
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
