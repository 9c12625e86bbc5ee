"""The output of ``towpath sink list`` below the table of sinks."""

import pytest

from support.published import OneDriver
from towpath.cli.app import app
from towpath.deploy import status
from towpath.sinks.state.progress import Progress, State

NOT_RUNNING = (
    "cache: its driver 'sinks' is not running: the driver of the sink cache has not "
    "been heard from since 2026-01-02T03:04:05+00:00 (process 8 on here)"
)
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


class NoRecordAges:
    """The ages of records in a broker without records."""

    def __init__(self, *_address):
        """Connect to nothing."""

    def close(self):
        """Close nothing."""


class NoTopics:
    """A broker without topics."""

    def __init__(self, _servers):
        """Connect to nothing."""

    def names(self):
        """Return no topics."""
        return []

    def end_offsets(self, _names):
        """Return no offsets."""
        return {}


@pytest.fixture
def relay():
    """Provide the facts about the relay."""
    return dict(RELAY)


@pytest.fixture
def listed(tmp_path, monkeypatch, capsys, relay):
    """Provide a function that lists a sink and returns the exit code and last line."""
    monkeypatch.setattr(status, "Topics", NoTopics)
    monkeypatch.setattr(status, "KafkaRecordAges", NoRecordAges)
    monkeypatch.setattr(status, "_snapshots", lambda _settings: ([], None))
    monkeypatch.setattr(status, "_relay", lambda _settings: (relay, True))
    config = tmp_path / "towpath.toml"
    config.write_text(CONFIGURATION.format(folder=tmp_path))

    def run(*, alive_s_ago, **progress):
        driver = OneDriver(Progress("cache", **progress), alive_s_ago)
        monkeypatch.setattr(status, "ProgressReader", lambda *_: driver)
        code = app(["sink", "list", "--config", str(config)])
        return code, capsys.readouterr().out.splitlines()[-1]

    return run


def test_a_changed_block_that_a_running_driver_refuses_is_reported(listed):
    """
    The sink runs as before, which is not a failure; without the driver it is stopped.
    """
    code, line = listed(alive_s_ago=1, refused="no column x.")
    _, last = listed(alive_s_ago=99, refused="no column x.")

    refused = "cache: its changed block is refused; the sink continues as before: "
    assert (1, refused) == (code, line.removesuffix("no column x."))
    assert last == NOT_RUNNING


def test_a_failed_sink_has_its_reason(listed):
    """
    The command exits with 1.
    """
    found = listed(alive_s_ago=1, state=State.FAILED, error="Redis is down.")

    assert (1, "cache: Redis is down.") == found


def test_a_sink_without_a_driver_is_stopped(listed):
    """
    A driver that has ended published its last record long ago.
    """
    assert (1, NOT_RUNNING) == listed(alive_s_ago=99, state=State.RUNNING)


def test_a_halted_relay_is_reported_even_if_sinks_run(listed, relay):
    """
    The sinks get no new records.
    """
    relay |= {"active": False, "halted": "halted at 12:00: the slot is gone (make one)"}

    code, line = listed(alive_s_ago=1, state=State.RUNNING)

    assert code == 1
    assert (
        line == f"no relay is consuming the slot towpath: the relay {relay['halted']}"
    )
