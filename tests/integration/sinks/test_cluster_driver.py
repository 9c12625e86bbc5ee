"""
Sinks on a standalone Spark cluster: a submitted driver, spread batches, a lost worker.
"""

import signal

import pytest

from support.driver_process import UNREADABLE, Feed, Place

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(600)]

ALL = ("cache", "postgres", "search", "warehouse")

# Many batches are large enough for the executors.
SPREAD = {
    "max_batch_records": 1500,
    "write_from": "executors",
    "spread_from_records": 300,
}


# Executors end when they are idle, and start when there is work.
DYNAMIC = {
    "dynamicAllocation_enabled": "true",
    "dynamicAllocation_shuffleTracking_enabled": "true",
    "dynamicAllocation_shuffleTracking_timeout": "2s",
    "dynamicAllocation_minExecutors": "0",
    "dynamicAllocation_executorIdleTimeout": "2s",
}
PARKED = 5
ABSENT = 777


class Repeated(Feed):
    """Sends a tenth of its records twice, and can send the first ones again."""

    def __init__(self, place):
        self._sent = []
        super().__init__(place)

    def replay(self):
        """Produce whole rows and deletes again, all of which are stale by now."""
        for record in self._sent[:1000]:
            if "unchanged" not in record[3]:
                super().send(*record)
        self._producer.flush()

    def send(self, *record):
        """Produce a record, and every tenth one twice."""
        super().send(*record)
        if record[2] == UNREADABLE:
            return
        self._sent.append(record)
        if len(self._sent) % 10 == 0:
            super().send(*record)


class Shop(Place):
    """A table's records in Kafka, their expected rows, and the sinks that read them."""

    def __init__(self, stack, name, folder, target):
        super().__init__(stack, name, folder)
        spark_settings = '[spark.settings]\n"spark.sql.shuffle.partitions" = "2"\n'
        self.write_config(
            spark_settings,
            self._sink("cache", stack.redis_url, **SPREAD),
            self._sink("postgres", target, **SPREAD),
            self._sink("search", stack.opensearch_url, **SPREAD),
            self._sink(
                *("warehouse", stack.dsn("warehouse")),
                trigger_ms=2000,
                folder=str(folder / "lake"),
                **SPREAD,
            ),
        )
        self._capture()
        self.feed = Repeated(self)

    def _capture(self):
        """Add the table to the captured tables, so that its rows can be requested."""
        text = self.config.read_text(encoding="utf-8")
        source = "[[source]]\n"
        captured = f'{source}tables = ["shop.orders"]\n'
        self.config.write_text(text.replace(source, captured), encoding="utf-8")

    def _sink(self, kind, url, **options):
        route = f"{self.name}.{kind}"
        return self.sink(kind, kind, url, route, driver="cluster", **options)

    def catch_up(self):
        """Wait until all sinks have applied all records."""
        for name in ALL:
            self.wait_applied(name)

    def answer(self, *keys):
        """Produce rows as a snapshot would, and wait until all sinks have them."""
        for key in keys:
            self.feed.put(key, "r", {"status": "placed", "note": "read"})
        self.catch_up()


@pytest.fixture
def shop(stack, unique, database, tmp_path):
    """Provide a shop whose targets are running."""
    stack.up("kafka", "redis", "opensearch", "postgres")
    return Shop(stack, unique, tmp_path, database)


def test_a_submitted_driver_survives_a_lost_worker_and_converges(cluster, shop):
    """
    A worker is killed while executors write large batches with the guard.

    Duplicates, a replay from the start and an unreadable record change nothing (B41).
    """
    shop.feed.work(1500, keys=200, seed=7)
    submitted = cluster.submit(shop.config, "cluster", **DYNAMIC)
    cluster.wait_for(lambda: all(shop.progress(name).rows for name in ALL), submitted)
    shop.feed.work(2500, keys=200, seed=8)
    spread = "writes large batches on the executors"
    cluster.wait_for(lambda: cluster.log("driver").count(spread) == len(ALL), submitted)
    shop.feed.truncate()
    shop.feed.work(1000, keys=200, seed=9)
    # A parked key, and a key whose row must be refetched; both have later changes.
    shop.feed.send_unreadable(PARKED, parks=True)
    shop.feed.put(ABSENT, "u", {"status": "paid"}, unchanged=["note"])
    shop.catch_up()
    cluster.wait_for(
        lambda: not any(map(cluster.executors, cluster.workers)), submitted
    )
    shop.feed.work(1500, keys=200, seed=10)
    cluster.wait_for(lambda: any(map(cluster.executors, cluster.workers)), submitted)
    cluster.kill(cluster.workers[0])
    # No other record has this key; without a position, this record parks nothing.
    shop.feed.send_unreadable(1_000_000)
    shop.feed.work(1000, keys=200, seed=11)
    shop.catch_up()
    parked = [shop.progress(name).parked for name in ALL]
    shop.answer(PARKED, ABSENT)
    shop.feed.replay()
    shop.catch_up()
    found = [shop.progress(name) for name in ALL]
    cluster.python_of(submitted).send_signal(signal.SIGTERM)

    assert 0 == submitted.wait(60), cluster.log("driver")[-3000:]
    assert [shop.feed.rows] * len(ALL) == [shop.contents(name) for name in ALL]
    assert ([1] * len(ALL), [(0, 0)] * len(ALL)) == (
        parked,
        [(o.parked, o.pending_refetches) for o in found],
    )
    # Only records of the affected keys are left to the driver.
    assert all(0 < one.left < one.records / 50 for one in found), found
