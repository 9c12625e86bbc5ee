"""
The demo from end to end, as a person would run it: the real command with real parts.

Parts are killed while the demo runs, a row is altered in a sink, and the demo is
interrupted: its output, its result and its cleanup must be right each time.
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import psycopg
import pytest
import requests

from support.locust_run import Locust
from towpath.deploy.demo import parts
from towpath.deploy.demo.shop import SIGNAL
from towpath.deploy.local import process
from towpath.deploy.local.part import StateFolder
from towpath.deploy.snapshots import signals
from towpath.schemas.clock import Deadline, SystemClock
from towpath.settings import load

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

CLOCK = SystemClock()
GIB = 1024**3

# Changes a field of one order in the cache, bypassing the sink.
ALTER_ONE_ROW = """
import os
import redis
from towpath.settings import load
from pathlib import Path
settings = load(Path(os.environ["TOWPATH_CONFIG"]), {})
client = redis.Redis.from_url(settings.sink_named("cache").url)
assert client.hset("towpath:orders:7", "status", "lost") == 0
"""


def is_alive(child):
    """Return whether a process is running; it may end at any moment."""
    try:
        return child.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Demo:
    """A demo that runs as a separate process, and the lines that it prints."""

    def __init__(self, folder, *arguments):
        self.state = StateFolder(folder / "demo")
        self.result = folder / "result.json"
        self.lines = []
        self.seen = set()
        self._recent = Deadline(CLOCK, 0)
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "towpath.cli", "demo"),
                *("--state", str(self.state.root), "--json", str(self.result)),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            self.lines.append(line)

    @property
    def text(self):
        """Everything that the demo has printed so far."""
        return "".join(self.lines)

    def wait_until(self, condition, within_s, what):
        """Wait for a condition while the demo runs; remember its processes."""
        deadline = Deadline(CLOCK, within_s)
        while not condition():
            self._remember_each_second()
            assert self._process.poll() is None, f"ended before {what}:\n{self.text}"
            assert not deadline.passed(), f"waited for {what}:\n{self.text}"
            CLOCK.wait(0.1)

    def wait_for_line(self, text, within_s):
        """Wait until the demo has printed a string."""
        self.wait_until(lambda: text in self.text, within_s, text)

    def remember(self):
        """Remember the demo's current processes, so that none is overlooked."""
        try:
            below = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        self.seen.update(below)

    def _remember_each_second(self):
        """Remember the demo's processes; listing them takes tens of milliseconds."""
        if self._recent.passed():
            self._recent = Deadline(CLOCK, 1)
            self.remember()

    def backfilled(self):
        """Count the rows that the new sink's snapshot has delivered by now."""
        settings = load(self.state.root / "towpath.toml", {})
        rows = signals.progress(settings.database, SIGNAL)
        return sum(row.rows for row in rows)

    def kill(self, part):
        """Kill a part with SIGKILL, and wait until a new process has replaced it."""
        file = self.state.process_file(part)
        before = process.find(file)
        assert before is not None, f"{part} is not running:\n{self.text}"
        before.kill()
        self.wait_for_successor(part, before.pid)

    def wait_for_successor(self, part, pid):
        """Wait until a part runs in a process whose pid is not the given one."""

        def has_successor():
            now = process.find(self.state.process_file(part))
            return now is not None and now.pid != pid

        self.wait_until(has_successor, 30, f"the successor of {part}")

    def kill_worker(self, service):
        """
        Kill a service's worker process: the child of the process that the demo started.
        """
        # The parent may be restarting it.
        self.wait_until(
            lambda: len(self._workers(service)) == 1, 30, f"the worker of {service}"
        )
        before = self._workers(service)
        before[0].kill()
        self.wait_until(
            lambda: self._workers(service) not in ([], before),
            30,
            f"a new worker of {service}",
        )

    def _workers(self, service):
        above = process.find(self.state.process_file(service))
        try:
            below = [] if above is None else above.children()
        except psutil.NoSuchProcess:
            below = []
        return [one for one in below if is_alive(one)]

    def printed(self, name):
        """Return the address or file that the demo printed under a name."""
        return next(x for x in self.lines if x.startswith(name)).split()[-1]

    def interrupt(self):
        """Send SIGINT, as Ctrl-C does."""
        self.remember()
        self._process.send_signal(signal.SIGINT)

    def end(self, within_s):
        """Wait until the demo has ended; return its exit code."""
        deadline = Deadline(CLOCK, within_s)
        while self._process.poll() is None and not deadline.passed():
            self._remember_each_second()
            CLOCK.wait(0.2)
        code = self._process.wait(timeout=1)
        self._reader.join(timeout=10)
        return code

    def remaining(self):
        """
        List the demo's processes that are still running after a short wait.
        """
        _, alive = psutil.wait_procs(self.seen, timeout=5)
        return [one for one in alive if is_alive(one)]

    def destroy(self):
        """
        Kill the demo and all its processes that are still running.
        """
        self.remember()
        for one in self.seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self._process.kill()
        self._process.wait()
        self._reader.join(timeout=10)
        self._process.stdout.close()


@pytest.fixture
def start(tmp_path):
    """Provide a function that starts a demo; no demo outlives the test."""
    demos = []

    def begin(*arguments):
        demos.append(Demo(tmp_path, *arguments))
        return demos[-1]

    yield begin
    for demo in demos:
        demo.destroy()


def kill_parts(demo, orders):
    """Kill a driver, then the relay and the other driver during the snapshot."""
    demo.wait_for_line("open the shop", 300)
    demo.kill("warehouse")
    demo.wait_for_line("insert into towpath.signal", 120)
    demo.wait_until(lambda: demo.backfilled() > orders // 5, 60, "a fifth of the rows")
    demo.kill("relay")
    demo.wait_until(lambda: demo.backfilled() > orders // 2, 60, "half of the rows")
    demo.kill("serving")


# The newest order whose saga completed.
COMPLETED = "select max(id) from shop.orders where status = 'completed'"

# Fourteen times as many customers for half a minute.
SPIKE = (5, 35)
SPIKE_SHAPE = """
meaning = "A spike of thirty seconds."
points = [[0, 1], [5, 1], [5, 14], [35, 14], [35, 1], [40, 1]]
"""
SERVICES = ("orders", "inventory", "payments", "shipping", "storefront")


def kill_during_a_spike(demo, folder):
    """Kill every part during a spike; return the load run and the kill times."""
    settings = load(demo.state.root / "towpath.toml", {})
    folder.mkdir()
    (folder / "spike.toml").write_text(SPIKE_SHAPE)
    run = Locust(
        folder,
        *("--headless", "--only-summary", "--load-progress", "progress.json"),
        *("--load-report", "report", "--host", demo.printed("orders service")),
        *("--load-rate", "0.8", "--load-shape", "spike.toml", "--load-retries", "20"),
        *("--load-return-share", "0", "--load-watch-share", "0"),
        # Attempts without a response count as failures, although they are retried.
        *("--exit-code-on-error", "0"),
        # The sampler does not retry, so it must not place an order.
        *("--load-lag-after", "3600"),
        *("--load-dsn", settings.database.dsn, "--load-settle-for", "180"),
        **parts.targets(settings.model_copy(update={"sink": settings.sink[:3]})),
    )
    kills = []
    try:
        run.wait_for("checkouts", 12)
        for service in SERVICES:
            kills.append(run.progress()["load"]["elapsed_s"])
            demo.kill_worker(service)
        for part in ("relay", *SERVICES, "serving", "warehouse"):
            kills.append(run.progress()["load"]["elapsed_s"])
            demo.kill(part)
        kills.append(run.progress()["load"]["elapsed_s"])
        # The last sagas and the sinks may take as long as the load allows.
        code = run.end(within_s=400)
    finally:
        run.kill()
    assert code == 0, run.text
    return run, kills


def check_spike(demo, run, kills, first_order):
    """Compare the load's report with the database, and the kills with the spike."""
    load_ = run.progress()["load"]
    report = (run.folder / "report" / "report.md").read_text()
    count = "select count(*) from shop.orders where id >= %s"

    assert SPIKE[0] <= min(kills) <= max(kills) <= SPIKE[1], kills
    assert load_["checkouts"] >= 0.5 * 0.8 * 14 * (SPIKE[1] - SPIKE[0])
    # Each request that a kill interrupted was retried, without creating a second order.
    assert [one for one in load_["reasons"] if one.startswith("checkout: ")]
    assert load_["checkouts"] == scalar(demo, count, first_order)
    for store in ("database", "cache", "search", "warehouse"):
        assert f"- {store}: money, stock and parcels agree" in report
    assert scalar(demo, "select count(*) from shop.unsettled_orders") == 0
    sinks = ("cache", "search", "warehouse", "search_orders")
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(partial(differences, demo), sinks)) == [0, 0, 0, 0]


def towpath(demo, *arguments):
    """Run a Towpath command on the demo's platform."""
    config = ("--config", str(demo.state.root / "towpath.toml"))
    command = (sys.executable, "-m", "towpath.cli", *arguments, *config)
    return subprocess.run(command, capture_output=True, text=True, check=False)


def differences(demo, sink, *options):
    """Compare a sink with the database; return the number of differences."""
    found = json.loads(towpath(demo, "verify", sink, "--json", *options).stdout)
    assert found["result"] != "unverified", found
    return found["differences"]


def trace(demo, *subject):
    """
    Trace a row or an aggregate; return the exit code, the document and the errors.
    """
    done = towpath(demo, "trace", *subject, "--json")
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def stored_in_cache(demo, number):
    """Return the position that the cache stores for an order."""
    _, found, _ = trace(demo, "--table", "shop.orders", "--key", str(number))
    (cache,) = (one for one in found["sinks"] if one["sink"] == "cache")
    return cache["stored_position"]


def check_traces(demo, number):
    """Trace an order that every sink has, as an aggregate and as a row."""
    before = stored_in_cache(demo, 7)
    again = towpath(
        demo, "replay", *("--table", "shop.orders", "--key", "7", "--to", "cache")
    )
    assert again.returncode == 0, again.stderr
    demo.wait_until(lambda: stored_in_cache(demo, 7) > before, 60, "a newer row")
    row_code, row, row_error = trace(
        demo, "--table", "shop.orders", "--key", str(number)
    )
    code, order, error = trace(demo, "order", str(number))
    _, none, _ = trace(demo, "--table", "shop.orders", "--key", "0")
    unknown, _, message = trace(demo, "basket", "7")
    kinds = [one["kind"] for one in order["records"]]

    assert (row_code, code) == (0, 0), (row, row_error, order, error)
    assert row["in_source"] is True
    assert row["records"][0]["kind"] == "create"
    assert kinds[0] == "OrderPlaced"
    assert {one["sink"]: one["state"] for one in row["sinks"]} == {
        "cache": "current",
        "warehouse": "current",
    }
    assert {(one["sink"], one["state"]) for one in order["sinks"]} == {
        ("search", "current"),
        ("search_orders", "current"),
        ("warehouse", "applied"),
    }
    assert (none["in_source"], none["records"]) == (False, [])
    assert unknown == 2
    assert "Kafka has no topic outbox.event.basket" in message


def check_console(demo):
    """Kill the relay through the demo's console, and follow its recovery there."""
    console = demo.printed("console ")
    token = Path(demo.printed("console's token")).read_text().strip()
    shown = requests.get(f"{console}/api/topology", timeout=60).json()["parts"]
    refused = requests.post(f"{console}/api/kills", json={"part": "relay"}, timeout=60)
    killed = requests.post(
        f"{console}/api/kills",
        json={"part": "relay"},
        headers={"authorization": f"Bearer {token}"},
        timeout=60,
    )

    def followed():
        """Return the record of the latest kill."""
        return requests.get(f"{console}/api/kills", timeout=60).json()["kills"][0]

    assert {"source", "relay", "sink-cache", "sink-warehouse"} <= {
        p["id"] for p in shown
    }
    assert (refused.status_code, killed.status_code) == (401, 200), killed.text
    demo.wait_until(
        lambda: followed()["normal_after_s"], 120, "the platform is healthy"
    )
    assert followed()["started_after_s"] <= followed()["normal_after_s"]


def scalar(demo, query, *values):
    """Return the first value of a query on the shop's database."""
    settings = load(demo.state.root / "towpath.toml", {})
    with psycopg.connect(settings.database.dsn) as connection:
        return connection.execute(query, values).fetchone()[0]


def check_result(result, orders, cache_differences):
    """Compare the demo's result with the kills and the altered row."""
    snapshot = result["snapshot"]
    sinks = {sink["name"]: sink["differences"] for sink in result["sinks"]}
    others = {"search": 0, "warehouse": 0, "search_orders": 0}

    assert sinks == {"cache": cache_differences} | others
    assert min(sink["compared"] for sink in result["sinks"]) >= orders
    assert result["restarts"] >= 3
    assert snapshot["rows"] + snapshot["dropped"] >= orders
    assert snapshot["changed_meanwhile"] >= orders // 80
    assert result["traffic"]["checkouts"] > 0
    assert result["traffic"]["dead_letters"] == 0
    assert result["peak_memory_bytes"] < 6 * GIB


def test_killed_parts_lose_nothing_and_an_altered_row_is_reported(start):
    """
    The relay and both Spark drivers are killed, and all sinks still equal the source.

    One field of one cached order is altered before the comparison: the demo exits with
    1, reports that field, and finds no other difference. With --keep everything keeps
    running until Ctrl-C.
    """
    alter = f"{sys.executable} -c '{ALTER_ONE_ROW}'"
    # A load that leaves two cores enough time for three starts and for other tests.
    demo = start(
        *("--orders", "2000", "--rate", "5", "--duration", "15"),
        *("--before-verify", alter, "--keep"),
    )
    kill_parts(demo, 2_000)
    demo.wait_for_line("Ctrl-C stops it", 450)
    response = requests.get(f"{demo.printed('orders service')}/orders/7", timeout=10)
    check_console(demo)
    differences(demo, "cache", "--repair")
    check_traces(demo, scalar(demo, COMPLETED))
    demo.interrupt()
    code = demo.end(60)
    result = json.loads(demo.result.read_text())

    assert response.json()["order_id"] == 7
    assert code == 1, demo.text
    check_result(result, 2_000, cache_differences=1)
    assert result["sinks"][0]["named"][0].startswith("orders 7: status is")
    assert "cache: orders 7: status is" in demo.text
    assert demo.remaining() == []


@pytest.mark.soak
def test_all_stores_agree_after_every_part_is_killed_during_a_spike(start, tmp_path):
    """
    Every service, worker and driver, the storefront and the relay die during a spike.
    """
    demo = start("--orders", "5000", "--rate", "10", "--duration", "15", "--keep")
    demo.wait_for_line("Ctrl-C stops it", 450)
    first_order = 1 + scalar(demo, "select max(id) from shop.orders")
    spike = kill_during_a_spike(demo, tmp_path / "load")
    check_spike(demo, *spike, first_order)
    demo.interrupt()
    code = demo.end(60)

    assert code == 0, demo.text
    assert demo.remaining() == []


@pytest.mark.soak
def test_the_sinks_of_a_large_demo_equal_the_source_after_kills(start):
    """
    The relay and drivers are killed in a longer demo, which exits with 0.
    """
    demo = start("--orders", "20000", "--rate", "20")
    kill_parts(demo, 20_000)
    code = demo.end(450)

    assert code == 0, demo.text
    check_result(json.loads(demo.result.read_text()), 20_000, cache_differences=0)
    assert demo.remaining() == []


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("kafka", id="while the stack starts"),
        pytest.param("serving", id="while the drivers start"),
    ],
)
def test_ctrl_c_leaves_no_process_behind(start, moment):
    """
    A demo that is interrupted early exits with 130, and all its processes have ended.
    """
    demo = start("--orders", "2000")
    file = demo.state.process_file(moment)
    demo.wait_until(lambda: process.find(file) is not None, 60, moment)
    demo.interrupt()
    code = demo.end(60)

    assert code == 130, demo.text
    assert demo.seen
    assert demo.remaining() == []
