"""
The sampler: measures the time from a commit to the first read in each target.

It is a separate process, so that a scan of the warehouse delays no Locust request.
It places orders through the API at an interval, and records the time of each response,
which follows the commit. One thread per target polls for the orders that it has not
seen yet, through the target's own API. Redis shows a row immediately. OpenSearch shows
a row after a refresh, so the search API is used, not the get API. A warehouse table is
scanned with a filter, at long intervals because a scan is expensive.
``towpath.loadtests.load.lag`` starts the sampler and exchanges JSON lines with it::

    in    {"host", "customers", "interval_s", "after_s", "for_s", "lost_after_s",
          "targets"}
    out   {"ready": true}, or {"error", "remedy"}, and then ends
    in    "start"; later "stop": place no more orders, await the last samples
    out   {"placed": ms}, {"failed": [name, reason]}, {"seen": [target, ms]},
          {"lost": target}, {"report": {...}}; finished is true in the last report

If the input ends without "stop", the parent process has ended, and the sampler ends
immediately, too.
"""

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from threading import Event, Lock, Thread
from typing import Any, Final, Protocol
from uuid import uuid4

import redis
from opensearchpy import OpenSearch
from opensearchpy.exceptions import NotFoundError
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from towpath.loadtests.errors import TargetUnavailableError
from towpath.loadtests.load.samples import (
    CHECKOUT,
    LAST_SAMPLES_TIMEOUT_S,
    LOST_AFTER_S,
    START,
    STOP,
    LatencyReport,
    Samples,
)
from towpath.loadtests.load.shop import basket, session_with
from towpath.schemas.clock import Clock, Deadline, SystemClock

_TIMEOUT_S: Final = 10.0
# The default of index.max_result_window: an index refuses a search for more hits.
_MAX_HITS: Final = 10_000


class Probe(Protocol):
    """One target, and the interval at which it is polled."""

    interval_s: float

    def check(self) -> None:
        """
        Check once that orders can be read from the target.

        Raises:
            TargetUnavailableError: The target answers, but has no index or table.
            Exception: One of the client library's: the target does not answer.
        """

    def find(self, order_ids: Sequence[int]) -> set[int]:
        """Return the orders that a reader finds now."""


class CacheProbe:
    """Reads the hashes of orders, all in one round trip."""

    # A poll costs one round trip; a shorter interval would measure the sampler itself.
    interval_s = 0.01

    def __init__(self, url: str, key: str, column: str = "id") -> None:
        self._client = redis.Redis.from_url(
            url, socket_timeout=_TIMEOUT_S, decode_responses=True
        )
        self._key = key
        self._column = column

    def check(self) -> None:
        # The user's permissions are unknown, so run the same query as the later polls.
        self.find((0,))

    def find(self, order_ids: Sequence[int]) -> set[int]:
        pipeline = self._client.pipeline(transaction=False)
        for order_id in order_ids:
            # Any other braces are part of the key, such as those of a hash tag.
            pipeline.hget(self._key.replace("{}", str(order_id)), self._column)
        values = pipeline.execute()
        return {
            order_id
            for order_id, value in zip(order_ids, values, strict=True)
            if value is not None
        }


class SearchProbe:
    """Searches for documents by their id."""

    # A tenth of the index's usual refresh interval.
    interval_s = 0.05

    def __init__(self, url: str, index: str) -> None:
        self._client = OpenSearch(url, timeout=_TIMEOUT_S, max_retries=0)
        self._index = index

    def check(self) -> None:
        try:
            self._client.search(index=self._index, body={"size": 0})
        except NotFoundError as error:
            message = f"OpenSearch has no index {self._index!r}"
            raise TargetUnavailableError(message) from error

    def find(self, order_ids: Sequence[int]) -> set[int]:
        wanted = [str(order_id) for order_id in order_ids]
        found: set[int] = set()
        for begin in range(0, len(wanted), _MAX_HITS):
            some = wanted[begin : begin + _MAX_HITS]
            query = {
                "query": {"ids": {"values": some}},
                "size": len(some),
                "_source": False,
            }
            try:
                response = self._client.search(index=self._index, body=query)
            except NotFoundError:
                return set()
            found.update(int(hit["_id"]) for hit in response["hits"]["hits"])
        return found


class WarehouseProbe:
    """Scans an Iceberg table for rows by their id."""

    # A scan takes a few hundred milliseconds of a core that the load needs too.
    interval_s = 3.0

    def __init__(self, catalog: dict[str, str], table: str, column: str = "id") -> None:
        self._column = column
        self._catalog_name = catalog.pop("name", "lake")
        self._properties: dict[str, str | None] = dict(catalog)
        self._name = table
        self._table: Any = None

    def check(self) -> None:
        try:
            self._fresh()
        except NoSuchTableError as error:
            message = f"the warehouse has no table {self._name!r}"
            raise TargetUnavailableError(message) from error

    def find(self, order_ids: Sequence[int]) -> set[int]:
        try:
            table = self._fresh()
        except NoSuchTableError:
            return set()
        wanted = f"{self._column} in ({', '.join(map(str, order_ids))})"
        rows = table.scan(row_filter=wanted, selected_fields=(self._column,))
        return set(rows.to_arrow().column(self._column).to_pylist())

    def _fresh(self) -> Any:  # noqa: ANN401 - the client's object
        if self._table is None:
            catalog = load_catalog(self._catalog_name, **self._properties)
            self._table = catalog.load_table(self._name)
        return self._table.refresh()


_REPORT_INTERVAL_S: Final = 1.0
# Some clients put a whole page into their error message.
_SHOWN_CHARACTERS: Final = 200
_RESPONSE_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """
    The timing of the sampler's orders.

    With ``for_s`` 0, orders are placed until the sampler is stopped.
    """

    interval_s: float
    after_s: float = 0.0
    for_s: float = 0.0
    lost_after_s: float = LOST_AFTER_S


# Places an order, and returns its number after the commit.
PlaceOrder = Callable[[], int]


class ShopOrders:
    """Places orders through the API."""

    def __init__(self, host: str, customers: Sequence[str]) -> None:
        self._host = host
        self._customers = customers
        self._session = session_with(host)
        self._random = Random()

    def __call__(self) -> int:
        """
        Place an order, and return its number.

        Raises:
            requests.RequestException: The order was not placed.
        """
        response = self._session.post(
            f"{self._host}/orders",
            json=basket(self._random, self._customers),
            headers={"Idempotency-Key": str(uuid4())},
            timeout=_RESPONSE_TIMEOUT_S,
        )
        response.raise_for_status()
        return int(response.json()["order_id"])


class LineWriter:
    """Writes JSON lines from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()

    def write(self, **document: object) -> None:
        """Write a document as one JSON line."""
        with self._lock:
            sys.stdout.write(json.dumps(document) + "\n")
            sys.stdout.flush()


class TargetWatch:
    """One target's samples and the thread that polls for them."""

    def __init__(self, name: str, probe: Probe, sampler: "Sampler") -> None:
        self.name = name
        self.lock = Lock()
        self.samples = Samples()
        self.thread = Thread(target=self._run, name=name, daemon=True)
        self._probe = probe
        self._sampler = sampler

    def expire(self, now_s: float, after_s: float) -> None:
        """Count and report samples older than ``after_s`` as lost."""
        with self.lock:
            lost = self.samples.expire(now_s, after_s)
        for _ in range(lost):
            self._sampler.writer.write(lost=self.name)

    def _run(self) -> None:
        while not self._sampler.closed.wait(self._probe.interval_s):
            with self.lock:
                awaited = self.samples.awaited()
            found = self._find(awaited) if awaited else set()
            now_s = self._sampler.clock.monotonic_s()
            with self.lock:
                took_ms = self.samples.seen(found, now_s)
            for time_ms in took_ms:
                self._sampler.writer.write(seen=[self.name, time_ms])
            self.expire(now_s, self._sampler.orders.lost_after_s)

    def _find(self, awaited: tuple[int, ...]) -> set[int]:
        try:
            return self._probe.find(awaited)
        except Exception as error:  # noqa: BLE001 - any driver's: counted and retried
            self._sampler.fail(self.name, type(error).__name__)
            return set()


class Sampler:
    """Places orders, and reports the samples of the watches."""

    def __init__(
        self,
        place: PlaceOrder,
        orders: SampleOptions,
        probes: dict[str, Probe],
        clock: Clock,
        writer: LineWriter,
    ) -> None:
        self.clock = clock
        self.writer = writer
        self.stop = Event()
        self.closed = Event()
        self.orders = orders
        self._place_order = place
        self._errors: Counter[str] = Counter()
        self._placed = 0
        self._watches = [
            TargetWatch(name, probe, self) for name, probe in probes.items()
        ]

    def run(self) -> None:
        """Sample until stopped, then wait for the last samples."""
        for watch in self._watches:
            watch.thread.start()
        if not self.stop.wait(self.orders.after_s):
            self._sample()
        self._wait_for_last()
        self.closed.set()
        for watch in self._watches:
            watch.thread.join()
            # A sample that never ended counts as lost.
            watch.expire(self.clock.monotonic_s(), after_s=0.0)
        self._report(finished=True)

    def fail(self, name: str, reason: str) -> None:
        """Count and report a checkout or a poll that failed."""
        self._errors[f"{name}: {reason}"] += 1
        self.writer.write(failed=[name, reason])

    def _sample(self) -> None:
        due_at_s = began_at_s = self.clock.monotonic_s()
        while not self.stop.wait(self.orders.interval_s):
            now_s = self.clock.monotonic_s()
            if self.orders.for_s and now_s - began_at_s > self.orders.for_s:
                return
            self._place()
            if now_s >= due_at_s:
                due_at_s = now_s + _REPORT_INTERVAL_S
                self._report(finished=False)

    def _place(self) -> None:
        sent_at_s = self.clock.monotonic_s()
        try:
            order_id = self._place_order()
            responded_at_s = self.clock.monotonic_s()
        except Exception as error:  # noqa: BLE001 - any driver's: counted
            self.fail(CHECKOUT, type(error).__name__)
            return
        self._placed += 1
        self.writer.write(placed=(responded_at_s - sent_at_s) * 1000)
        for watch in self._watches:
            with watch.lock:
                watch.samples.await_order(order_id, responded_at_s)

    def _wait_for_last(self) -> None:
        deadline = Deadline(self.clock, LAST_SAMPLES_TIMEOUT_S)
        while self._awaited() and not deadline.passed():
            self.clock.wait(0.1)

    def _awaited(self) -> int:
        return sum(len(watch.samples.awaited()) for watch in self._watches)

    def _report(self, *, finished: bool) -> None:
        sinks = {}
        for watch in self._watches:
            with watch.lock:
                sinks[watch.name] = watch.samples.report()
        seen = LatencyReport(
            placed=self._placed,
            sinks=sinks,
            errors=dict(self._errors),
            finished=finished,
        )
        self.writer.write(report=dataclasses.asdict(seen))


def probes_of(targets: dict[str, dict[str, Any]]) -> dict[str, Probe]:
    """
    Create a probe for each target, and check it once.

    Raises:
        TargetUnavailableError: A target cannot be sampled.
    """
    kinds = {"cache": CacheProbe, "search": SearchProbe, "warehouse": WarehouseProbe}
    probes: dict[str, Probe] = {}
    for name, arguments in targets.items():
        try:
            probes[name] = kinds[name](**arguments)
            probes[name].check()
        except TargetUnavailableError:
            raise
        except Exception as error:
            first = str(error).strip().partition("\n")[0][:_SHOWN_CHARACTERS]
            reason = f"{type(error).__name__}: {first.rstrip('.')}"
            message = f"the {name} cannot be read: {reason}"
            raise TargetUnavailableError(message) from error
    return probes


def main() -> int:
    """Run the sampler, controlled by the lines of its input."""
    writer = LineWriter()
    config = json.loads(sys.stdin.readline())
    try:
        probes = probes_of(config.pop("targets"))
    except TargetUnavailableError as error:
        writer.write(error=str(error), remedy=error.remedy)
        return error.exit_code
    writer.write(ready=True)
    if sys.stdin.readline().strip() != START:
        return 0
    place = ShopOrders(config.pop("host"), config.pop("customers"))
    sampler = Sampler(place, SampleOptions(**config), probes, SystemClock(), writer)
    running = Thread(target=sampler.run, name="sampler", daemon=True)
    running.start()
    if sys.stdin.readline().strip() == STOP:
        sampler.stop.set()
        running.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
