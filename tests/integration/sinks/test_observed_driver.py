"""Metrics and status of a real driver: healthy, behind, and after a loss."""

import json
import urllib.request

import pytest
from confluent_kafka import Producer

from support import waiting
from support.driver_process import metrics_port
from support.exposition import mistakes
from support.published import wait_applied
from support.sink_place import SinkPlace
from support.valkey import valkey
from towpath.cli import app
from towpath.schemas.position import parse_position
from towpath.settings import load
from towpath.sinks.state import incomplete
from towpath.sinks.state.progress import State
from towpath.sinks.verify import progress
from towpath.sinks.wait import Waiter

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

# A driver that shares two cores with other tests takes its time.
PATIENCE_S = 240.0

ADD = "insert into shop.lines select n, 0, 'x', 's' from generate_series({}, {}) n"


def until(holds, what):
    """Wait for a condition."""
    waiting.until(holds, what, timeout_s=PATIENCE_S)


class Place(SinkPlace):
    """A place whose one sink has a cache of its own, and a small budget."""

    def __init__(self, stack, dsn, prefix, folder, cache):
        super().__init__(stack, dsn, prefix, folder)
        self.cache = cache
        self.url = cache.url

    def block(self, name, route=""):
        """Write a sink's block, its budget a second."""
        block = super().block(name, route)
        return block.replace("trigger_ms", "budget_s = 1.0\ntrigger_ms")

    @property
    def state_folder(self):
        """Where the driver keeps what it knows."""
        return load(self.config, {}).state_folder

    def text(self):
        """Read the page of the driver's metrics."""
        log = self.folder / "driver.log"
        until(lambda: metrics_port(log), "the driver says where it tells")
        address = f"http://127.0.0.1:{metrics_port(log)}/metrics"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return answer.read().decode()

    def page(self):
        """Read what the driver tells: values by name without the sink's label."""
        lines = self.text().splitlines()
        found = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {n.replace('sink="plain"', "sink"): float(value) for n, value in found}

    def value(self, what):
        """Read one metric."""
        return self.page()[f"towpath_sink_{what}{{sink}}"]

    def runs(self):
        """Return whether the query runs."""
        return self.progress("plain").state == State.RUNNING

    def catch_up(self, name):
        """Wait until a sink has all that was committed, however long it takes."""
        self.confirm()
        wait_applied(load(self.config, {}), name, PATIENCE_S)

    def until_seen(self):
        """Wait until the driver's own look has found nothing behind."""
        self.catch_up("plain")
        lag = "towpath_sink_lag_records{sink}"
        until(lambda: self.page().get(lag) == 0, "nothing is behind")

    def status(self, capsys, *words):
        """Ask for the status; return its exit code and what it says."""
        capsys.readouterr()
        given = ("--config", str(self.config), "--state", str(self.folder / "none"))
        code = app.run(["status", *words, *given])
        return code, capsys.readouterr().out

    def sink_status(self, capsys):
        """Return what the status says of the sink, as a document."""
        (sink,) = json.loads(self.status(capsys, "--json")[1])["sinks"]
        return sink

    def send_unreadable(self):
        """Produce a record that is no change, of a key that nobody has."""
        producer = Producer({"bootstrap.servers": self.kafka})
        producer.produce(
            self.topic("shop.lines"),
            "{",
            '{"order_id": 0, "no": 0}',
            headers={"position": f"{1:016x}.0000000000"},
        )
        producer.flush()

    def said(self, words):
        """Return whether the driver has logged something."""
        return words in (self.folder / "driver.log").read_text()


@pytest.fixture
def place(stack, database, unique, tmp_path):
    """Provide a source with its relay, a broker, and a cache of the test's own."""
    stack.up("kafka")
    with valkey(tmp_path / "cache") as cache:
        found = Place(stack, database, unique, tmp_path, cache)
        yield found
        found.close()


def check_known_load(place, capsys):
    """Put in a known load; what is reported of it is right to the last record."""
    before = place.page()
    for statement in (
        ADD.format(1001, 1020),
        "update shop.lines set note = 'y' where order_id between 1001 and 1005",
        "delete from shop.lines where order_id between 1001 and 1004",
    ):
        place.execute(statement)
        place.until_seen()
    place.send_unreadable()
    until(lambda: place.value("parked_keys") == 1, "the key is parked")
    place.until_seen()
    page = place.page()
    grown = {
        what: page[f"towpath_sink_{what}_total{{sink}}"]
        - before[f"towpath_sink_{what}_total{{sink}}"]
        for what in (
            "rows",
            "records",
            "tombstones",
            "stale",
            "dead_letters",
            "retries",
        )
    }
    sink = place.sink_status(capsys)

    # An empty record follows each delete, and is the same change as a rule; two batches
    # may part them. The unreadable record is one, too.
    tombstones = grown.pop("tombstones")
    assert {
        "rows": 25 + tombstones,
        "records": 29 + 4 + 1,
        "stale": 0,
        "dead_letters": 1,
        "retries": 0,
    } == grown
    assert 4 <= tombstones <= 8
    assert (0, 0.0, False, 1, page["towpath_sink_rows_total{sink}"]) == (
        *(sink["lag_records"], sink["lag_s"], sink["is_late"], sink["parked"]),
        sink["rows"],
    )
    position = parse_position(sink["position"])
    assert page["towpath_sink_applied_lsn_bytes{sink}"] == position.log_lsn
    return page


def check_stages(page):
    """Each stage is shown by its name."""
    stages = {
        kind: {
            name.partition('stage="')[2].partition('"')[0]
            for name in page
            if name.startswith(f"towpath_sink_{kind}_seconds_count")
        }
        for kind in ("batch", "engine")
    }

    assert {"decode", "apply", "flush", "batch"} == stages["batch"]
    assert {"latestOffset", "walCommit", "addBatch", "commitOffsets"} <= stages[
        "engine"
    ]


def dead(page):
    """Return whether a page says of the sink all that a dead cache comes to."""
    return (3, 1, 1, True) == (
        page["towpath_sink_lag_records{sink}"],
        page["towpath_sink_lag_alarm{sink}"],
        page['towpath_sink_state{sink,state="failed"}'],
        page["towpath_sink_lag_seconds{sink}"] > 2,
    )


def check_dead_cache(place, capsys):
    """A cache that is away: records pile up, an alarm is raised, the row stands out."""
    place.cache.kill()
    place.execute(ADD.format(2001, 2003))
    # A look that began before may still end, and tell of the load from before.
    until(lambda: dead(place.page()), "the alarm is raised for these three")
    code, text = place.status(capsys)
    row = next(line for line in text.splitlines() if "plain" in line)

    assert (1, True, True) == (code, " ! " in row, "more than twice" in text)
    place.cache.start()
    until(lambda: place.value("lag_alarm") == 0, "the alarm is over")

    assert place.value("retries_total") >= 1
    assert not place.sink_status(capsys)["is_late"]


def check_emptied_cache(place, capsys):
    """It is noticed while nothing is written, read again, and a wait waits for that."""
    settings = load(place.config, {})
    lsn = place.one("select pg_current_wal_flush_lsn()::text")
    place.cache.client.flushall()
    until(
        lambda: place.said("refetch of a whole route requested"), "the loss is noticed"
    )
    with Waiter(settings) as waiter:
        waiter.wait_for(lsn, "plain", PATIENCE_S)

    assert place.plain() == place.held("plain")
    assert place.said("the cache was emptied")
    assert () == incomplete.routes(place.state_folder, "plain")
    assert [] == place.sink_status(capsys)["unfilled"]


def check_slow_batch(place, monkeypatch, capsys):
    """
    B7: a batch that takes longer than a sink may stand still is waited for.

    Writes wait in the cache for longer than ``verify`` has patience, but not for as
    long as the sink waits for an answer.
    """
    monkeypatch.setattr(progress, "STUCK_AFTER_S", 4.0)
    place.cache.client.client_pause(9000, all=False)
    place.execute(ADD.format(3001, 3003))
    capsys.readouterr()
    code = app.run(["verify", "plain", "--config", str(place.config)])

    assert 0 == code, capsys.readouterr()


def test_a_drivers_metrics_and_status_agree(place, capsys, monkeypatch):
    """
    D-11: both agree on load, lag, alarm, dead letters and losses.
    """
    monkeypatch.setenv("COLUMNS", "160")
    place.prepare()
    with place.driver():
        until(place.runs, "it runs")
        place.until_seen()
        page = check_known_load(place, capsys)
        assert [] == mistakes(place.text(), ("towpath_sink_",))
        check_stages(page)
        check_dead_cache(place, capsys)
        check_emptied_cache(place, capsys)
        check_slow_batch(place, monkeypatch, capsys)
