"""The Kill page exists only in a demo, kills only its parts, and shows the effects."""

import sys
from dataclasses import replace
from datetime import timedelta

import psutil
import pytest

from support.waiting import until
from towpath.deploy.console import Reading, Samples, kills
from towpath.deploy.console.kills import EXTENSION
from towpath.deploy.console.pages import create_app
from towpath.deploy.console.security import Access, AuditLog
from towpath.deploy.local import process
from towpath.deploy.local.part import Part, StateFolder
from towpath.schemas.clock import SystemClock

TOKEN = "a-token-of-this-test-alone"  # noqa: S105 - used only in this test
AS_OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
WAITS = (sys.executable, "-c", "import signal; signal.pause()")
HALTED = {"slot": "towpath", "error": None, "active": False, "halted": "it is broken"}
RUNNING = HALTED | {
    "active": True,
    "halted": "",
    "wal_status": "reserved",
    "retained_bytes": 0,
    "confirmed_lsn": "0/1000",
}


class ReadState:
    """A platform whose newest reading is set by a test."""

    def __init__(self):
        self.samples = Samples()
        self.age_s = 0.0
        self.read(RUNNING)

    def read(self, relay, *, later_s=0.0):
        """Set the newest reading."""
        source = {
            "address": "shop",
            "tables": [],
            "warning_bytes": 1,
            "critical_bytes": 2,
        }
        found = {"relay": relay, "sinks": [], "source": source, "wrong": []}
        at = SystemClock().now() + timedelta(seconds=later_s)
        self.reading = Reading(at, found | {"parts": [], "snapshots": []}, ())

    def refresh(self):
        """Read nothing."""


class KilledDemo:
    """The parts of a demo, and its console."""

    def __init__(self, folder):
        self.state = StateFolder(folder)
        self.state.create()
        self.platform = ReadState()
        self.access = Access(
            TOKEN,
            AuditLog(folder / "audit", SystemClock()),
            SystemClock(),
            is_local=True,
        )
        self.app = create_app(self.platform, self.access, self.state)
        self.client = self.app.test_client()

    def start(self, name):
        """Start a part that waits."""
        part = Part(name=name, command=WAITS, folder=self.state.root)
        return process.start(replace(part, env={}), self.state)

    def kill(self, name, **headers):
        """Ask the console to kill a part."""
        return self.client.post(
            "/api/kills", json={"part": name}, headers=headers or AS_OPERATOR
        )

    def wait_until_gone(self, name):
        """Wait until the killed process of a part has ended."""
        file = self.state.process_file(name)
        until(lambda: process.find(file) is None, f"{name} has ended")

    def kills(self):
        """Return the document of the kills, after updating the recoveries."""
        self.app.extensions[EXTENSION].observe()
        return self.client.get("/api/kills").json["kills"]


@pytest.fixture
def demo(tmp_path):
    """Provide a demo with three parts, which end with the test."""
    demo = KilledDemo(tmp_path)
    for name in ("relay", "console", "load"):
        demo.start(name)
    yield demo
    for name in demo.state.parts():
        process.stop(demo.state.process_file(name), within_s=5.0)


def test_a_killed_part_is_followed_until_there_is_no_problem(demo):
    """
    The times of its restart and of the first reading without problems are recorded.
    """
    response = demo.kill("relay")
    demo.wait_until_gone("relay")
    first = demo.kills()
    demo.start("relay")
    demo.platform.read(HALTED, later_s=1.0)
    second = demo.kills()
    demo.platform.read(RUNNING, later_s=2.0)
    third = demo.kills()

    assert response.status_code == 200, response.text
    assert (first[0]["started_after_s"], first[0]["normal_after_s"]) == (None, None)
    assert second[0]["started_after_s"] is not None
    assert second[0]["normal_after_s"] is None
    assert third[0]["normal_after_s"] >= 1.0
    assert [line["outcome"] for line in demo.access.audit.newest(2)] == [
        f"killed relay, process {third[0]['pid']}",
        "begun",
    ]


def test_a_reading_from_before_the_restart_does_not_count(demo):
    """
    Only a reading that is newer than the new process can complete the recovery.
    """
    demo.kill("relay")
    demo.wait_until_gone("relay")
    demo.platform.read(RUNNING, later_s=-1.0)
    demo.start("relay")

    assert demo.kills()[0]["normal_after_s"] is None


@pytest.mark.parametrize("name", ["console", "load", "../relay", "postgres"])
def test_only_running_parts_of_the_demo_are_killed(demo, name):
    """
    The console, the load, and parts that were never started are refused.
    """
    assert demo.kill(name).status_code == 422
    assert demo.kills() == []


def test_a_part_that_is_not_running_is_not_killed_again(demo):
    """
    The request is refused as a conflict.
    """
    demo.kill("relay")
    demo.wait_until_gone("relay")
    response = demo.kill("relay")

    assert (response.status_code, len(demo.kills())) == (409, 1)


def test_a_kill_requires_the_token(demo):
    """
    A refused request leaves no audit line, and the part keeps running.
    """
    response = demo.kill("relay", Accept="application/json")

    assert response.status_code == 401
    assert demo.access.audit.newest(5) == []
    assert [p["pid"] for p in demo.client.get("/api/kills").json["parts"]] != [None]


def test_a_console_outside_a_demo_has_no_kill_page(demo):
    """
    Without the folder of a demo, there is neither a page nor a link.
    """
    client = create_app(demo.platform, demo.access).test_client()
    with_page = demo.client.get("/kill")

    assert [client.get(path).status_code for path in ("/kill", "/api/kills")] == [
        404
    ] * 2
    assert ('href="/kill"' in with_page.text) is True
    assert ('href="/kill"' in client.get("/verify").text) is False


def test_a_part_that_ends_just_before_the_kill_is_a_conflict(demo, monkeypatch):
    """
    Its process is found, but ends before the signal is sent.
    """
    file = demo.state.process_file("relay")
    found = psutil.Process(process.find(file).pid)
    found.kill()
    # A signal to it succeeds until this process, its parent, has reaped it.
    until(
        lambda: process.find(file) is None and not psutil.pid_exists(found.pid),
        "its process is gone",
    )
    monkeypatch.setattr(kills, "find", lambda _file: found)
    response = demo.kill("relay")

    assert (409, []) == (response.status_code, demo.kills())
    assert "relay is not running" in response.json["detail"]
