"""
The demo from end to end, as a person runs it: the real command, real parts.

Parts are killed while it runs, a row is altered behind its back, and it is interrupted:
what it says and what it leaves behind must be right each time.
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading

import psutil
import pytest
import requests

from towpath.deploy.demo.shop import SIGNAL
from towpath.deploy.local import process
from towpath.deploy.local.part import StateFolder
from towpath.deploy.snapshots import signals
from towpath.schemas.clock import Deadline, SystemClock
from towpath.settings import load

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CLOCK = SystemClock()
GIB = 1024**3

# Changes one field of one order in the cache, as nobody should.
ALTER_ONE_ROW = """
import os
import redis
from towpath.settings import load
from pathlib import Path
settings = load(Path(os.environ["TOWPATH_CONFIG"]), {})
client = redis.Redis.from_url(settings.sink_named("cache").url)
assert client.hset("towpath:orders:7", "status", "lost") == 0
"""


class Demo:
    """A demo that runs as a process of its own; the lines that it prints."""

    def __init__(self, folder, *arguments):
        self.state = StateFolder(folder / "demo")
        self.result = folder / "result.json"
        self.lines = []
        self.seen = set()
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
        """Everything that it has printed until now."""
        return "".join(self.lines)

    def wait_until(self, condition, within_s, what):
        """Wait for something while the demo runs; remember the processes it has."""
        deadline = Deadline(CLOCK, within_s)
        while not condition():
            self.remember()
            assert self._process.poll() is None, f"ended before {what}:\n{self.text}"
            assert not deadline.passed(), f"waited for {what}:\n{self.text}"
            CLOCK.wait(0.1)

    def wait_for_line(self, words, within_s):
        """Wait until it has printed some words."""
        self.wait_until(lambda: words in self.text, within_s, words)

    def remember(self):
        """Remember the processes that it has now, so that none can be left unseen."""
        try:
            below = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        self.seen.update(below)

    def backfilled(self):
        """Count the rows that the new sink's snapshot has delivered by now."""
        settings = load(self.state.root / "towpath.toml", {})
        rows = signals.progress(settings.database, SIGNAL)
        return sum(row.rows for row in rows)

    def kill(self, part):
        """Kill a part with SIGKILL, and wait until another has taken its place."""
        file = self.state.process_file(part)
        before = process.find(file)
        assert before is not None, f"{part} does not run:\n{self.text}"
        before.kill()

        def has_successor():
            now = process.find(file)
            return now is not None and now.pid != before.pid

        self.wait_until(has_successor, 30, f"the successor of {part}")

    def interrupt(self):
        """Press Ctrl-C."""
        self.remember()
        self._process.send_signal(signal.SIGINT)

    def end(self, within_s):
        """Wait until it has ended; return its exit code."""
        deadline = Deadline(CLOCK, within_s)
        while self._process.poll() is None and not deadline.passed():
            self.remember()
            CLOCK.wait(0.2)
        code = self._process.wait(timeout=1)
        self._reader.join(timeout=10)
        return code

    def left(self):
        """List the processes that it has left behind, waiting for the last to go."""
        _, alive = psutil.wait_procs(self.seen, timeout=5)
        return [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]

    def destroy(self):
        """Kill it and whatever it has started, should the test have failed."""
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
    """Give a function that starts a demo; none outlives the test."""
    demos = []

    def begin(*arguments):
        demos.append(Demo(tmp_path, *arguments))
        return demos[-1]

    yield begin
    for demo in demos:
        demo.destroy()


def kill_parts(demo, orders):
    """Kill a driver, then relay and other driver in the middle of the snapshot."""
    demo.wait_for_line("open the shop", 300)
    demo.kill("warehouse")
    demo.wait_for_line("insert into towpath.signal", 120)
    demo.wait_until(lambda: demo.backfilled() > orders // 5, 60, "a part of it")
    demo.kill("relay")
    demo.wait_until(lambda: demo.backfilled() > orders // 2, 60, "half of it")
    demo.kill("serving")


def check_result(result, orders, cache_differences):
    """Hold the demo's result against what was killed and altered."""
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


def test_killed_parts_lose_nothing_and_an_altered_row_is_named(start):
    """
    Relay and both Spark drivers are killed on the way, and all sinks equal the source.

    One field of one cached order is altered by hand before the comparison: the demo
    exits with 1 and names it, and finds nothing else. With --keep everything runs on
    after that, until Ctrl-C.
    """
    alter = f"{sys.executable} -c '{ALTER_ONE_ROW}'"
    # A load that two cores keep up with while three parts start again.
    demo = start(
        *("--orders", "5000", "--rate", "20", "--duration", "15"),
        *("--before-verify", alter, "--keep"),
    )
    kill_parts(demo, 5_000)
    demo.wait_for_line("Ctrl-C stops it", 450)
    address = next(line for line in demo.lines if line.startswith("orders service"))
    answer = requests.get(f"{address.split()[-1]}/orders/7", timeout=10)
    demo.interrupt()
    code = demo.end(60)
    result = json.loads(demo.result.read_text())

    assert answer.json()["order_id"] == 7
    assert code == 1, demo.text
    check_result(result, 5_000, cache_differences=1)
    assert result["sinks"][0]["named"][0].startswith("orders 7: status is")
    assert "cache: orders 7: status is" in demo.text
    assert demo.left() == []


@pytest.mark.soak
def test_a_large_demo_with_killed_parts_ends_equal(start):
    """
    With relay and drivers killed in a longer demo, it exits 0: not one difference.
    """
    demo = start("--orders", "20000", "--rate", "20")
    kill_parts(demo, 20_000)
    code = demo.end(450)

    assert code == 0, demo.text
    check_result(json.loads(demo.result.read_text()), 20_000, cache_differences=0)
    assert demo.left() == []


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("kafka", id="while the stack starts"),
        pytest.param("serving", id="while the drivers start"),
    ],
)
def test_ctrl_c_leaves_no_process_behind(start, moment):
    """
    Interrupted early, the demo ends with 130 and every process that it had is gone.
    """
    demo = start("--orders", "2000")
    file = demo.state.process_file(moment)
    demo.wait_until(lambda: process.find(file) is not None, 60, moment)
    demo.interrupt()
    code = demo.end(60)

    assert code == 130, demo.text
    assert demo.seen
    assert demo.left() == []
