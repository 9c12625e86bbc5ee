"""
Customers: their requests, their orders, and the orders that they watch.

Requests are named after their action. A 409 means that the order has changed in the
meantime: it counts under a separate name, not as a failure. The first request of an
arrival is timed from the moment at which the arrival was due.

Some customers read their order until it is settled, with growing pauses, in
parallel with their other requests; ``saga`` computes the outcome and the times. Each
process of a run has its own customers, open orders and count of arrivals under way.
Locust declares the options and the runner as optional; during a run both are present.
"""

import argparse
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from random import Random
from typing import Any, Final, NamedTuple, cast
from uuid import uuid4

import gevent
from gevent.event import Event
from gevent.local import local
from gevent.lock import BoundedSemaphore
from gevent.pool import Group
from locust import FastHttpUser
from locust.contrib.fasthttp import ResponseContextManager
from locust.env import Environment
from locust.runners import Runner

from towpath.loadtests.load import saga
from towpath.loadtests.load.options import ANY
from towpath.loadtests.load.shapes import STEADY, Shape
from towpath.loadtests.load.shop import MIX, checkout, registration
from towpath.schemas.clock import Backoff, SystemClock

# Older orders are dropped: a load may run for days.
_REMEMBERED_ORDERS: Final = 20_000

# In this option, the master passes the total number of users to its workers.
STREAMS: Final = "load_streams"
# In this option, it passes the points of the shape: only the master has the file.
SHAPE: Final = "load_shape_points"

# The most customers of one process who watch their orders at the same time: they send
# six requests per second at the longest pause.
MAX_WATCHING: Final = 50


def add_entry(
    environment: Environment,
    kind: str,
    name: str,
    time_ms: float | None,
    failure: Exception | None = None,
) -> None:
    """Add an entry to Locust's statistics, as if it were a request."""
    environment.events.request.fire(
        request_type=kind,
        name=name,
        response_time=time_ms,
        response_length=0,
        exception=failure,
        context={},
    )


def options_of(environment: Environment) -> argparse.Namespace:
    """Return the options of a run."""
    options = environment.parsed_options
    if options is None:
        message = "the environment has no parsed options"
        raise RuntimeError(message)
    return cast("argparse.Namespace", options)


def runner_of(environment: Environment) -> Runner:
    """Return the runner of the users."""
    if environment.runner is None:
        message = "the environment has no runner"
        raise RuntimeError(message)
    return environment.runner


_clock = SystemClock()


class ProcessCustomers:
    """The customers and open orders of one process in one run."""

    def __init__(self, environment: Environment, given: tuple[str, ...]) -> None:
        options = options_of(environment)
        self.given = given
        self.left_open: deque[int] = deque(maxlen=_REMEMBERED_ORDERS)
        self.newest_order = 0
        self.under_way = BoundedSemaphore(options.load_max_outstanding)
        self.watching = BoundedSemaphore(MAX_WATCHING)
        self.shape = Shape(tuple(getattr(options, SHAPE, ())) or STEADY.points)
        self.began_at_s = _clock.monotonic_s()
        self._environment = environment
        self._registered: list[str] = []
        self._registering = BoundedSemaphore(1)

    def known(self, register: Callable[[], str]) -> tuple[str, ...]:
        """Return the process's customers; the first call registers them."""
        if self.given:
            return self.given
        with self._registering:
            wanted = options_of(self._environment).load_customers
            while len(self._registered) < wanted:
                self._registered.append(register())
        return tuple(self._registered)

    @property
    def returns_to_any(self) -> bool:
        """Whether customers may come back to any order of the shop."""
        return bool(options_of(self._environment).load_return_to == ANY)

    def left_order(self) -> int | None:
        """Take the oldest order that was left open in this process, if there is one."""
        return self.left_open.popleft() if self.left_open else None

    def streams(self) -> int:
        """Return the number of users in all processes together; they share the rate."""
        streams: int = getattr(options_of(self._environment), STREAMS, 0)
        return streams or runner_of(self._environment).target_user_count


CHECKOUT: Final = "checkout"
PAY: Final = "pay"
CANCEL: Final = "cancel"
RETURN_GOODS: Final = "return"
REGISTER: Final = "register"
TOO_LATE: Final = " (too late)"
RETURN: Final = "return: "
LOOK: Final = "look"

_RESPONSE_TIMEOUT_S: Final = 30.0
_REGISTER_AGAIN_AFTER_S: Final = 1.0
# The delay before each retry of a request.
_BACKOFF: Final = Backoff(ceiling_s=3.0)

# The first and the longest pause between two reads of an order.
_FIRST_READ_AFTER_S: Final = 0.5
_READ_EVERY_S: Final = 8.0

# After this many reads of orders that are not open, a customer settles a new order.
_MAX_READS: Final = 5
_OPEN: Final = "placed"


class Sent(NamedTuple):
    """The outcome of a request: whether the response is final, and the order in it."""

    is_final: bool
    order: Mapping[str, Any] | None


def _is_final(response: ResponseContextManager) -> bool:
    """Return whether the response is final: a retry would get the same response."""
    return 0 < response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR


class Customer(FastHttpUser):
    """The requests of all customers."""

    abstract = True
    connection_timeout = _RESPONSE_TIMEOUT_S
    network_timeout = _RESPONSE_TIMEOUT_S
    people: ProcessCustomers

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.random = Random()
        self.customers: tuple[str, ...] = ()
        # For each greenlet: when its arrival was due, kept until its first request.
        self.intended = local()
        self._watchers = Group()
        self._closing = Event()

    def on_stop(self) -> None:
        """Wait while customers read their orders one last time."""
        self._closing.set()
        self._watchers.join(timeout=self.environment.stop_timeout)

    def begin(self, visit: Callable[[], object]) -> None:
        """Make a visit, and wait for its end."""
        visit()

    @contextmanager
    def request(
        self,
        method: str,
        path: str,
        name: str,
        **arguments: Any,  # noqa: ANN401 - the client's own arguments
    ) -> Iterator[ResponseContextManager]:
        """Send a request; an arrival's first request is timed from its due time."""
        due_at_s = self.intended.__dict__.pop("due_at_s", None)
        late_s = 0.0 if due_at_s is None else _clock.monotonic_s() - due_at_s
        with self.client.request(
            method, path, name=name, catch_response=True, **arguments
        ) as response:
            response.request_meta["response_time"] += max(0.0, late_s) * 1000
            yield response

    def register(self) -> str:
        """Register a customer, retrying until the response is 201; return the id."""
        while True:
            body = registration(self.random)
            with self.request("POST", "/customers", REGISTER, json=body) as response:
                if response.status_code == HTTPStatus.CREATED:
                    return str(response.json()["customer_id"])
            gevent.sleep(_REGISTER_AGAIN_AFTER_S)

    def place(self, method: str | None = None) -> Mapping[str, Any] | None:
        """Place an order, paid or not, under a new key; return None if that fails."""
        arguments = {
            "json": checkout(self.random, self.customers, method),
            "headers": {"Idempotency-Key": str(uuid4())},
        }

        def send() -> Sent:
            with self.request("POST", "/orders", CHECKOUT, **arguments) as response:
                if response.status_code != HTTPStatus.CREATED:
                    return Sent(_is_final(response), order=None)
                return Sent(is_final=True, order=response.json())

        order = self._send_until_final(send)
        if order is None:
            return None
        self.people.newest_order = max(self.people.newest_order, order["order_id"])
        if method is not None:
            add_entry(self.environment, saga.SAGA, saga.PAID_AT_CHECKOUT, None)
        return order

    def _send_until_final(self, send: Callable[[], Sent]) -> Mapping[str, Any] | None:
        """Send a request; repeat it until its response is final or no retry is left."""
        retries = options_of(self.environment).load_retries
        for attempt in range(retries + 1):
            is_final, order = send()
            if is_final:
                return order
            if attempt < retries:
                gevent.sleep(_BACKOFF.delay_s(attempt))
        return None

    def change(self, order_id: int, action: str, prefix: str = "") -> None:
        """Pay for or cancel an order; its customer may watch it until it is settled."""
        order = self._send_change(order_id, action, prefix)
        if order is not None:
            self._watch_some(order)

    def _send_change(
        self, order_id: int, action: str, prefix: str = ""
    ) -> Mapping[str, Any] | None:
        """Change an order; return it, or None if it was not changed."""
        path = f"/orders/{order_id}/{action}"
        is_payment = action == PAY
        body = {"payment_method": MIX.method(self.random)} if is_payment else {}

        def send() -> Sent:
            with self.request("POST", path, prefix + action, json=body) as response:
                if response.status_code == HTTPStatus.CONFLICT:
                    response.request_meta["name"] += TOO_LATE
                    response.success()
                elif response.status_code == HTTPStatus.OK:
                    return Sent(is_final=True, order=response.json())
                return Sent(_is_final(response), order=None)

        return self._send_until_final(send)

    def leave_open(self) -> None:
        """Place an order, and leave it open."""
        order = self.place()
        if order is not None:
            self.people.left_open.append(order["order_id"])

    def place_and_pay(self) -> None:
        """Place an order, and pay for it at checkout or in a separate request."""
        is_paid = self.random.random() < MIX.paid_at_checkout
        order = self.place(MIX.method(self.random) if is_paid else None)
        if order is not None and is_paid:
            self._watch_some(order, is_checkout=True)
        elif order is not None:
            self.change(order["order_id"], PAY)

    def place_and_cancel(self) -> None:
        """Place an order, sometimes pay for it at checkout, and cancel it."""
        is_paid = self.random.random() < MIX.paid_and_cancelled
        order = self.place(MIX.method(self.random) if is_paid else None)
        if order is not None:
            self.change(order["order_id"], CANCEL)

    def is_open(self, order_id: int) -> bool:
        """Return whether an order is open; it need not exist."""
        order = self._read_order(order_id, RETURN + LOOK)
        return order is not None and bool(order["status"] == _OPEN)

    def settle(self) -> None:
        """Pay for or cancel an open order, or a new one if none is found."""
        order_id = self._open_order()
        if order_id is None and (order := self.place()) is not None:
            order_id = order["order_id"]
        if order_id is not None:
            share = MIX.paid_old if self.people.returns_to_any else MIX.paid_late
            is_paid = self.random.random() < share
            self.change(order_id, PAY if is_paid else CANCEL, RETURN)

    def _open_order(self) -> int | None:
        if not self.people.returns_to_any:
            return self.people.left_order()
        newest = self.people.newest_order
        if not newest:
            return None
        numbers = (self.random.randint(1, newest) for _ in range(_MAX_READS))
        return next(filter(self.is_open, numbers), None)

    def _read_order(self, order_id: int, name: str) -> Mapping[str, Any] | None:
        with self.request("GET", f"/orders/{order_id}", name) as response:
            if response.status_code == HTTPStatus.NOT_FOUND:
                response.success()
            elif response.status_code == HTTPStatus.OK:
                order: Mapping[str, Any] = response.json()
                return order
        return None

    def _watch_some(
        self, order: Mapping[str, Any], *, is_checkout: bool = False
    ) -> None:
        """Have some customers watch their order while they send other requests."""
        if self.random.random() >= options_of(self.environment).load_watch_share:
            return
        if self.people.watching.acquire(blocking=False):
            self._watchers.spawn(self._watch, order, is_checkout)
        else:
            add_entry(self.environment, saga.SAGA, saga.NOT_WATCHED, None)

    def _watch(self, order: Mapping[str, Any], is_checkout: bool) -> None:  # noqa: FBT001 - spawned
        try:
            found = self._watch_until_settled(order, is_checkout=is_checkout)
            is_sent_back = self.random.random() < MIX.sent_back
            if found == saga.COMPLETED and is_sent_back:
                returned = self._send_change(order["order_id"], RETURN_GOODS)
                if returned is not None:
                    self._watch_until_settled(returned)
        finally:
            self.people.watching.release()

    def _watch_until_settled(
        self, order: Mapping[str, Any], *, is_checkout: bool = False
    ) -> str | None:
        """Read an order until it is settled; return its outcome, if it has one."""
        since = saga.updated_at(order)
        until_s = _clock.monotonic_s() + options_of(self.environment).load_watch_for
        pause_s, is_last = _FIRST_READ_AFTER_S, False
        while not is_last:
            is_last = self._closing.wait(pause_s) or _clock.monotonic_s() >= until_s
            pause_s = min(2 * pause_s, _READ_EVERY_S)
            seen = self._read_order(order["order_id"], LOOK)
            settled = None if seen is None else saga.settled(seen, since)
            if settled is not None:
                self._record(settled, is_checkout=is_checkout)
                return settled.outcome
        add_entry(self.environment, saga.SAGA, saga.NOT_SETTLED, None)
        return None

    def _record(self, found: saga.SettledOrder, *, is_checkout: bool) -> None:
        add_entry(self.environment, saga.SAGA, found.outcome, found.took_ms)
        if is_checkout:
            add_entry(self.environment, saga.SAGA, saga.FROM_CHECKOUT, found.took_ms)
        for name, time_ms in found.steps.items():
            add_entry(self.environment, saga.STEP, name, time_ms)
