"""The shop's choreography: every interleaving is settled and compensated in the end."""

import random

from hypothesis import given
from hypothesis import strategies as st

from support.saga_model import METHODS, Checkout, SagaModel
from towpath.services.orders.domain import OrderStatus
from towpath.services.shipping.domain import SILENT, UNDELIVERABLE

CHECKOUTS = st.lists(
    st.builds(
        Checkout,
        method=st.sampled_from([None, *METHODS]),
        quantity=st.integers(1, 3),
        carrier=st.sampled_from([None, UNDELIVERABLE, SILENT]),
    ),
    min_size=1,
    max_size=3,
)


def chosen_at_random(seed: int) -> list[int]:
    """Return uniformly distributed choices."""
    rng = random.Random(seed)  # noqa: S311 - a repeatable test
    return [rng.randrange(2**16) for _ in range(rng.randint(25, 50))]


# Hypothesis prefers small numbers and short lists, which shrink well but seldom reach
# the end of a saga.
CHOICES = st.one_of(
    st.integers(0, 2**32).map(chosen_at_random),
    st.lists(st.integers(0, 2**16), min_size=25, max_size=50),
)
# The services mostly make progress; otherwise every order would soon be cancelled.
_OTHERS = {0: SagaModel.commands, 1: SagaModel.disturbances}


def play(model: SagaModel, choices: list[int]) -> None:
    """Execute one of the possible moves for each choice."""
    for choice in choices:
        which, kind = divmod(choice, 8)
        moves = _OTHERS.get(kind, SagaModel.progress)(model)
        moves[which % len(moves)]()


@given(CHECKOUTS, st.integers(0, 6), CHOICES, CHOICES)
def test_every_interleaving_settles_with_the_right_compensations(
    checkouts, on_hand, first, second
):
    """
    Stock, payment and parcel match the order, even if services are late or silent.

    The model itself asserts that each transition is legal, that each event is recorded
    at most once, and that an amount is captured only for a confirmed order.
    """
    model = SagaModel(checkouts, on_hand)
    for choices in (first, second):
        play(model, choices)
        model.settle()

        assert [] == model.findings()


def test_an_undisturbed_order_is_completed():
    """
    Without disturbances, stock is sold, and the amount is captured.
    """
    model = SagaModel([Checkout("card", 2, None)], on_hand=2)
    model.settle()

    assert OrderStatus.COMPLETED is model.orders.lock(1).state.status
    assert {"on_hand": 0, "reserved": 0, "sold": 2} == dict(model.inventory.units)
