"""Sinks on a standalone Spark cluster that loses one process after another."""

import shutil
import signal

import pytest

from support.driver_process import Feed, Place
from towpath.sinks.kafka.client import Topics

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(600)]

SINKS = ("cache", "search")
LOST = "heartbeat"
BATCH = 600


class Shop(Place):
    """A table's records in Kafka, and two sinks that executors write to."""

    def __init__(self, stack, name, folder):
        super().__init__(stack, name, folder)
        # A suspended executor counts as lost after a few seconds.
        spark_settings = (
            "[sinks]\nstate_copies = true\n"
            "[spark.settings]\n"
            '"spark.network.timeout" = "6s"\n'
            '"spark.network.timeoutInterval" = "2s"\n'
            '"spark.executor.heartbeatInterval" = "1s"\n'
            '"spark.log.level" = "WARN"\n'
        )
        self.write_config(
            spark_settings,
            self._sink("cache", stack.redis_url),
            self._sink("search", stack.opensearch_url),
        )
        self.feed = Feed(self)

    def _sink(self, kind, url):
        options = {"max_batch_records": BATCH, "spread_from_records": 100}
        route = f"{self.name}.{kind}"
        return self.sink(kind, kind, url, route, driver="cluster", **options)

    def move(self, folder):
        """Continue on a different machine, which has the configuration but no state."""
        folder.mkdir()
        shutil.move(self.config, folder)
        shutil.rmtree(self.folder / "state")
        self.folder = folder

    @property
    def sent(self):
        """The number of records in the table's topic."""
        ends = Topics(self.settings.kafka).end_offsets([self.topic])[self.topic]
        return sum(ends.values())

    def batches(self):
        """Return the number of batches that each sink has written."""
        return [self.progress(name).batches for name in SINKS]


@pytest.fixture
def shop(stack, unique, tmp_path):
    """Provide a shop whose targets are running."""
    stack.up("kafka", "redis", "opensearch")
    return Shop(stack, unique, tmp_path)


def work(shop, cluster, submitted, seed):
    """Produce more changes, and wait until every sink has written some of them."""
    before = shop.batches()
    shop.feed.work(1200, keys=200, seed=seed)
    cluster.wait_for(
        lambda: all(n > b for n, b in zip(shop.batches(), before, strict=True)),
        submitted,
    )


def wait_for_executors(cluster, submitted):
    """Wait until each worker has an executor; return one per worker."""
    cluster.wait_for(
        lambda: all(cluster.executors(worker) for worker in cluster.workers), submitted
    )
    return [cluster.executors(worker)[0] for worker in cluster.workers]


def test_sinks_converge_whatever_process_a_cluster_loses(cluster, shop, tmp_path):
    """
    An executor, a suspended executor, the driver and the master are lost in turn.

    Each is lost while batches are being written; the suspended executor resumes. The
    driver starts again elsewhere, without its state folder.
    """
    shop.feed.work(1200, keys=200, seed=1)
    submitted = cluster.submit(shop.config, "cluster")
    work(shop, cluster, submitted, seed=2)
    first, second = wait_for_executors(cluster, submitted)
    first.kill()
    work(shop, cluster, submitted, seed=3)
    second.suspend()
    shop.feed.work(1200, keys=200, seed=4)
    cluster.wait_for(lambda: LOST in cluster.log("driver"), submitted)
    second.resume()
    work(shop, cluster, submitted, seed=5)
    cluster.kill(submitted)
    shop.move(tmp_path / "elsewhere")
    shop.feed.work(1200, keys=200, seed=6)
    again = cluster.submit(shop.config, "cluster")
    work(shop, cluster, again, seed=7)
    wait_for_executors(cluster, again)
    cluster.kill(cluster.master_process)
    shop.feed.work(1200, keys=200, seed=8)
    for name in SINKS:
        shop.wait_applied(name)
    spread = cluster.log("driver").count("writes large batches on the executors")
    found = [shop.progress(name) for name in SINKS]
    cluster.python_of(again).send_signal(signal.SIGTERM)

    assert 0 == again.wait(90), cluster.log("driver")[-3000:]
    assert [shop.feed.rows] * 2 == [shop.contents(name) for name in SINKS]
    # Each of the two runs spread its batches, and left almost no changes to the driver.
    assert 2 * len(SINKS) == spread
    assert all(one.left < 1200 for one in found), found
    # The state copies had the last batch or the one before it, with its counts.
    assert all(0 <= one.records - shop.sent <= 2 * BATCH for one in found), found


def test_executors_that_cannot_start_are_reported(cluster, shop):
    """
    Spark refuses their heap size and keeps restarting them; no record is lost.
    """
    shop.feed.work(1200, keys=200, seed=1)
    submitted = cluster.submit(shop.config, "cluster", executor_memory="450m")
    cluster.wait_for(lambda: "executor missing" in cluster.log("driver"), submitted)
    cluster.python_of(submitted).send_signal(signal.SIGTERM)

    assert 0 == submitted.wait(90), cluster.log("driver")[-3000:]
    assert [0, 0] == shop.batches()
