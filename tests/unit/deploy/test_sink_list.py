"""The output of ``towpath sink list`` beside the sinks' numbers."""

from datetime import timedelta

import pytest

from towpath.cli.app import app
from towpath.deploy import status
from towpath.schemas.clock import SystemClock
from towpath.sinks.state.progress import (
    DriverHeartbeat,
    Progress,
    State,
    progress_path,
    write_heartbeat,
    write_progress,
)

NOWHERE = DriverHeartbeat("127.0.0.1", None)
CONFIGURATION = """
    version = 1
    state_folder = "{folder}"
    [[source]]
    dsn = "postgresql://unused/shop"
    [kafka]
    bootstrap_servers = "127.0.0.1:1"
    [registry]
    url = "http://unused"
    [[sink]]
    name = "cache"
    kind = "cache"
    url = "redis://unused"
    [[sink.route]]
    topic = "towpath.shop.orders"
    name = "orders"
"""


RELAY = {"slot": "towpath", "error": None, "active": True, "halted": ""}


class Nothing:
    """No record is old: there are none."""

    def __init__(self, *_address):
        """Connect to nothing."""

    def close(self):
        """Let go of nothing."""


class NoTopics:
    """A broker without a topic."""

    def __init__(self, _servers):
        """Connect to nothing."""

    def names(self):
        """List none."""
        return []

    def end_offsets(self, _names):
        """Return no ends."""
        return {}


@pytest.fixture
def relay():
    """Give what is known of the relay."""
    return dict(RELAY)


@pytest.fixture
def listed(tmp_path, monkeypatch, capsys, relay):
    """Give a function that lists a sink; it returns exit code and last line."""
    monkeypatch.setattr(status, "Topics", NoTopics)
    monkeypatch.setattr(status, "KafkaRecordAges", Nothing)
    monkeypatch.setattr(status, "_snapshots", lambda _settings: [])
    monkeypatch.setattr(status, "_relay", lambda _settings: relay)
    config = tmp_path / "towpath.toml"
    config.write_text(CONFIGURATION.format(folder=tmp_path))

    def run(*, alive_s_ago, **progress):
        now = SystemClock().now()
        path = progress_path(tmp_path, "cache")
        write_progress(path, Progress("cache", **progress), now)
        alive_at = now - timedelta(seconds=alive_s_ago)
        write_heartbeat(tmp_path, "cache", NOWHERE, alive_at)
        code = app(["sink", "list", "--config", str(config)])
        return code, capsys.readouterr().out.splitlines()[-1]

    return run


def test_a_changed_block_that_a_running_driver_refuses_is_reported(listed):
    """
    It runs as before, which is no failure; without the driver nothing runs.
    """
    code, line = listed(alive_s_ago=1, refused="no column x.")
    _, last = listed(alive_s_ago=99, refused="no column x.")

    assert (1, "cache: its changed block is refused; it continues as before: ") == (
        code,
        line.removesuffix("no column x."),
    )
    assert last == "cache: its driver sinks is not running"


def test_a_failed_sink_has_its_reason(listed):
    """
    The command exits with 1.
    """
    told = listed(alive_s_ago=1, state=State.FAILED, error="Redis is away.")

    assert (1, "cache: Redis is away.") == told


def test_a_sink_without_a_driver_is_stopped(listed):
    """
    A driver that has gone, or is just starting, wrote its file.
    """
    assert (1, "cache: its driver sinks is not running") == listed(
        alive_s_ago=99, state=State.RUNNING
    )


def test_a_halted_relay_is_reported_beside_running_sinks(listed, relay):
    """
    No new records come to them.
    """
    relay |= {"active": False, "halted": "halted at 12:00: the slot is gone (make one)"}

    code, line = listed(alive_s_ago=1, state=State.RUNNING)

    assert code == 1
    assert line == f"no relay follows the slot towpath: the relay {relay['halted']}"
