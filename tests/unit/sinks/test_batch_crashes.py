"""A writer that dies at any call, before or after it, ends like one that never does."""

import pytest

from support.dying_process import Death, repeat
from support.parked_shop import FILL, TOPIC, Shop, change
from towpath.sinks.change import Origin, Record
from towpath.sinks.dead_letters.entries import DeadLetterRequest, Subject, Verb
from towpath.sinks.dead_letters.parked import OpenDeadLetters

UNREADABLE = Record(Origin(TOPIC, 1, 5), b"{}", b"{", {})
# Orders 7, 8 and 9: 7 is parked, refetched and replayed; 8 is read again, 9 lacks its
# row.
BATCHES = (
    (
        change(1, "c", note="a"),
        change(2, "c", order=8, note="b"),
        change(3, note="bad"),
        UNREADABLE,
    ),
    (
        change(4, status="paid", unchanged=["note"]),
        change(5, order=8, note="bad"),
        change(6, order=9, status="paid", unchanged=["note"]),
    ),
    (
        change(7, order=8, note="behind"),
        change(8, "r", order=8, topic=FILL, note="as it is"),
    ),
    (change(9, order=10, note="c"), change(10, "d", order=10)),
)
ORDER = DeadLetterRequest("one", Verb.REPLAY, Subject(TOPIC, b'{"order_id":7}'))


def run(death=None):
    """Write all batches in turn, however often the writer dies."""
    shop = Shop(can_ask=True)
    if death is not None:
        death.wrap_calls(shop)
    for batch in BATCHES:
        repeat(shop, lambda batch=batch: shop.write(*batch))
    shop.sink.is_mended = True
    shop.letters.request(ORDER)

    def attend():
        """Each process has orders of its own."""
        shop.orders.process()

    repeat(shop, attend)
    book = OpenDeadLetters().read(shop.letters.entries())
    open_ = [x.record.origin for subject in book.dead_letters for x in book.of(subject)]
    return (
        shop.sink.rows,
        open_,
        set(shop.repairs.keys),
        set(book.replies),
        book.requests,
    )


@pytest.mark.parametrize("is_after", [False, True])
def test_a_crash_at_any_call_changes_nothing_in_the_end(is_after: bool):
    """
    Rows, tombstones, open dead letters and answers are those of an undisturbed run.
    """
    expected = run()
    deaths = 0
    while True:
        death = Death(deaths + 1, is_after=is_after)
        found = run(death)
        if death.left > 0:
            break
        deaths += 1

        assert expected == found

    asked = {("orders", (7,)), ("orders", (9,))}
    assert ([UNREADABLE.origin], asked, {"one"}) == expected[1:4]
    assert deaths > 15
