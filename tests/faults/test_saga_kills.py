"""Consumers and the relay are killed during checkouts; the services' data agrees."""

import random

import pytest

from support.rig import Rig
from support.saga import PRODUCT, SCARCE, SERVICES, Saga

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.timeout(240)]

KILLS = 8
ORDERS_BETWEEN = 6
METHODS = ("card", "card", "card-declined", "card-repeats", "card-timeout")
CARRIERS = (None, None, None, "undeliverable")


@pytest.fixture
def saga(stack, database, unique, tmp_path):
    """Provide the running services, with a relay."""
    stack.up("postgres", "kafka")
    rig = Rig(database, stack.kafka, unique, tmp_path)
    rig.configure(rig.outbox)
    rig.init()
    made = Saga(rig, {})
    made.start()
    yield made
    made.close()
    rig.close()


def check_out(saga, choose):
    """Place a random kind of order."""
    return saga.check_out(
        choose.choice(METHODS),
        product=SCARCE if choose.random() < 0.1 else PRODUCT,
        carrier=choose.choice(CARRIERS),
    )


def test_money_stock_and_parcels_agree_despite_kills(saga):
    """
    Every order reaches a final state: paid, reserved and shipped once or not at all.
    """
    choose = random.Random(11)  # noqa: S311 - a repeatable test
    numbers = []
    for _ in range(KILLS):
        numbers += [check_out(saga, choose) for _ in range(ORDERS_BETWEEN)]
        if choose.random() < 0.3:
            # The cancellation is refused if the order has been completed by then.
            saga.client.post(f"/orders/{numbers[-1]}/cancel", json={})
        victim = choose.choice((*SERVICES, "relay"))
        if victim == "relay":
            saga.rig.kill()
            saga.rig.start()
        else:
            saga.kill_consumer(victim)
            saga.start_consumer(victim)
    saga.wait_until_all_settled()
    statuses = {saga.order(number)["status"] for number in numbers}

    assert {"completed", "cancelled"} == statuses
    assert [] == saga.findings()
