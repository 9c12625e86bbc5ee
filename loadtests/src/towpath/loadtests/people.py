"""
One process in one run: its customers, orders left open, how many are under way.

Locust declares options and runner as optional; in a run both are there.
"""

import argparse
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from gevent.lock import BoundedSemaphore
from locust.env import Environment
from locust.runners import Runner

from towpath.loadtests.options import ANY

# Old ones are forgotten: a load may go on for days.
_REMEMBERED_ORDERS: Final = 20_000

# The master tells its workers by this option how many users there are in all.
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
    """Return what runs the users."""
    if environment.runner is None:
        message = "the users are started by a runner"
        raise RuntimeError(message)
    return environment.runner


class People:
    """The customers of one process, in one run of the load."""

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
        """Return the process's customers; whoever asks first registers them."""
        if self.given:
            return self.given
        with self._registering:
            wanted = options_of(self._environment).load_customers
            while len(self._registered) < wanted:
                self._registered.append(register())
        return tuple(self._registered)

    @property
    def is_any(self) -> bool:
        """Whether customers come back to any order of the shop."""
        return bool(options_of(self._environment).load_return_to == ANY)

    def left_order(self) -> int | None:
        """Take the oldest order that was left open here, if there is one."""
        return self.left_open.popleft() if self.left_open else None

    def streams(self) -> int:
        """Count the users of all processes, among which a rate is divided."""
        streams: int = getattr(options_of(self._environment), STREAMS, 0)
        return streams or runner_of(self._environment).target_user_count
