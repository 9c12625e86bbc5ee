"""
Locust's users: customers who check out, pay, cancel and come back.

``Shopper`` and ``ReturningCustomer`` wait for their responses (closed loop).
``OpenLoop`` begins each visit at its due time, whether or not the previous visit has
ended; a late arrival does not delay later ones. Their requests are in ``customers``.
"""

from collections.abc import Callable
from typing import Any, Final

import gevent
from gevent.pool import Group
from locust import TaskSet, User, tag, task
from locust.env import Environment
from locust.exception import StopTest

from towpath.loadtests.errors import LoadOptionError
from towpath.loadtests.load.customers import (
    CANCEL,
    CHECKOUT,
    MAX_WATCHING,
    PAY,
    Customer,
    add_entry,
    options_of,
)
from towpath.loadtests.load.shapes import Schedule
from towpath.schemas.clock import SystemClock

# Only arrivals that began late or not at all appear in the statistics.
ARRIVAL: Final = "ARRIVAL"
LATE: Final = "late"
NOT_STARTED: Final = "not started"

# The other tasks are repeated this many times, so that returns get an accurate share.
_REPEATS_PER_TASK: Final = 10

# The wait if the shape has no more arrivals; the run ends before the wait is over.
_LONGEST_WAIT_S: Final = 86_400.0

_NEEDS_RATE: Final = "OpenLoop needs a rate: set --load-rate to the arrivals per second"

_clock = SystemClock()


class Shopping(Customer):
    """Places orders: 60% are paid, 15% are cancelled, and 25% stay open."""

    abstract = True

    @tag(CHECKOUT)
    @task(25)
    def check_out(self) -> None:
        """Place an order, and leave it open."""
        self.begin(self.leave_open)

    @tag(CHECKOUT, PAY)
    @task(60)
    def check_out_and_pay(self) -> None:
        """Place an order and pay for it."""
        self.begin(self.place_and_pay)

    @tag(CHECKOUT, CANCEL)
    @task(15)
    def check_out_and_cancel(self) -> None:
        """Place an order and cancel it."""
        self.begin(self.place_and_cancel)


class Returning(Customer):
    """Comes back to an order that was left open."""

    abstract = True

    @tag("return")
    @task(100)
    def come_back(self) -> None:
        """Pay for or cancel an order that was left open."""
        self.begin(self.settle)


class ClosedLoop(Customer):
    """Waits for each response, so a slow shop slows its users."""

    abstract = True

    def on_start(self) -> None:
        """Register as a customer, or use the given customers."""
        known = self.people.given
        self.customers = known or (self.register(),)

    def wait_time(self) -> float:
        """Return the think time: the mean, give or take up to half of it."""
        mean_s: float = options_of(self.environment).load_think
        return mean_s * (0.5 + self.random.random())


class Shopper(Shopping, ClosedLoop):
    """Checks out, and then pays for the order, cancels it, or leaves it open."""


class ReturningCustomer(Returning, ClosedLoop):
    """Comes back to orders that were left open; settles a new one if none is left."""


class OpenLoop(Shopping, Returning):
    """
    A stream of arrivals at a rate that does not depend on the shop's responses.

    All streams share the configured rate equally. An arrival is not started, and counts
    as failed, if too many others are under way.
    """

    def __init__(self, environment: Environment) -> None:
        # One connection for each arrival under way and for each customer who watches.
        outstanding = options_of(environment).load_max_outstanding
        self.concurrency = outstanding + MAX_WATCHING
        super().__init__(environment)
        self._schedule = Schedule(0.0)
        self._under_way = Group()

    def on_start(self) -> None:
        """Register customers, weight the tasks, and start at a random phase."""
        self.customers = self.people.known(self.register)
        self.tasks = self._weighted(options_of(self.environment).load_return_share)
        self._schedule = Schedule(_clock.monotonic_s())
        share = self.random.random()
        gevent.sleep(self._next_in_s(share))

    def on_stop(self) -> None:
        """Wait for the visits under way."""
        self._under_way.join(timeout=self.environment.stop_timeout)
        super().on_stop()

    def wait_time(self) -> float:
        """Return the seconds until the next arrival is due."""
        return self._next_in_s()

    def begin(self, visit: Callable[[], object]) -> None:
        """Begin a visit without waiting for its end."""
        late_s = self._schedule.lateness_s(_clock.monotonic_s())
        if late_s:
            self._record_arrival(LATE, late_s * 1000)
        if self.people.under_way.acquire(blocking=False):
            self._under_way.spawn(self._carry_out, visit, self._schedule.due_s)
        else:
            limit = options_of(self.environment).load_max_outstanding
            self._record_arrival(
                NOT_STARTED, 0.0, RuntimeError(f"{limit} arrivals are under way")
            )

    def _carry_out(self, visit: Callable[[], object], due_at_s: float) -> None:
        self.intended.due_at_s = due_at_s
        try:
            visit()
        except Exception as error:  # noqa: BLE001 - reported as Locust reports a task's
            self.environment.events.user_error.fire(
                user_instance=self, exception=error, tb=error.__traceback__
            )
        finally:
            self.people.under_way.release()

    def _next_in_s(self, share: float = 1.0) -> float:
        """Advance by an interval of the shape, or a share of it; return the wait."""
        streams = max(1, self.people.streams())
        rate: float = options_of(self.environment).load_rate
        if rate <= 0:
            raise StopTest(_NEEDS_RATE)
        at_s = self._schedule.due_s - self.people.began_at_s
        next_s = self.people.shape.after(at_s, share * streams / rate)
        wait_s = self._schedule.next_in_s(_clock.monotonic_s(), next_s - at_s)
        return min(wait_s, _LONGEST_WAIT_S)

    def _weighted(self, return_share: float) -> list[TaskSet | Callable[..., Any]]:
        """Repeat the tasks so that returns get their share."""
        tasks = type(self).tasks
        back = [one for one in tasks if one is OpenLoop.come_back]
        others = [one for one in tasks if one is not OpenLoop.come_back]
        if not back or not others:
            return list(tasks)
        if return_share == 1:
            return list(back)
        others *= _REPEATS_PER_TASK
        times = round(len(others) * return_share / (1 - return_share))
        return [*others, *back[:1] * times]

    def _record_arrival(
        self, name: str, time_ms: float, failure: Exception | None = None
    ) -> None:
        add_entry(self.environment, ARRIVAL, name, time_ms, failure)


_TAGS: Final = "locust_tag_set"


def choose_users(environment: Environment) -> None:
    """
    Choose the classes of users, unless the command line names them.

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
        raise LoadOptionError(_NEEDS_RATE)


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
