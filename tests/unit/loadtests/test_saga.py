"""A settled order as seen by its customer, and the totals of all orders."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from towpath.loadtests.load import saga
from towpath.loadtests.load.series import Totals
from towpath.loadtests.load.shop import MIX, PRODUCTS, checkout

BEGAN = datetime(2026, 11, 27, 3, 0, tzinfo=UTC)


def order(status, *steps, reason=None, moved_s=0.0, is_settled=True):
    """Make the document of an order; each step is a name and a time in seconds."""
    return {
        "status": status,
        "reason": reason,
        "updated_at": (BEGAN + timedelta(seconds=moved_s)).isoformat(),
        "saga": {
            "is_settled": is_settled,
            "steps": [
                {"step": name, "at": (BEGAN + timedelta(seconds=at_s)).isoformat()}
                for name, at_s in steps
            ],
        },
    }


def test_an_order_settles_with_its_last_step():
    """
    Stock is sold after the order is completed; both times count from the command.
    """
    done = order("completed", ("stock_reserved", 0.5), ("stock_sold", 3.0), moved_s=2.0)
    steps = {"stock_reserved": 500.0, "stock_sold": 3_000.0}

    assert ("completed", 3_000.0, steps) == saga.settled(done, BEGAN)


def test_steps_before_the_command_are_left_out():
    """
    A return is timed from its request, not from the checkout.
    """
    steps = (("payment_captured", 1.0), ("payment_refunded", 62.0))
    found = saga.settled(
        order("returned", *steps, moved_s=60.0), BEGAN + timedelta(seconds=60)
    )

    assert ("returned", 2_000.0, {"payment_refunded": 2_000.0}) == found


def test_an_order_that_is_not_settled_has_no_outcome():
    """
    A completed order is not settled until its stock is sold.
    """
    assert saga.settled(order("completed", is_settled=False), BEGAN) is None


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("out of stock", "cancelled: out of stock"),
        ("payment declined", "cancelled: payment declined"),
        ("changed my mind", "cancelled: by the customer"),
        (None, "cancelled: by the customer"),
    ],
)
def test_all_reasons_given_by_customers_are_one_outcome(reason, outcome):
    """
    The services' reasons are kept apart; each free text would be another outcome.
    """
    found = saga.settled(order("cancelled", reason=reason), BEGAN)

    assert found is not None
    assert outcome == found.outcome


def times(*ms, count=None):
    """Make the totals of a row, either from times or from a number of requests."""
    counts = {one: ms.count(one) for one in ms}
    return Totals(len(ms) if count is None else count, 0, counts)


def test_the_report_covers_all_watched_orders():
    """
    Unsettled orders are included, but the rows of requests are not.
    """
    found = saga.saga_report(
        {
            ("checkout", "POST"): times(20, 30),
            (saga.PAID_AT_CHECKOUT, saga.SAGA): times(count=4),
            ("completed", saga.SAGA): times(900, 1_000),
            (saga.DECLINED, saga.SAGA): times(400),
            (saga.FROM_CHECKOUT, saga.SAGA): times(900, 400),
            (saga.NOT_SETTLED, saga.SAGA): times(count=2),
            (saga.NOT_WATCHED, saga.SAGA): times(count=3),
            ("payment_declined", saga.STEP): times(300),
            ("stock_released", saga.STEP): times(400),
        }
    )
    outcomes = {name: one.count for name, one in found.outcomes.items()}

    assert (5, 2, 3) == (found.watched, found.not_settled, found.not_watched)
    assert {"completed": 2, saga.DECLINED: 1} == outcomes
    assert (2, 900.0) == (found.from_checkout.count, found.from_checkout.p99_ms)
    assert ["payment_declined", "stock_released"] == sorted(found.steps)
    assert {"stock_released": 1} == found.compensations


def test_payments_made_at_checkout_are_counted():
    """
    They are not separate requests; if there are none, the count is zero.
    """
    rows = {(saga.PAID_AT_CHECKOUT, saga.SAGA): times(count=4)}

    assert (4, 0) == (saga.paid_at_checkout(rows), saga.paid_at_checkout({}))


def test_the_mix_has_the_given_shares():
    """
    Methods are chosen by their shares, and most orders use the plain method.
    """
    random = Random(1)  # noqa: S311 - not used for secrets
    chosen = [MIX.method(random) for _ in range(5_000)]

    assert 1.0 == pytest.approx(sum(MIX.methods.values()))
    assert set(MIX.methods) == set(chosen)
    assert 0.9 == pytest.approx(chosen.count("card") / len(chosen), abs=0.02)


def test_a_checkout_has_the_payment_method_and_a_carrier():
    """
    The document has a method only if the order is paid at once.
    """
    random = Random(2)  # noqa: S311 - not used for secrets
    orders = [checkout(random, ("a",), "card-repeats") for _ in range(500)]
    carriers = {str(one.get("attributes")) for one in orders}

    assert {"card-repeats"} == {one["payment_method"] for one in orders}
    assert "payment_method" not in checkout(random, ("a",))
    assert {"None", "{'carrier': 'undeliverable'}"} == carriers
    # Postgres computes the same for md5('product 7')::uuid.
    assert "25af5e40-0ea6-0e92-6e40-f0071307c2e2" == str(PRODUCTS[7])
