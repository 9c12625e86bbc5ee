"""
Locust's users: customers who check out, pay, cancel and come back.

``Shopper`` and ``ReturningCustomer`` wait for their answers (closed loop). ``OpenLoop``
begins each visit at its due time, whether or not the last one was answered; a late
arrival does not delay later ones. Requests are named by their action. A 409 means that
the order has changed since: it counts under a separate name, not as a failure.

Each process of a run has its own customers, open orders and count of arrivals under
way. Locust declares options and runner as optional; in a run both are present.
"""

import argparse
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from random import Random
from typing import Any, Final, cast
from uuid import uuid4

import gevent
from gevent.lock import BoundedSemaphore
from gevent.pool import Group
from locust import FastHttpUser, TaskSet, User, tag, task
from locust.env import Environment
from locust.exception import StopTest
from locust.runners import Runner

from towpath.loadtests.errors import LoadOptionError
from towpath.loadtests.load.options import ANY
from towpath.loadtests.load.shop import Schedule, basket, registration
from towpath.schemas.clock import SystemClock

# Older orders are dropped: a load may run for days.
_REMEMBERED_ORDERS: Final = 20_000

# With this option the master passes the total number of users to its workers.
STREAMS: Final = "load_streams"


def add_entry(
    environment: Environment,
    kind: str,
    name: str,
    time_ms: float | None,
    failure: Exception | None = None,
) -> None:
    """Add an entry to locust's statistics, as one of its requests."""
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
        message = "the options are parsed before a run begins"
        raise RuntimeError(message)
    return cast("argparse.Namespace", options)


def runner_of(environment: Environment) -> Runner:
    """Return the runner of the users."""
    if environment.runner is None:
        message = "the users are started by a runner"
        raise RuntimeError(message)
    return environment.runner


class ProcessCustomers:
    """The customers and open orders of one process in one run."""

    def __init__(self, environment: Environment, given: tuple[str, ...]) -> None:
        options = options_of(environment)
        self.given = given
        self.left_open: deque[int] = deque(maxlen=_REMEMBERED_ORDERS)
        self.newest_order = 0
        self.under_way = BoundedSemaphore(options.load_max_outstanding)
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
        """Whether customers come back to any order of the shop."""
        return bool(options_of(self._environment).load_return_to == ANY)

    def left_order(self) -> int | None:
        """Take the oldest order that was left open in this process, if there is one."""
        return self.left_open.popleft() if self.left_open else None

    def streams(self) -> int:
        """Return the number of users of all processes, which share the rate."""
        streams: int = getattr(options_of(self._environment), STREAMS, 0)
        return streams or runner_of(self._environment).target_user_count


CHECKOUT: Final = "checkout"
PAY: Final = "pay"
CANCEL: Final = "cancel"
REGISTER: Final = "register"
TOO_LATE: Final = " (too late)"
RETURN: Final = "return: "
LOOK: Final = "look"

# Only arrivals that began late or not at all appear in the statistics.
ARRIVAL: Final = "ARRIVAL"
LATE: Final = "late"
NOT_STARTED: Final = "not started"

_ANSWER_TIMEOUT_S: Final = 30.0
_REGISTER_AGAIN_AFTER_S: Final = 1.0

# After finding this many orders not open, a customer places one and settles it.
_LOOKS: Final = 5
_OPEN: Final = "placed"

# Three in four orders that customers come back to are paid.
_PAID_LATE_SHARE: Final = 0.75

# Tasks are repeated this often, so that the share of returns is close.
_GRAIN: Final = 10

_clock = SystemClock()


class Customer(FastHttpUser):
    """The requests of all customers."""

    abstract = True
    connection_timeout = _ANSWER_TIMEOUT_S
    network_timeout = _ANSWER_TIMEOUT_S
    people: ProcessCustomers

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.random = Random()
        self.customers: tuple[str, ...] = ()

    def begin(self, visit: Callable[[], object]) -> None:
        """Make a visit, and wait for its end."""
        visit()

    def register(self) -> str:
        """Register a customer; retry until the shop has done it."""
        while True:
            with self.client.post(
                "/customers",
                json=registration(self.random),
                name=REGISTER,
                catch_response=True,
            ) as response:
                if response.status_code == HTTPStatus.CREATED:
                    return str(response.json()["customer_id"])
            gevent.sleep(_REGISTER_AGAIN_AFTER_S)

    def place(self) -> int | None:
        """Place an order under a new key; return its number."""
        with self.client.post(
            "/orders",
            json=basket(self.random, self.customers),
            headers={"Idempotency-Key": str(uuid4())},
            name=CHECKOUT,
            catch_response=True,
        ) as response:
            if response.status_code != HTTPStatus.CREATED:
                return None
            order_id = int(response.json()["order_id"])
        self.people.newest_order = max(self.people.newest_order, order_id)
        return order_id

    def change(self, order_id: int, action: str, prefix: str = "") -> None:
        """Pay or cancel an order."""
        with self.client.post(
            f"/orders/{order_id}/{action}", name=prefix + action, catch_response=True
        ) as response:
            if response.status_code == HTTPStatus.CONFLICT:
                response.request_meta["name"] += TOO_LATE
                response.success()

    def leave_open(self) -> None:
        """Place an order, and leave it open."""
        order_id = self.place()
        if order_id is not None:
            self.people.left_open.append(order_id)

    def place_and(self, action: str) -> None:
        """Place an order, then pay or cancel it."""
        order_id = self.place()
        if order_id is not None:
            self.change(order_id, action)

    def is_open(self, order_id: int) -> bool:
        """Return whether an order is open; it need not exist."""
        with self.client.get(
            f"/orders/{order_id}", name=RETURN + LOOK, catch_response=True
        ) as response:
            if response.status_code == HTTPStatus.NOT_FOUND:
                response.success()
            elif response.status_code == HTTPStatus.OK:
                return bool(response.json()["status"] == _OPEN)
        return False

    def settle(self) -> None:
        """Pay or cancel an open order, or a new one if none is found."""
        order_id = self._open_order() or self.place()
        if order_id is not None:
            is_paid = self.random.random() < _PAID_LATE_SHARE
            self.change(order_id, PAY if is_paid else CANCEL, RETURN)

    def _open_order(self) -> int | None:
        if not self.people.returns_to_any:
            return self.people.left_order()
        newest = self.people.newest_order
        if not newest:
            return None
        numbers = (self.random.randint(1, newest) for _ in range(_LOOKS))
        return next(filter(self.is_open, numbers), None)


class Shopping(Customer):
    """Places orders: 60 % are paid, 15 % cancelled, and 25 % stay open."""

    abstract = True

    @tag(CHECKOUT)
    @task(25)
    def check_out(self) -> None:
        """Place an order, and leave it open."""
        self.begin(self.leave_open)

    @tag(CHECKOUT, PAY)
    @task(60)
    def check_out_and_pay(self) -> None:
        """Place an order and pay it."""
        self.begin(lambda: self.place_and(PAY))

    @tag(CHECKOUT, CANCEL)
    @task(15)
    def check_out_and_cancel(self) -> None:
        """Place an order and cancel it."""
        self.begin(lambda: self.place_and(CANCEL))


class Returning(Customer):
    """Comes back to an order that was left open."""

    abstract = True

    @tag("return")
    @task(100)
    def come_back(self) -> None:
        """Pay or cancel an order that was left open."""
        self.begin(self.settle)


class ClosedLoop(Customer):
    """Waits for each answer, so a slow shop slows its users."""

    abstract = True

    def on_start(self) -> None:
        """Register as a customer, or use the given ones."""
        known = self.people.given
        self.customers = known or (self.register(),)

    def wait_time(self) -> float:
        """Return the think time: the mean, give or take a half."""
        mean_s: float = options_of(self.environment).load_think
        return mean_s * (0.5 + self.random.random())


class Shopper(Shopping, ClosedLoop):
    """Checks out, and pays, cancels or leaves the order."""


class ReturningCustomer(Returning, ClosedLoop):
    """Comes back to orders that were left open, and does nothing else."""


class OpenLoop(Shopping, Returning):
    """
    A stream of arrivals at a rate that does not depend on the shop's answers.

    All streams share the configured rate equally. An arrival that finds too many under
    way is not started and counts as failed.
    """

    def __init__(self, environment: Environment) -> None:
        # One connection for each arrival that may be under way.
        self.concurrency = options_of(environment).load_max_outstanding
        super().__init__(environment)
        self._schedule = Schedule(0.0)
        self._under_way = Group()

    def on_start(self) -> None:
        """Register customers, weight the tasks, and start at a random phase."""
        self.customers = self.people.known(self.register)
        self.tasks = self._weighted(options_of(self.environment).load_return_share)
        gevent.sleep(self.random.random() * self._interval_s())
        self._schedule = Schedule(_clock.monotonic_s())

    def on_stop(self) -> None:
        """Wait for the visits under way."""
        self._under_way.join(timeout=self.environment.stop_timeout)

    def wait_time(self) -> float:
        """Return the seconds until the next arrival is due."""
        return self._schedule.next_in_s(_clock.monotonic_s(), self._interval_s())

    def begin(self, visit: Callable[[], object]) -> None:
        """Begin a visit without waiting for its end."""
        late_s = self._schedule.lateness_s(_clock.monotonic_s())
        if late_s:
            self._record_arrival(LATE, late_s * 1000)
        if self.people.under_way.acquire(blocking=False):
            self._under_way.spawn(self._carry_out, visit)
        else:
            limit = options_of(self.environment).load_max_outstanding
            self._record_arrival(
                NOT_STARTED, 0.0, RuntimeError(f"{limit} are under way")
            )

    def _carry_out(self, visit: Callable[[], object]) -> None:
        try:
            visit()
        except Exception as error:  # noqa: BLE001 - reported as locust does for tasks
            self.environment.events.user_error.fire(
                user_instance=self, exception=error, tb=error.__traceback__
            )
        finally:
            self.people.under_way.release()

    def _interval_s(self) -> float:
        streams = max(1, self.people.streams())
        rate: float = options_of(self.environment).load_rate
        if rate <= 0:
            message = "OpenLoop needs a rate: give --load-rate, arrivals a second"
            raise StopTest(message)
        return streams / rate

    def _weighted(self, return_share: float) -> list[TaskSet | Callable[..., Any]]:
        """Repeat the tasks so that returns have their share."""
        tasks = type(self).tasks
        back = [one for one in tasks if one is OpenLoop.come_back]
        others = [one for one in tasks if one is not OpenLoop.come_back]
        if not back or not others:
            return list(tasks)
        if return_share == 1:
            return list(back)
        others *= _GRAIN
        times = round(len(others) * return_share / (1 - return_share))
        return [*others, *back[:1] * times]

    def _record_arrival(
        self, name: str, time_ms: float, failure: Exception | None = None
    ) -> None:
        add_entry(self.environment, ARRIVAL, name, time_ms, failure)


_TAGS: Final = "locust_tag_set"


def choose_users(environment: Environment) -> None:
    """
    Choose the users, unless the command line names them.

    Raises:
        LoadOptionError: No task has one of the tags, or an open loop has no rate.
    """
    options = options_of(environment)
    if options.user_classes or options.class_picker:
        _check_named(options.user_classes, options.load_rate)
        return
    share = options.load_return_share
    weights: dict[type[User], float] = {OpenLoop: 1.0}
    if not options.load_rate:
        weights = {Shopper: 1 - share, ReturningCustomer: share}
    tags, without = set(options.tags or ()), set(options.exclude_tags or ())
    chosen = [user for user in weights if _has_tasks(user, tags, without)]
    if not chosen:
        known = sorted(_tags_of(Shopper) | _tags_of(ReturningCustomer))
        message = f"the tags select no task; known tags: {', '.join(known)}"
        raise LoadOptionError(message)
    if len(chosen) > 1:
        chosen = [user for user in chosen if weights[user]]
    for user in chosen:
        user.weight = weights[user] or 1.0
    environment.user_classes = chosen


def _check_named(names: list[str], rate: float) -> None:
    if OpenLoop.__name__ in names and not rate:
        message = "OpenLoop needs a rate: give --load-rate, arrivals a second"
        raise LoadOptionError(message)


def _has_tasks(user: type[User], tags: set[str], without: set[str]) -> bool:
    # Locust filters tasks in the same way, but too late to leave a class out.
    return any(
        (not tags or tags & own) and not without & own
        for own in map(_tags_of_task, user.tasks)
    )


def _tags_of(user: type[User]) -> set[str]:
    return set().union(*map(_tags_of_task, user.tasks))


def _tags_of_task(task: object) -> set[str]:
    return getattr(task, _TAGS, set())
