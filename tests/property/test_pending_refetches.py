"""A target that lost rows ends up equal to its source for any order of events."""

from hypothesis import given
from hypothesis import strategies as st

from support.dying_process import Death
from support.lossy_target import SIZES, LossyTarget


@given(
    st.data(),
    st.lists(st.integers(1, 12), max_size=4),
    st.booleans(),
    st.booleans(),
)
def test_a_target_that_lost_rows_becomes_equal_to_its_source(
    data, deaths, is_after, by_key
):
    """
    Rows read by a snapshot may arrive before or after changes with higher positions.

    Meanwhile partial changes are merged with stale and absent rows.
    """
    target = LossyTarget(data.draw, by_key=by_key)
    if deaths:
        Death(*deaths, is_after=is_after).wrap_calls(target.shop)
    steps = ["commit", "deliver", "answer", "request_overdue"]
    is_filled = False
    for _ in range(data.draw(st.integers(0, 14))):
        step = data.draw(st.sampled_from(steps + ["fill"] * (not is_filled)))
        is_filled |= step == "fill"
        if step == "deliver":
            target.deliver(*data.draw(SIZES))
        else:
            getattr(target, step)()
    if not is_filled:
        target.fill()
    target.finish()
    stored = target.shop.sink.rows.get("orders", {})
    rows = {
        key: {k: v for k, v in s.row.items() if k != "order_id"}
        for key, s in stored.items()
        if s.row is not None
    }
    pending = len(target.shop.refetches)

    assert ({f"{k}": row for k, row in target.rows.items() if row}, 0, []) == (
        rows,
        pending,
        target.shop.letters.reasons(),
    )
