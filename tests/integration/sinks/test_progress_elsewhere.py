"""A machine with only ``towpath.toml`` knows how far the sinks of a driver are."""

import json

import pytest

from support.sink_place import SinkPlace
from towpath.cli import app

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(400)]

FLUSHED = "select pg_current_wal_flush_lsn()::text"


class Elsewhere:
    """Another machine: it has the configuration, and a state folder without files."""

    def __init__(self, place, folder, capsys):
        self._place = place
        self._folder = folder
        self._capsys = capsys
        self.refresh()

    @property
    def config(self):
        """The configuration file."""
        return self._folder / "towpath.toml"

    def refresh(self):
        """Copy the configuration."""
        self._folder.mkdir(exist_ok=True)
        self.config.write_text(self._place.config.read_text())

    def run(self, *words):
        """Run a command; return its exit code and what it prints."""
        self._capsys.readouterr()
        code = app.run([*words, "--config", str(self.config)])
        return code, self._capsys.readouterr().out

    def wait(self, lsn, sink="plain", timeout_s=120):
        """Wait for an LSN; return the exit code and the document."""
        words = ("wait", "--lsn", lsn, "--sink", sink, "--timeout", str(timeout_s))
        code, printed = self.run(*words, "--json")
        return code, json.loads(printed[printed.index("{") :])

    def files(self):
        """List what commands have left."""
        return sorted(path.name for path in self._folder.iterdir())


@pytest.fixture
def place(stack, database, unique, tmp_path):
    """Provide a source with a relay and one sink, whose driver does not run yet."""
    stack.up("kafka", "redis")
    made = SinkPlace(stack, database, unique, tmp_path)
    made.prepare()
    yield made
    made.close()


@pytest.fixture
def elsewhere(place, tmp_path, capsys):
    """Provide another machine."""
    return Elsewhere(place, tmp_path / "elsewhere", capsys)


def change(place, note):
    """Change a row; return an LSN behind the commit, which the relay has confirmed."""
    place.execute("update shop.lines set note = %s where order_id = 1", note)
    lsn = place.one(FLUSHED)
    place.confirm()
    return lsn


def test_commands_need_only_the_configuration(place, elsewhere):
    """
    A driver runs, is killed, runs again, drops the sink and stops.
    """
    never = elsewhere.wait(change(place, "a"), timeout_s=0.5)
    process = place.start_driver()
    try:
        first = elsewhere.wait(change(place, "b"))
        filled = place.towpath("refill", "plain")
        listed = elsewhere.run("sink", "list")
        verified = elsewhere.run("verify", "plain", "--json")
    finally:
        process.kill()
        process.wait(10)
    killed = elsewhere.wait(change(place, "c"), timeout_s=1)
    with place.driver():
        again = elsewhere.wait(place.one(FLUSHED))
        held = place.plain() == place.held("plain")
        assert 0 == place.add("late")
        assert 0 == place.towpath("drop", "plain", "--yes")
        dropped = elsewhere.wait(change(place, "d"), timeout_s=1)
        elsewhere.refresh()
        added = elsewhere.wait(place.one(FLUSHED), "late")
    ended = elsewhere.wait(place.one(FLUSHED), "late", timeout_s=1)

    assert "no driver has published any progress" in never[1]["missing"]
    assert [1, 0, 1, 0, 1, 0, 1] == [
        code for code, _ in (never, first, killed, again, dropped, added, ended)
    ]
    assert (0, 0, 0, True) == (filled, listed[0], verified[0], held)
    assert "records to go" in killed[1]["missing"]
    assert "no driver has published any progress" in dropped[1]["missing"]
    assert "the driver of the sink late ended at" in ended[1]["missing"]
    assert ["towpath.toml"] == elsewhere.files()
