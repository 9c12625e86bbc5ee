"""A driver of all three kinds of sink dies in every stage of a batch."""

import signal
from pathlib import Path

import pytest

from support.driver_process import PATIENCE_S, Feed, Place, driver, start, stored_rows
from support.waiting import until
from towpath.sinks.dead_letters.entries import DeadLetterRequest, Verb
from towpath.sinks.dead_letters.parked import OpenDeadLetters
from towpath.sinks.engine.checkpoint import committed_offsets, drop_checkpoint
from towpath.sinks.engine.query import QueryPlan
from towpath.sinks.kafka.client import Topics
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic
from towpath.sinks.state.declare import records_between
from towpath.sinks.targets.cache.read import CacheReader
from towpath.sinks.targets.search.read import SearchReader
from towpath.sinks.targets.warehouse.read import WarehouseReader

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

RUNNER = Path(__file__).with_name("driver_with_fault.py")
SINKS = ("cache", "search", "warehouse")
# In which stage of whose batch the process dies, one death after another.
DEATHS = (
    ("read", "cache"),
    ("applied", "search"),
    ("applied", "warehouse"),
    ("flushed", "cache"),
    ("flushed", "warehouse"),
    ("dead letter stored", "search"),
    ("written", "cache"),
    ("reported", "warehouse"),
)
# One death per sink: each start of a driver takes twenty seconds of processor time.
FEW_DEATHS = (
    ("applied", "warehouse"),
    ("dead letter stored", "search"),
    ("written", "cache"),
)


class Shop(Place):
    """All three kinds of sink in one driver, and what they hold."""

    def prepare(self):
        """Write the configuration, and the table's first records."""
        table = f"{self.name}.orders"
        url = self.stack.dsn("warehouse")
        lake = self.sink("warehouse", "warehouse", url, table)
        self.write_config(
            self.sink("cache", "cache", self.stack.redis_url),
            self.sink("search", "search", self.stack.opensearch_url),
            lake.replace("[[sink.route]]", 'folder = "lake"\n[[sink.route]]'),
        )
        self.feed = Feed(self)
        self.unreadable = 0

    def work(self, count):
        """Add to the history, with a record at its end that is no change."""
        self.unreadable += 1
        self.feed.work(count, keys=60, seed=self.unreadable)
        self.feed.send_unreadable()

    def dies(self, point, sink):
        """Run the driver until it kills itself."""
        process = start(self, RUNNER, point, sink)
        try:
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait(10)
        return code == -signal.SIGKILL

    def scratch_folders(self):
        """Return the folders of engines, those that were killed too."""
        return list(self.settings.state_folder.glob("sinks/.*/engine-*"))

    def contents(self):
        """Return every row and tombstone of the three targets, whole."""
        lake = self.settings.sink_named("warehouse")
        readers = (
            CacheReader(self.stack.redis_url, self.name),
            SearchReader(self.stack.opensearch_url),
            WarehouseReader(lake),
        )
        routes = (self.route("cache"), self.route("search"), lake.route[0].name)
        return [self.stored(*one) for one in zip(routes, readers, strict=True)]

    def book(self, sink):
        """Read a sink's dead letters."""
        return OpenDeadLetters().read(DeadLetterTopic(self.settings, sink).entries())

    def set_aside(self, sink):
        """Return the open letters of a sink."""
        book = self.book(sink)
        return sorted(x.record.origin for m in book.dead_letters for x in book.of(m))

    def plan(self, sink):
        """Return where a sink's query keeps its state."""
        settings = self.settings
        declared = settings.sink_named(sink)
        return QueryPlan(declared, settings.kafka, settings.state_folder)

    def records(self):
        """Return how many records each sink has read, again and again."""
        return {sink: self.progress(sink).records for sink in SINKS}

    def ends(self):
        """Return where the topic ends."""
        return Topics(self.settings.kafka).end_offsets([self.topic])

    def catch_up(self):
        """Wait until every sink has applied all there is."""
        for sink in SINKS:
            self.wait_applied(sink)


@pytest.fixture
def shop(stack, unique, tmp_path):
    """Provide a place with three sinks and the first records."""
    stack.up("kafka", "redis", "opensearch", "postgres")
    made = Shop(stack, unique, tmp_path)
    made.prepare()
    return made


@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param(FEW_DEATHS, id="one per sink"),
        pytest.param(DEATHS, marks=pytest.mark.soak, id="every stage"),
    ],
)
def test_a_driver_killed_in_every_stage_ends_equal(shop, deaths):
    """
    The targets hold the history, the dead letters what cannot be read (B42, B43).
    """
    died = []
    for death in deaths:
        shop.work(150)
        died.append(shop.dies(*death))
    with driver(shop):
        shop.catch_up()
        scratch = shop.scratch_folders()
    expected = [shop.feed.rows] * 3

    assert (1, []) == (len(scratch), shop.scratch_folders())
    assert [True] * len(deaths) == died, shop.log()
    assert expected == [stored_rows(rows) for rows in shop.contents()]
    assert [sorted(shop.feed.unreadable)] * 3 == [
        shop.set_aside(sink) for sink in SINKS
    ]


def test_a_stopped_driver_repeats_nothing_and_a_lost_checkpoint_changes_nothing(shop):
    """
    After SIGTERM amid a load the checkpoint has all that was written; the rest comes.

    Without a checkpoint all is read again, and no row or tombstone differs (B34, B42).
    Not in one byte, nor does an open letter. What was asked for of a dead letter is
    done, although the sink died over it.
    """
    shop.work(1500)
    with driver(shop):
        until(
            lambda: all(shop.records().values()),
            "all have begun",
            timeout_s=PATIENCE_S,
        )
    stopped = shop.records()
    applied = [shop.progress(sink).applied for sink in SINKS]
    stood = [committed_offsets(shop.plan(sink).checkpoint) for sink in SINKS]
    left = [records_between(one, shop.ends()) for one in applied]
    with driver(shop):
        shop.catch_up()
    before, records = shop.contents(), shop.records()
    read = [count - stopped[sink] for sink, count in records.items()]
    (subject,) = shop.book("cache").dead_letters
    DeadLetterTopic(shop.settings, "cache").request(
        [DeadLetterRequest("one", Verb.DISCARD, subject)]
    )
    died = shop.dies("carried out", "cache")
    for sink in SINKS:
        drop_checkpoint(shop.plan(sink).checkpoint)
    total = records_between({}, shop.ends())
    with driver(shop):
        until(
            lambda: all(n - records[s] >= total for s, n in shop.records().items()),
            "all was read again",
            timeout_s=PATIENCE_S,
        )
    book = shop.book("cache")

    assert (applied, left) == (stood, read)
    assert (True, before) == (died, shop.contents())
    assert (["one"], [], shop.feed.unreadable) == (
        list(book.replies),
        shop.set_aside("cache"),
        shop.set_aside("warehouse"),
    )
