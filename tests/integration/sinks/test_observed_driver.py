"""Metrics and status of a real driver: healthy, lagging, and after a loss."""

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

# A driver that shares two cores with other tests is slow.
PATIENCE_S = 240.0

ADD = "insert into shop.lines select n, 0, 'x', 's' from generate_series({}, {}) n"


def until(holds, what):
    """Wait for a condition."""
    waiting.until(holds, what, timeout_s=PATIENCE_S)


class Rig(SinkPlace):
    """A rig whose only sink has its own cache, and a small lag budget."""

    def __init__(self, stack, dsn, prefix, folder, cache):
        super().__init__(stack, dsn, prefix, folder)
        self.cache = cache
        self.url = cache.url

    def block(self, name, route=""):
        """Write a sink's block with a budget of one second."""
        block = super().block(name, route)
        return block.replace("trigger_ms", "budget_s = 1.0\ntrigger_ms")

    @property
    def state_folder(self):
        """The driver's state folder."""
        return load(self.config, {}).state_folder

    def text(self):
        """Read the driver's metrics page."""
        log = self.folder / "driver.log"
        until(lambda: metrics_port(log), "the driver logs its metrics port")
        address = f"http://127.0.0.1:{metrics_port(log)}/metrics"
        with urllib.request.urlopen(address, timeout=10) as response:
            return response.read().decode()

    def page(self):
        """
        Read the driver's metrics: values by name, without the value of the sink label.
        """
        lines = self.text().splitlines()
        found = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {n.replace('sink="plain"', "sink"): float(value) for n, value in found}

    def value(self, name):
        """Read one metric."""
        return self.page()[f"towpath_sink_{name}{{sink}}"]

    def runs(self):
        """Return whether the query is running."""
        return self.progress("plain").state == State.RUNNING

    def catch_up(self, name):
        """
        Wait, for as long as this test allows, until a sink has all committed changes.
        """
        self.confirm()
        wait_applied(load(self.config, {}), name, PATIENCE_S)

    def wait_for_no_lag(self):
        """Wait until the driver itself reports no lag."""
        self.catch_up("plain")
        lag = "towpath_sink_lag_records{sink}"
        until(lambda: self.page().get(lag) == 0, "there is no lag")

    def status(self, capsys, *options):
        """Run the status command; return its exit code and its output."""
        capsys.readouterr()
        common = ("--config", str(self.config), "--state", str(self.folder / "none"))
        code = app.run(["status", *options, *common])
        return code, capsys.readouterr().out

    def sink_status(self, capsys):
        """Return the status of the sink, as a document."""
        (sink,) = json.loads(self.status(capsys, "--json")[1])["sinks"]
        return sink

    def send_unreadable(self):
        """Produce a record that is not a change, with a key that no row has."""
        producer = Producer({"bootstrap.servers": self.kafka})
        producer.produce(
            self.topic("shop.lines"),
            "{",
            '{"order_id": 0, "no": 0}',
            headers={"position": f"{1:016x}.0000000000"},
        )
        producer.flush()

    def has_logged(self, text):
        """Return whether the driver has logged a string."""
        return text in (self.folder / "driver.log").read_text()


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a source with its relay, a broker, and a cache for the test."""
    stack.up("kafka")
    with valkey(tmp_path / "cache") as cache:
        found = Rig(stack, database, unique, tmp_path, cache)
        yield found
        found.close()


def check_known_load(rig, capsys):
    """Apply a known load; metrics and status account for each of its records."""
    before = rig.page()
    for statement in (
        ADD.format(1001, 1020),
        "update shop.lines set note = 'y' where order_id between 1001 and 1005",
        "delete from shop.lines where order_id between 1001 and 1004",
    ):
        rig.execute(statement)
        rig.wait_for_no_lag()
    rig.send_unreadable()
    until(lambda: rig.value("parked_keys") == 1, "the key is parked")
    rig.wait_for_no_lag()
    page = rig.page()
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
    sink = rig.sink_status(capsys)

    # A tombstone follows each delete, and usually counts as the same change; if a batch
    # ends between the two, both count. The unreadable record counts as a record, too.
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
    """Check that the page shows every stage."""
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


def shows_dead_cache(page):
    """
    Return whether a page shows a dead cache: its lag, the alarm and the failed state.
    """
    return (3, 1, 1, True) == (
        page["towpath_sink_lag_records{sink}"],
        page["towpath_sink_lag_alarm{sink}"],
        page['towpath_sink_state{sink,state="failed"}'],
        page["towpath_sink_lag_seconds{sink}"] > 2,
    )


def check_dead_cache(rig, capsys):
    """
    While the cache is down, lag grows, an alarm is raised, and status marks the sink.
    """
    rig.cache.kill()
    rig.execute(ADD.format(2001, 2003))
    # A poll that began earlier may still finish and report the earlier load.
    until(lambda: shows_dead_cache(rig.page()), "an alarm is raised for three records")
    code, text = rig.status(capsys)
    row = next(line for line in text.splitlines() if "plain" in line)

    assert (1, True, True) == (code, " ! " in row, "more than twice" in text)
    rig.cache.start()
    until(lambda: rig.value("lag_alarm") == 0, "the alarm is over")

    assert rig.value("retries_total") >= 1
    assert not rig.sink_status(capsys)["is_late"]


def check_emptied_cache(rig, capsys):
    """
    An idle driver detects a loss; a wait ends once the rows have been read again.
    """
    settings = load(rig.config, {})
    lsn = rig.one("select pg_current_wal_flush_lsn()::text")
    rig.cache.client.flushall()
    until(
        lambda: rig.has_logged("refetch of a whole route requested"),
        "the loss is detected",
    )
    with Waiter(settings) as waiter:
        waiter.wait_for(lsn, "plain", PATIENCE_S)

    assert rig.plain() == rig.held("plain")
    assert rig.has_logged("the cache was emptied")
    assert () == incomplete.routes(rig.state_folder, "plain")
    assert [] == rig.sink_status(capsys)["unfilled"]


def check_slow_batch(rig, monkeypatch, capsys):
    """
    B7: a batch may take longer than the time after which a sink counts as stuck.

    The cache holds writes back for longer than ``verify`` waits for progress, but for
    less time than the sink waits for a response.
    """
    monkeypatch.setattr(progress, "STUCK_AFTER_S", 4.0)
    rig.cache.client.client_pause(9000, all=False)
    rig.execute(ADD.format(3001, 3003))
    capsys.readouterr()
    code = app.run(["verify", "plain", "--config", str(rig.config)])

    assert 0 == code, capsys.readouterr()


def test_a_drivers_metrics_and_status_agree(rig, capsys, monkeypatch):
    """
    D-11: metrics and status agree on load, lag, alarm, dead letters and losses.
    """
    monkeypatch.setenv("COLUMNS", "160")
    rig.prepare()
    with rig.driver():
        until(rig.runs, "the query runs")
        rig.wait_for_no_lag()
        page = check_known_load(rig, capsys)
        assert [] == mistakes(rig.text(), ("towpath_sink_",))
        check_stages(page)
        check_dead_cache(rig, capsys)
        check_emptied_cache(rig, capsys)
        check_slow_batch(rig, monkeypatch, capsys)
