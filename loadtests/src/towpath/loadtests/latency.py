"""
The sampler: how long from a commit until each target shows the row to its readers.

``python -m towpath.loadtests.latency --host URL --dsn DSN --targets JSON --report F``
places an order through the API every so often and takes the time when the answer came,
which is after the commit. One thread per target asks for the orders it has not seen
yet. Told to stop, it places no more and waits for what is still awaited, with a
deadline.

``--targets`` is a JSON object: ``{"cache": {"url", "key"}, "search": {"url", "index"},
"warehouse": {"catalog": {...}, "table"}}``; each is optional.
"""

import argparse
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from random import Random
from threading import Event, Lock, Thread
from typing import Final
from uuid import uuid4

import requests

from towpath.loadtests import report
from towpath.loadtests.basket import basket
from towpath.loadtests.probe import CacheProbe, Probe, SearchProbe, WarehouseProbe
from towpath.loadtests.sample import LatencyReport, Samples, SinkReport
from towpath.loadtests.source import read_shop
from towpath.schemas.clock import Clock, Deadline, SystemClock

_REPORT_INTERVAL_S: Final = 1.0
_ANSWER_TIMEOUT_S: Final = 30.0

# The warehouse commits every few seconds; twice that and a scan are well below this.
_LAST_SAMPLES_TIMEOUT_S: Final = 60.0


class Watch:
    """One target's samples and the thread that asks for them."""

    def __init__(self, name: str, probe: Probe, sampler: "Sampler") -> None:
        self.name = name
        self._probe = probe
        self._sampler = sampler
        self._samples = Samples()
        self._lock = Lock()
        self.thread = Thread(target=self._run, name=name, daemon=True)

    def await_order(self, order_id: int, committed_at_s: float) -> None:
        """Begin a sample."""
        with self._lock:
            self._samples.await_order(order_id, committed_at_s)

    def report(self) -> SinkReport:
        """Summarise what was seen until now."""
        with self._lock:
            return self._samples.report()

    def _run(self) -> None:
        while not self._sampler.closed.wait(self._probe.interval_s):
            with self._lock:
                awaited = self._samples.awaited()
            found = self._find(awaited) if awaited else set()
            now_s = self._sampler.clock.monotonic_s()
            with self._lock:
                self._samples.seen(found, now_s)
                self._samples.expire(now_s)

    def _find(self, awaited: tuple[int, ...]) -> set[int]:
        try:
            return self._probe.find(awaited)
        except Exception as error:  # noqa: BLE001 - any driver's: counted, tried again
            self._sampler.count_error(f"{self.name}: {type(error).__name__}")
            return set()


class Sampler:
    """Places orders, and keeps what the watches saw."""

    def __init__(self, options: argparse.Namespace, clock: Clock) -> None:
        self.clock = clock
        self.stop = Event()
        self.closed = Event()
        self._options = options
        self._session = requests.Session()
        self._random = Random()
        self._customers = read_shop(options.dsn).customers
        self._errors: Counter[str] = Counter()
        self._placed = 0
        probes = probes_of(json.loads(options.targets))
        self._watches = [Watch(name, probe, self) for name, probe in probes.items()]

    def run(self) -> None:
        """Sample until told to stop, then wait for what is awaited."""
        for watch in self._watches:
            watch.thread.start()
        due_at_s = self.clock.monotonic_s()
        while not self.stop.wait(self._options.interval):
            self._place()
            if self.clock.monotonic_s() >= due_at_s:
                due_at_s = self.clock.monotonic_s() + _REPORT_INTERVAL_S
                self._write(finished=False)
        deadline = Deadline(self.clock, _LAST_SAMPLES_TIMEOUT_S)
        while self._awaited() and not deadline.passed():
            self.clock.wait(0.1)
        self.closed.set()
        self._write(finished=True)

    def count_error(self, reason: str) -> None:
        """Remember a checkout or poll that failed."""
        self._errors[reason] += 1

    def _place(self) -> None:
        try:
            answer = self._session.post(
                f"{self._options.host}/orders",
                json=basket(self._random, self._customers),
                headers={"Idempotency-Key": str(uuid4())},
                timeout=_ANSWER_TIMEOUT_S,
            )
            committed_at_s = self.clock.monotonic_s()
            answer.raise_for_status()
        except requests.RequestException as error:
            self.count_error(f"checkout: {type(error).__name__}")
            return
        self._placed += 1
        order_id = int(answer.json()["order_id"])
        for watch in self._watches:
            watch.await_order(order_id, committed_at_s)

    def _awaited(self) -> int:
        return sum(watch.report().awaited for watch in self._watches)

    def _write(self, *, finished: bool) -> None:
        sinks = {watch.name: watch.report() for watch in self._watches}
        seen = LatencyReport(
            placed=self._placed,
            sinks=sinks,
            errors=dict(self._errors),
            finished=finished,
        )
        report.write(seen, self._options.report)


def probes_of(targets: dict[str, dict[str, object]]) -> dict[str, Probe]:
    """Make a probe of each target that is described."""
    kinds = {"cache": CacheProbe, "search": SearchProbe, "warehouse": WarehouseProbe}
    return {name: kinds[name](**facts) for name, facts in targets.items()}


def main(arguments: list[str]) -> int:
    """Run the sampler; see the module."""
    sampler = Sampler(_options(arguments), SystemClock())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sampler.stop.set())
    sampler.run()
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="towpath.loadtests.latency", description=__doc__
    )
    parser.add_argument("--host", required=True, help="address of the orders service")
    parser.add_argument("--dsn", required=True, help="the shop's database")
    parser.add_argument("--targets", required=True, help="JSON; see the module")
    parser.add_argument("--interval", type=float, default=0.25, help="seconds")
    parser.add_argument("--report", type=Path, required=True, help="file to write")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
