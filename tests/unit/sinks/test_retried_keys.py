"""Keys that are retried without a request while requests fail."""

import contextlib

import orjson

from support.dead_letters import StoppedClock
from support.parked_shop import KEY, Shop, change
from towpath.sinks.apply import replay
from towpath.sinks.dead_letters.entries import LATER, DeadLetterRequest, Verb
from towpath.sinks.errors import TargetUnavailableError


class RetryingShop:
    """A shop with a busy receiver, whose keys are retried without a request."""

    def __init__(self, monkeypatch, per_turn):
        self.now_s = 0.0
        monkeypatch.setattr(StoppedClock, "monotonic_s", lambda _: self.now_s)
        monkeypatch.setattr(replay, "MAX_DEAD_LETTERS", per_turn)
        self.shop = Shop()
        self.shop.sink.reason = f"{LATER}the receiver is busy"
        self._number = 0

    def park(self, order, count=1):
        """Park a key with a refused record, and further records behind it."""
        for _ in range(count):
            self._number += 1
            self.shop.write(change(self._number, order=order, note="bad"))

    def schedule(self):
        """Register the parked keys; keys registered earlier are due earlier."""
        self.shop.requests.process()
        self.now_s += 0.01

    def turns(self, count):
        """Run turns; return the orders that are still parked after each of them."""
        left = []
        for _ in range(count):
            self.now_s += 1_000.0
            with contextlib.suppress(TargetUnavailableError):
                self.shop.requests.process()
            parked = self.shop.parked.keys()
            left.append(sorted(orjson.loads(one.key)["order_id"] for one in parked))
        return left


def test_keys_are_retried_after_a_request_that_fails(monkeypatch):
    """
    The request's dead letters use up the limit of a turn, and its receiver is down.
    """
    retrying = RetryingShop(monkeypatch, per_turn=3)
    retrying.park(7, 3)
    retrying.park(8)
    retrying.schedule()
    retrying.park(9, 5)
    retrying.schedule()
    shop = retrying.shop
    shop.sink.is_repaired = True
    shop.sink.unavailable = "7"
    shop.letters.request(DeadLetterRequest("one", Verb.REPLAY, KEY))
    left = retrying.turns(4)
    shop.sink.unavailable = None

    assert [[7, 8, 9], [7, 9], [7, 9], [7]] == left
    assert [[]] == retrying.turns(1)


def test_a_large_key_does_not_hold_up_other_keys(monkeypatch):
    """
    Keys are retried in the order in which they are due; the large one is taken alone.
    """
    retrying = RetryingShop(monkeypatch, per_turn=3)
    retrying.park(8)
    retrying.schedule()
    retrying.park(7, 4)
    retrying.schedule()
    retrying.park(9)
    retrying.schedule()
    retrying.shop.sink.is_repaired = True

    assert [[7], []] == retrying.turns(2)


def test_keys_of_requests_do_not_displace_due_keys(monkeypatch):
    """
    A key with an open request is not retried, however long it has been due.
    """
    retrying = RetryingShop(monkeypatch, per_turn=10)
    monkeypatch.setattr(replay, "MAX_AT_ONCE", 1)
    retrying.park(7)
    retrying.schedule()
    retrying.park(8)
    retrying.schedule()
    shop = retrying.shop
    shop.sink.is_repaired = True
    shop.sink.unavailable = "7"
    shop.letters.request(DeadLetterRequest("one", Verb.REPLAY, KEY))

    assert [[7]] == retrying.turns(1)


def test_reads_for_requests_do_not_pause_the_retries(monkeypatch):
    """
    Only reads for retries do; a failing request causes a read in each turn.
    """
    retrying = RetryingShop(monkeypatch, per_turn=1)
    shop = retrying.shop
    retrying.park(7)
    retrying.park(8)
    retrying.schedule()
    entries = shop.letters.entries

    def read_slowly():
        retrying.now_s += 1_000.0
        return entries()

    monkeypatch.setattr(shop.letters, "entries", read_slowly)
    shop.sink.is_repaired = True
    shop.sink.unavailable = "7"
    shop.letters.request(DeadLetterRequest("one", Verb.REPLAY, KEY))

    assert [[7, 8], [7]] == retrying.turns(2)
