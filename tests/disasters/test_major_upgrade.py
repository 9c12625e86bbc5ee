"""The source moves to a newer major release: docs/disasters/major-upgrade.md."""

import os
import subprocess

import pytest

from support.disaster import print_lines
from support.standby import programs_17, upgrade_server
from towpath.deploy.local import postgres
from towpath.deploy.local.stack import Stack

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture
def newer(tmp_path_factory):
    """Provide a stack with the packaged Postgres release, not yet started."""
    made = Stack(tmp_path_factory.mktemp("newer"))
    yield made
    made.purge()


def copy_database(old: str, new: Stack) -> None:
    """Dump a database with the newer release's programs; restore it into a stack."""
    programs = postgres.home_of(new.state).programs / "bin"
    target = new.addresses().dsn("shop")
    print_lines("$ pg_dump OLD | psql NEW")
    dump = subprocess.run(
        [programs / "pg_dump", old], check=True, capture_output=True, text=True
    )
    subprocess.run(
        [programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-o", os.devnull, target],
        input=dump.stdout,
        check=True,
        text=True,
    )


def restart_relay(disaster):
    """Prepare the new server, and start the relay, which detects a gap."""
    disaster.step("prepare the new server, and start the relay")
    assert 0 == disaster.towpath("relay", "init").code
    disaster.start()
    disaster.wait_for_relay_log("gap in the source's history")
    disaster.wait_for_relay_log("relay streaming", more_than=1)


def close_gap(disaster):
    """Read all rows again under load; compare events and sinks with the source."""
    disaster.step("resume the writers, and close the gap")
    done = disaster.towpath("snapshot", "start", "--sweep", "--wait")
    assert 0 == done.code
    disaster.verify_events()
    disaster.verify()


def test_a_newer_release_begins_a_new_lineage(make_disaster, newer):
    """
    No event that was confirmed before the upgrade is lost or published twice.
    """
    environ = os.environ  # noqa: TID251 - a root
    disaster = make_disaster(postgres.postgres_15_programs(print_lines, environ))
    with disaster.running():
        print_lines(disaster.one("select version()"))
        disaster.step("stop the writers, and let the relay and the sinks catch up")
        with disaster.writer.paused():
            disaster.confirm()
            disaster.towpath("relay", "status")
            assert 0 == disaster.stop()
            disaster.step("copy the database to the new server")
            newer.up(["postgres"])
            copy_database(disaster.dsn, newer)
            disaster.own.down(within_s=0.1)
            disaster.move(newer.addresses().dsn("shop"))
            print_lines(disaster.one("select version()"))
            restart_relay(disaster)
        close_gap(disaster)


def test_an_upgrade_in_place_begins_a_new_lineage(make_disaster, newer):
    """
    The slot is migrated, but the server's new identifier still begins a new lineage.
    """
    programs = programs_17()
    disaster = make_disaster(programs)
    with disaster.running():
        print_lines(disaster.one("select version()"))
        disaster.step("stop the writers, and let the relay and the sinks catch up")
        with disaster.writer.paused():
            disaster.confirm()
            disaster.towpath("relay", "status")
            assert 0 == disaster.stop()
            disaster.step("stop the server, and move its data with pg_upgrade")
            disaster.own.down()
            upgrade_server(postgres.home_of(disaster.own.state, programs), newer)
            newer.up(["postgres"])
            disaster.move(newer.addresses().dsn("shop"))
            print_lines(disaster.one("select version()"))
            slot = disaster.one("select slot_name from pg_replication_slots")
            assert disaster.prefix == slot
            restart_relay(disaster)
        close_gap(disaster)
