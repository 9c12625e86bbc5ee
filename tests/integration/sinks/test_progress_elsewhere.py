"""A machine with only ``towpath.toml`` can read the progress of a driver's sinks."""

import json

import pytest

from support.sink_place import SinkPlace
from towpath.cli import app

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(400)]

FLUSHED = "select pg_current_wal_flush_lsn()::text"


class Elsewhere:
    """Another machine, which has the configuration but no state files."""

    def __init__(self, rig, folder, capsys):
        self._place = rig
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

    def run(self, *arguments):
        """Run a command; return its exit code and its output."""
        self._capsys.readouterr()
        code = app.run([*arguments, "--config", str(self.config)])
        return code, self._capsys.readouterr().out

    def wait(self, lsn, sink="plain", timeout_s=120):
        """Wait for an LSN; return the exit code and the document."""
        command = ("wait", "--lsn", lsn, "--sink", sink, "--timeout", str(timeout_s))
        code, printed = self.run(*command, "--json")
        return code, json.loads(printed[printed.index("{") :])

    def files(self):
        """List the files on this machine."""
        return sorted(path.name for path in self._folder.iterdir())


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a source with a relay and one sink, whose driver is not running yet."""
    stack.up("kafka", "redis")
    made = SinkPlace(stack, database, unique, tmp_path)
    made.prepare()
    yield made
    made.close()


@pytest.fixture
def elsewhere(rig, tmp_path, capsys):
    """Provide another machine."""
    return Elsewhere(rig, tmp_path / "elsewhere", capsys)


def change(rig, note):
    """Change a row; return an LSN after the commit, which the relay has confirmed."""
    rig.execute("update shop.lines set note = %s where order_id = 1", note)
    lsn = rig.one(FLUSHED)
    rig.confirm()
    return lsn


def test_commands_need_only_the_configuration(rig, elsewhere):
    """
    The driver runs, is killed, and runs again; the sink is dropped; the driver stops.
    """
    never = elsewhere.wait(change(rig, "a"), timeout_s=0.5)
    process = rig.start_driver()
    try:
        first = elsewhere.wait(change(rig, "b"))
        filled = rig.towpath("refill", "plain")
        listed = elsewhere.run("sink", "list")
        verified = elsewhere.run("verify", "plain", "--json")
    finally:
        process.kill()
        process.wait(10)
    killed = elsewhere.wait(change(rig, "c"), timeout_s=1)
    with rig.driver():
        again = elsewhere.wait(rig.one(FLUSHED))
        held = rig.plain() == rig.held("plain")
        assert 0 == rig.add("late")
        assert 0 == rig.towpath("drop", "plain", "--yes")
        dropped = elsewhere.wait(change(rig, "d"), timeout_s=1)
        elsewhere.refresh()
        added = elsewhere.wait(rig.one(FLUSHED), "late")
    ended = elsewhere.wait(rig.one(FLUSHED), "late", timeout_s=1)

    assert "no driver has published any progress" in never[1]["missing"]
    assert [1, 0, 1, 0, 1, 0, 1] == [
        code for code, _ in (never, first, killed, again, dropped, added, ended)
    ]
    assert (0, 0, 0, True) == (filled, listed[0], verified[0], held)
    assert "records to go" in killed[1]["missing"]
    assert "no driver has published any progress" in dropped[1]["missing"]
    assert "the driver of the sink late ended at" in ended[1]["missing"]
    assert ["towpath.toml"] == elsewhere.files()
