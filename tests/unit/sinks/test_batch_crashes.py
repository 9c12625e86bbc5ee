"""A writer that dies before or after any call gives the same result in the end."""

import pytest

from support.dying_process import Death, repeat
from support.parked_shop import FILL, TOPIC, Shop, change
from towpath.sinks.change import Origin, Record
from towpath.sinks.dead_letters.entries import DeadLetterRequest, Subject, Verb
from towpath.sinks.dead_letters.parked import OpenDeadLetters

UNREADABLE = Record(Origin(TOPIC, 1, 5), b"{}", b"{", {})
# Order 7 is parked, refetched and replayed; 8 is read again; the row of 9 is missing.
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
REQUEST = DeadLetterRequest("one", Verb.REPLAY, Subject(TOPIC, b'{"order_id":7}'))


def run(death=None):
    """Write all batches in turn, however often the writer dies."""
    shop = Shop(accepts_repairs=True)
    if death is not None:
        death.wrap_calls(shop)
    for batch in BATCHES:
        repeat(shop, lambda batch=batch: shop.write(*batch))
    shop.sink.is_repaired = True
    shop.letters.request(REQUEST)

    def process_requests():
        """Process the requests; each restart of the shop replaces ``shop.requests``."""
        shop.requests.process()

    repeat(shop, process_requests)
    open_dead_letters = OpenDeadLetters().read(shop.letters.entries())
    open_ = [
        x.record.origin
        for subject in open_dead_letters.dead_letters
        for x in open_dead_letters.of(subject)
    ]
    return (
        shop.sink.rows,
        open_,
        set(shop.repairs.keys),
        set(open_dead_letters.replies),
        open_dead_letters.requests,
    )


@pytest.mark.parametrize("is_after", [False, True])
def test_a_crash_at_any_call_does_not_change_the_result(is_after: bool):
    """
    Rows, tombstones, open dead letters and answers are those of an uninterrupted run.
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

    requested = {("orders", (7,)), ("orders", (9,))}
    assert ([UNREADABLE.origin], requested, {"one"}) == expected[1:4]
    assert deaths > 15
