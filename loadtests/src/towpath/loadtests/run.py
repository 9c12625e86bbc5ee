"""
The load program: drives the shop at a rate until it is told to stop.

``python -m towpath.loadtests.run --host URL --dsn DSN --rate 50 --report FILE`` writes
its report once a second, and a last time when every user has finished what it was
doing: after SIGTERM, SIGINT or ``--duration``. It ends with 0 also when requests
failed: they are in the report, and it is for its reader to judge them.
"""

import argparse
import logging
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import gevent
from gevent.event import Event
from locust import User
from locust.env import Environment
from locust.runners import Runner

from towpath.loadtests import report, shop
from towpath.loadtests.percentile import Latency
from towpath.loadtests.source import read_shop
from towpath.schemas.clock import Clock, SystemClock

_REPORT_INTERVAL_S: Final = 1.0

# Longer than any answer under load, shorter than anybody's patience at the end.
_STOP_TIMEOUT_S: Final = 15.0

# A user waits for its answers; twenty carry 50 checkouts a second at 400 ms each.
_MIN_USERS: Final = 4
_USERS_PER_RATE: Final = 0.4


def main(arguments: list[str]) -> int:
    """Run the load; see the module."""
    options = _options(arguments)
    logging.getLogger("locust").setLevel(logging.WARNING)
    load = Load(options, SystemClock())
    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, load.stop.set)
    load.run()
    return 0


class Load:
    """One run: its users, its counts, its report."""

    def __init__(self, options: argparse.Namespace, clock: Clock) -> None:
        self.stop = Event()
        self._options = options
        self._clock = clock
        self._conflicts: Counter[str] = Counter()
        self._environment = Environment(
            user_classes=self._kinds(), host=options.host, stop_timeout=_STOP_TIMEOUT_S
        )

    def run(self) -> None:
        """Start the users, report, and stop them when told to."""
        began_at_s = self._clock.monotonic_s()
        ends_at_s = began_at_s + (self._options.duration or float("inf"))
        runner: Runner = self._environment.create_local_runner()
        users = sum(kind.fixed_count for kind in self._environment.user_classes)
        runner.start(users, spawn_rate=users)
        while not self.stop.wait(_REPORT_INTERVAL_S):
            self._write(began_at_s, finished=False)
            if self._clock.monotonic_s() >= ends_at_s:
                break
        runner.quit()
        self._write(began_at_s, finished=True)

    def _kinds(self) -> list[type[User]]:
        found = read_shop(self._options.dsn)
        rate, settle_rate = self._options.rate, self._options.settle_rate
        kinds: list[type[User]] = [
            shop.buyers(found, self._conflicts, rate=rate, users=_users(rate))
        ]
        if settle_rate and found.open_orders:
            users = _users(settle_rate)
            kinds.append(
                shop.returners(found, self._conflicts, rate=settle_rate, users=users)
            )
        return kinds

    def _write(self, began_at_s: float, *, finished: bool) -> None:
        elapsed_s = round(self._clock.monotonic_s() - began_at_s, 3)
        report.write(self._report(elapsed_s, finished=finished), self._options.report)

    def _report(self, elapsed_s: float, *, finished: bool) -> report.LoadReport:
        stats = self._environment.stats
        done = {
            name: stats.get(name, "POST").num_requests
            - stats.get(name, "POST").num_failures
            for name in (shop.CHECKOUT, shop.PAY, shop.CANCEL)
        }
        checkout = stats.get(shop.CHECKOUT, "POST")
        times_ms = [
            time_ms
            for time_ms, count in checkout.response_times.items()
            for _ in range(count)
        ]
        return report.LoadReport(
            checkouts=done[shop.CHECKOUT],
            payments=done[shop.PAY] - self._conflicts[shop.PAY],
            cancellations=done[shop.CANCEL] - self._conflicts[shop.CANCEL],
            conflicts=self._conflicts.total(),
            failures=stats.total.num_failures,
            reasons={
                f"{failure.name}: {failure.error}": failure.occurrences
                for failure in stats.errors.values()
            },
            checkout=Latency.of(times_ms),
            elapsed_s=elapsed_s,
            finished=finished,
        )


def _users(rate: float) -> int:
    return max(_MIN_USERS, round(rate * _USERS_PER_RATE))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="towpath.loadtests.run", description=__doc__)
    parser.add_argument("--host", required=True, help="address of the orders service")
    parser.add_argument("--dsn", required=True, help="the shop's database")
    parser.add_argument("--rate", type=float, default=50.0, help="checkouts a second")
    parser.add_argument(
        "--settle-rate", type=float, default=0.0, help="old orders settled a second"
    )
    parser.add_argument("--duration", type=float, help="seconds; default: until told")
    parser.add_argument("--report", type=Path, required=True, help="file to write")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
