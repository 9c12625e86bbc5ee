"""
A process that writes the shop's rows with SQL at a given rate, and samples their lag.

It feeds relay and sinks without any service. Each batch is one transaction of several
statements, and is due at a time that follows from the rate alone; a late batch does
not delay later ones. The process writes to the tables that every sink has: it updates
customers and products, and adds and updates payments. The load's sampler inserts
payments instead of orders, and reads them from each target.

The module is run with ``python -m`` and takes one argument, a JSON object::

    {"dsn", "rate_per_s", "progress", "targets", "samples": {"interval_s", ...}}

After SIGTERM, it waits for the last samples and ends. Once a second it replaces the
file that ``progress`` names: ``load`` has the committed rows as ``checkouts``, and
``lag`` is the sampler's report.
"""

import itertools
import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any, Final

import psycopg

from towpath.loadtests.load.sampler import (
    LineWriter,
    SampleOptions,
    Sampler,
    probes_of,
)
from towpath.loadtests.load.shapes import Schedule
from towpath.schemas.clock import Clock, SystemClock

# The rows of a batch; 5,000 rows per second are twenty batches per second.
BATCH_ROWS: Final = 250
_WRITE_EVERY_S: Final = 1.0
# A statement that takes longer, for instance in a lock queue, fails its batch.
_OPTIONS: Final = "-c statement_timeout=10000 -c application_name=row_writer"

# Order ids of payments without an order; the sampler's ids are above those of batches.
_FIRST_PAYMENT: Final = 10**12
_FIRST_SAMPLE: Final = 2 * 10**12

_CUSTOMERS: Final = """
update shop.customers set name = 'Customer ' || %(mark)s::text, updated_at = now()
where id = any(%(ids)s)
"""
_PRODUCTS: Final = """
update inventory.products
   set unit_price = 1 + %(mark)s::bigint %% 9999, version = version + 1,
       updated_at = now()
 where id = any(%(ids)s)
"""
_NEW_PAYMENTS: Final = """
insert into payments.payments
  (order_id, amount, currency, method, status, version, updated_at)
select id, 1 + id %% 9999, 'EUR', 'card', 'requested', 1, now()
  from unnest(%(ids)s::bigint[]) id
"""
_PAYMENTS: Final = """
update payments.payments
   set status = 'declined', reason = 'row ' || %(mark)s::text, version = version + 1,
       updated_at = now()
 where order_id = any(%(ids)s)
"""


@dataclass(frozen=True, slots=True)
class Shares:
    """The rows of a batch by statement; they add up to a whole batch."""

    customers: int
    products: int
    new_payments: int
    payments: int

    @classmethod
    def of(cls, rows: int) -> "Shares":
        """Divide a batch: half customers, a tenth products, and the rest payments."""
        customers, products = rows // 2, rows // 10
        new = rows // 5
        return cls(customers, products, new, rows - customers - products - new)


class RowWriter:
    """Writes batches over one connection."""

    def __init__(
        self, connection: psycopg.Connection[tuple[Any, ...]], random: Random
    ) -> None:
        """Read the keys of the rows that will be updated."""
        self._connection = connection
        self._random = random
        self._customers = self._keys("shop.customers")
        self._products = self._keys("inventory.products")
        newest = connection.execute(
            "select max(order_id) from payments.payments where order_id < %s",
            (_FIRST_SAMPLE,),
        ).fetchone()
        connection.commit()
        first = max(_FIRST_PAYMENT, (newest[0] or 0) + 1 if newest else 0)
        self._own = first
        self._next = itertools.count(first)
        self._last = first

    def _keys(self, table: str) -> list[Any]:
        query = f"select id from {table}"  # noqa: S608 - a name of this module
        return [row[0] for row in self._connection.execute(query.encode())]

    def write(self, rows: int) -> int:
        """
        Write a batch in one transaction; return the number of rows that it changed.

        Raises:
            psycopg.Error: The batch was not committed.
        """
        parts = Shares.of(rows)
        new = list(itertools.islice(self._next, parts.new_payments))
        self._last = new[-1]
        statements = (
            (_CUSTOMERS, self._random.sample(self._customers, parts.customers)),
            (_PRODUCTS, self._random.sample(self._products, parts.products)),
            (_NEW_PAYMENTS, new),
            (_PAYMENTS, self._own_payments(parts.payments)),
        )
        changed = 0
        with self._connection.transaction():
            for statement, ids in statements:
                facts = {"ids": ids, "mark": self._last}
                changed += self._connection.execute(statement.encode(), facts).rowcount
        return changed

    def _own_payments(self, rows: int) -> list[int]:
        span = range(self._own, self._last + 1)
        return self._random.sample(span, min(rows, len(span)))


class LastReport(LineWriter):
    """Keeps the sampler's last report."""

    def __init__(self) -> None:
        super().__init__()
        self.report: Mapping[str, Any] = {}

    def write(self, **document: object) -> None:
        report = document.get("report")
        if isinstance(report, dict):
            self.report = report


class PaymentSamples:
    """Inserts one payment at a time, instead of the sampler's orders."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True, options=_OPTIONS)
        newest = self._connection.execute(
            "select coalesce(max(order_id) + 1, 0) from payments.payments"
        ).fetchone()
        first = max(_FIRST_SAMPLE, newest[0] if newest else 0)
        self._next = itertools.count(first)

    def __call__(self) -> int:
        """Insert a payment; return its order id after the commit."""
        number = next(self._next)
        self._connection.execute(_NEW_PAYMENTS.encode(), {"ids": [number]})
        return number


@dataclass(slots=True)
class Counts:
    """The counts of a run."""

    rows: int = 0
    failures: int = 0
    late_s: float = 0.0

    def as_report(self, elapsed_s: float, *, finished: bool) -> dict[str, Any]:
        """Return the counts under the names that the load's report uses."""
        return {
            "checkouts": self.rows,
            "failures": self.failures,
            "not_started": 0,
            "late_s": round(self.late_s, 3),
            "elapsed_s": round(elapsed_s, 3),
            "finished": finished,
        }


class RowLoad:
    """Writes batches until it is stopped, and reports its progress once a second."""

    def __init__(self, dsn: str, rate_per_s: float, progress: Path) -> None:
        self.stop = Event()
        self._dsn = dsn
        self._interval_s = BATCH_ROWS / rate_per_s
        self._progress = progress
        self._clock: Clock = SystemClock()
        self._began_at_s = self._clock.monotonic_s()
        self._counts = Counts()

    def run(self, sampler: Sampler, samples: LastReport) -> None:
        """Write until stopped; then wait for the sampler's last samples."""
        sampling = Thread(target=sampler.run, name="sampler", daemon=True)
        sampling.start()
        with psycopg.connect(self._dsn, options=_OPTIONS) as connection:
            self._write(RowWriter(connection, Random()), samples)
        sampler.stop.set()
        sampling.join()
        self._report(samples, finished=True)

    def _write(self, writer: RowWriter, samples: LastReport) -> None:
        schedule = Schedule(self._clock.monotonic_s())
        due_at_s = schedule.due_s
        while True:
            now_s = self._clock.monotonic_s()
            if self.stop.wait(schedule.next_in_s(now_s, self._interval_s)):
                return
            self._batch(writer)
            now_s = self._clock.monotonic_s()
            self._counts.late_s = max(self._counts.late_s, schedule.lateness_s(now_s))
            if now_s >= due_at_s:
                due_at_s = now_s + _WRITE_EVERY_S
                self._report(samples, finished=False)

    def _batch(self, writer: RowWriter) -> None:
        try:
            self._counts.rows += writer.write(BATCH_ROWS)
        except psycopg.errors.OperationalError:
            self._counts.failures += 1

    def _report(self, samples: LastReport, *, finished: bool) -> None:
        elapsed_s = self._clock.monotonic_s() - self._began_at_s
        load = self._counts.as_report(elapsed_s, finished=finished)
        written = self._progress.with_name(f"{self._progress.name}.new")
        document = {"load": load, "lag": dict(samples.report)}
        written.write_text(json.dumps(document), encoding="utf-8")
        written.replace(self._progress)


def main(config: Mapping[str, Any]) -> int:
    """Run the writer's process until SIGTERM or SIGINT."""
    probes = probes_of(config["targets"])
    times = SampleOptions(**config["samples"])
    samples = LastReport()
    insert = PaymentSamples(config["dsn"])
    sampler = Sampler(insert, times, probes, SystemClock(), samples)
    load = RowLoad(config["dsn"], config["rate_per_s"], Path(config["progress"]))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: load.stop.set())
    load.run(sampler, samples)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
