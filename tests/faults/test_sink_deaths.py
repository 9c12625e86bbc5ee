"""A driver with cache, search sink and warehouse is killed at each stage of a batch."""

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
# The stages at which the process dies, one after another, each with the sink whose
# batch it is handling.
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
# One death per sink: each start of a driver takes twenty seconds of CPU time.
FEW_DEATHS = (
    ("applied", "warehouse"),
    ("dead letter stored", "search"),
    ("written", "cache"),
)


class Shop(Place):
    """A cache, a search sink and a warehouse in one driver, and their contents."""

    def prepare(self):
        """Write the configuration."""
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
        """Produce changes, and then a record that is not a change."""
        self.unreadable += 1
        self.feed.work(count, keys=60, seed=self.unreadable)
        self.feed.send_unreadable()

    def run_until_killed(self, point, sink):
        """Run the driver with a fault; return whether it has killed itself."""
        process = start(self, RUNNER, point, sink)
        try:
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait(10)
        return code == -signal.SIGKILL

    def scratch_folders(self):
        """Return the scratch folders of all Spark engines, even of killed ones."""
        return list(self.settings.state_folder.glob("sinks/.*/engine-*"))

    def contents(self):
        """Return all rows and tombstones of the three targets, with all fields."""
        lake = self.settings.sink_named("warehouse")
        readers = (
            CacheReader(self.stack.redis_url, self.name),
            SearchReader(self.stack.opensearch_url),
            WarehouseReader(lake),
        )
        routes = (self.route("cache"), self.route("search"), lake.route[0].name)
        return [self.stored(*one) for one in zip(routes, readers, strict=True)]

    def dead_letters(self, sink):
        """Read a sink's open dead letters."""
        return OpenDeadLetters().read(DeadLetterTopic(self.settings, sink).entries())

    def open_origins(self, sink):
        """Return the origins of a sink's open dead letters."""
        found = self.dead_letters(sink)
        return sorted(x.record.origin for m in found.dead_letters for x in found.of(m))

    def plan(self, sink):
        """Return the plan of a sink's query, which has the path of its checkpoint."""
        settings = self.settings
        declared = settings.sink_named(sink)
        return QueryPlan(declared, settings.kafka, settings.state_folder)

    def records(self):
        """Return how many records each sink has read, including repeated reads."""
        return {sink: self.progress(sink).records for sink in SINKS}

    def ends(self):
        """Return the end offsets of the topic."""
        return Topics(self.settings.kafka).end_offsets([self.topic])

    def catch_up(self):
        """Wait until every sink has applied all records."""
        for sink in SINKS:
            self.wait_applied(sink)


@pytest.fixture
def shop(stack, unique, tmp_path):
    """Provide a shop with three sinks."""
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
def test_a_driver_killed_at_every_stage_converges(shop, deaths):
    """
    The targets have all rows; unreadable records are dead letters (B42, B43).
    """
    died = []
    for death in deaths:
        shop.work(150)
        died.append(shop.run_until_killed(*death))
    with driver(shop):
        shop.catch_up()
        scratch = shop.scratch_folders()
    expected = [shop.feed.rows] * 3

    assert (1, []) == (len(scratch), shop.scratch_folders())
    assert [True] * len(deaths) == died, shop.log()
    assert expected == [stored_rows(rows) for rows in shop.contents()]
    assert [sorted(shop.feed.unreadable)] * 3 == [
        shop.open_origins(sink) for sink in SINKS
    ]


def test_a_stopped_driver_repeats_nothing_and_a_lost_checkpoint_changes_nothing(shop):
    """
    After SIGTERM under load, the checkpoint has all written batches, and no others.

    Without a checkpoint, all records are read again; rows, tombstones and open dead
    letters do not change (B34, B42). A dead letter request is completed, although the
    sink died while handling it.
    """
    shop.work(1500)
    with driver(shop):
        until(
            lambda: all(shop.records().values()),
            "all sinks have begun",
            timeout_s=PATIENCE_S,
        )
    stopped = shop.records()
    applied = [shop.progress(sink).applied for sink in SINKS]
    committed = [committed_offsets(shop.plan(sink).checkpoint) for sink in SINKS]
    left = [records_between(one, shop.ends()) for one in applied]
    with driver(shop):
        shop.catch_up()
    before, records = shop.contents(), shop.records()
    read = [count - stopped[sink] for sink, count in records.items()]
    (subject,) = shop.dead_letters("cache").dead_letters
    DeadLetterTopic(shop.settings, "cache").request(
        [DeadLetterRequest("one", Verb.DISCARD, subject)]
    )
    died = shop.run_until_killed("carried out", "cache")
    for sink in SINKS:
        drop_checkpoint(shop.plan(sink).checkpoint)
    total = records_between({}, shop.ends())
    with driver(shop):
        until(
            lambda: all(n - records[s] >= total for s, n in shop.records().items()),
            "all records are read again",
            timeout_s=PATIENCE_S,
        )
    found = shop.dead_letters("cache")

    assert (applied, left) == (committed, read)
    assert (True, before) == (died, shop.contents())
    assert (["one"], [], shop.feed.unreadable) == (
        list(found.replies),
        shop.open_origins("cache"),
        shop.open_origins("warehouse"),
    )
