"""Changes that the source's owner makes while the relay runs are reported."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.rig import Rig
from towpath.cli.app import run
from towpath.relay.__main__ import status

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture
def rig(database: str, stack, unique: str, tmp_path: Path) -> Iterator[Rig]:
    """Provide a relay that captures one table, with a pattern that new tables match."""
    stack.up("postgres", "kafka")
    source = Rig(database, stack.kafka, unique, tmp_path)
    source.execute("create table public.note (id int primary key)")
    source.configure("heartbeat_interval_s = 0.3", tables=[r"public\..*"])
    source.init()
    source.start()
    source.confirm()
    yield source
    source.close()


def problems(rig: Rig, capsys) -> str:
    """Return the problems that ``relay status`` prints, as one string."""
    capsys.readouterr()
    status(rig.config, as_json=True)
    return " ".join(json.loads(capsys.readouterr().out)["source_problems"])


def records(rig: Rig, event: str, word: str) -> list[dict]:
    """Return the log records of an event whose description contains a word."""
    return [each for each in rig.logged(event) if word in each["what"]]


def logged(rig: Rig, event: str, word: str) -> bool:
    """Return whether ``records`` finds a record."""
    return bool(records(rig, event, word))


def test_a_change_to_publications_or_outbox_is_reported(rig: Rig, capsys):
    """
    Each problem is reported at the next check, with its remedy, and so is its end.

    The relay continues with everything that still works. A restart reports a missing
    outbox column again. The status shows the problems, too.
    """
    signal = "alter publication towpath {} table towpath.signal"
    rig.execute(signal.format("drop"))
    rig.wait_for(lambda: logged(rig, "source problem", "towpath.signal"))
    unsent = problems(rig, capsys)
    rig.execute(signal.format("add"))
    rig.wait_for(lambda: logged(rig, "source problem solved", "towpath.signal"))
    rig.execute("alter table towpath.outbox rename column payload to body")
    rig.wait_for(lambda: logged(rig, "source problem", "payload"))
    rig.stop()
    rig.start()
    rig.wait_for(lambda: len(records(rig, "source problem", "payload")) > 1)
    rig.stop()
    rig.execute("alter table towpath.outbox rename column body to payload")
    definition = "for table public.note, towpath.signal"
    rig.execute("drop publication towpath")
    rig.execute(f"create publication towpath {definition}")
    older = problems(rig, capsys)
    rig.start()
    rig.wait_for(lambda: logged(rig, "source problem", "older than publication"))

    assert "does not include towpath.signal" in unsent
    assert "run towpath relay init" in unsent
    assert "is older than publication towpath" in older


def test_tables_without_snapshot_are_listed_with_the_reason(rig: Rig, capsys):
    """A keyless table is captured; a warning says that earlier rows are not read."""
    rig.execute("create table public.keyless (v int)")
    rig.execute("insert into public.keyless values (1)")
    rig.execute("alter table public.keyless replica identity full")
    rig.wait_for(lambda: bool(rig.logged("table captured without its earlier rows")))
    (warned,) = rig.logged("table captured without its earlier rows")
    capsys.readouterr()
    status(rig.config, as_json=True)
    unreadable = json.loads(capsys.readouterr().out)["tables_without_snapshot"]
    run(["doctor", "--json", "--config", str(rig.config)])
    found = [
        each["what"]
        for each in json.loads(capsys.readouterr().out)
        if "snapshots cannot read it" in each["what"]
    ]
    run(["status", "--config", str(rig.config)])
    shown = " ".join(capsys.readouterr().out.split())

    assert ("public.keyless", "warning") == (warned["table"], warned["level"])
    assert ["public.keyless"] == list(unreadable)
    assert "no primary key" in unreadable["public.keyless"]
    assert 1 == len(found)
    assert "public.keyless: snapshots cannot read it" in shown
