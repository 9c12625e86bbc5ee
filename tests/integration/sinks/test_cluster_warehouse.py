"""A warehouse that a cluster's executors fill while processes are killed."""

import json
import signal
import uuid
from pathlib import Path

import pytest

from support.driver_process import PATIENCE_S, Feed, Place, stored_rows
from towpath.schemas import headers as names
from towpath.sinks.kinds import reader_of

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(600)]

RUNNER = Path(__file__).parents[2] / "faults" / "driver_with_fault.py"
# The points at which the driver dies, one after another. The first death leaves an
# empty table, which the second run fills.
POINTS = ("filled", "filling+merging+merged", "committed")
_SPARK_SETTINGS = '[spark.settings]\n"spark.sql.shuffle.partitions" = "2"\n'
KILLED = ("executors killed while filling", "executors killed while merging")
SINK = "warehouse"


class Shop(Place):
    """A table's records and events in Kafka, and the warehouse that reads both."""

    def __init__(self, stack, name, folder):
        super().__init__(stack, name, folder)
        options = {"max_batch_records": 1500, "spread_from_records": 100}
        block = self.sink(
            *(SINK, "warehouse", stack.dsn("warehouse"), f"{name}.orders"),
            driver="cluster",
            folder=str(folder / "lake"),
            **options,
        )
        route = {"topic": self.events, "name": f"{name}.events", "kind": "event_log"}
        lines = (f"{key} = {json.dumps(text)}" for key, text in route.items())
        self.write_config(
            _SPARK_SETTINGS, block, "\n".join(["[[sink.route]]", *lines, ""])
        )
        self.feed = EventFeed(self)

    @property
    def events(self):
        """The topic of the events."""
        return f"{self.name}.event.order"

    def lake(self):
        """Read the keys, the rows and the event ids, including repeated ones."""
        sink = self.settings.sink_named(SINK)
        rows, events = (
            self.stored(route.name, reader_of(sink, self.settings))
            for route in sink.route
        )
        keys = sorted(int(row.key) for row in rows)
        return keys, stored_rows(rows), [event.key for event in events]


class EventFeed(Feed):
    """Produces changes and as many events, half of the events twice."""

    def __init__(self, place):
        super().__init__(place)
        self._create(place.events)
        self.ids = []

    def work(self, count, *, keys, seed):
        """Produce a history of changes, and events."""
        for number in range(len(self.ids), len(self.ids) + count):
            self.ids.append(str(uuid.UUID(int=number)))
            for _ in range(1 + number % 2):
                self._send_event(number)
        super().work(count, keys=keys, seed=seed)

    def put(self, key, operation, row, *, unchanged=(), **options):
        """Produce a whole row, because only the driver writes partial ones."""
        whole = {**row, "note": "kept"} if unchanged else row
        super().put(key, operation, whole, **options)

    def _send_event(self, number):
        texts = {
            names.EVENT_ID: self.ids[number],
            names.EVENT_TYPE: "OrderPlaced",
            names.AGGREGATE_TYPE: "order",
            names.OCCURRED_AT: f"2026-01-01T00:{number % 60:02}:00.000000Z",
            names.POSITION: f"{number * 8:016x}.0000000000",
        }
        self.send(self._place.events, number, '{"n": 1}', texts)


@pytest.fixture
def shop(stack, unique, tmp_path):
    """Provide a shop whose catalog is running."""
    stack.up("kafka", "postgres")
    return Shop(stack, unique, tmp_path)


def run_until_killed(cluster, shop, point):
    """Run the driver until it kills itself; return whether it did."""
    program = (RUNNER, point, SINK)
    submitted = cluster.submit(shop.config, "cluster", program)
    code = submitted.wait(PATIENCE_S)
    cluster.kill(submitted)
    # spark-submit returns the exit code as a shell does: 128 plus the signal.
    return code == 128 + signal.SIGKILL


def test_a_warehouse_converges_whatever_is_killed_during_its_statements(cluster, shop):
    """
    Executors die while they write files or merge, the driver before and after commits.

    No row and no event occurs twice, and no change of a batch is left to the driver.
    """
    died = []
    for seed, point in enumerate(POINTS, start=1):
        shop.feed.work(900, keys=400 * seed, seed=seed)
        died.append(run_until_killed(cluster, shop, point))
    again = cluster.submit(shop.config, "cluster")
    shop.wait_applied(SINK)
    progress = shop.progress(SINK)
    cluster.python_of(again).send_signal(signal.SIGTERM)

    assert 0 == again.wait(90), cluster.log("driver")[-3000:]
    assert [True] * len(POINTS) == died, cluster.log("driver")[-3000:]
    assert [text for text in KILLED if text not in cluster.log("driver")] == []
    keys, rows, events = shop.lake()
    assert (sorted(shop.feed.rows), shop.feed.rows) == (keys, rows)
    assert sorted(shop.feed.ids) == events
    assert 0 == progress.left
