"""The source's volume is lost, and a backup is restored: docs/disasters."""

import shutil

import pytest

from support.disaster import PATIENCE_S
from support.standby import copy_server
from support.waiting import until
from towpath.deploy.local import postgres

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


def test_a_restored_backup_causes_a_gap_that_snapshots_close(disaster):
    """
    Rows that were written after the backup are removed from the sinks.
    """
    with disaster.running():
        home = postgres.home_of(disaster.own.state)
        backup = postgres.PostgresHome(
            programs=home.programs, folder=home.folder / "backup", user=home.user
        )
        disaster.step("take a backup, and continue writing")
        backup.folder.mkdir()
        if home.user is not None:
            shutil.chown(backup.folder, home.user.uid, home.user.gid)
        copy_server(disaster.own, backup)
        count = len(disaster.writer.events)
        until(
            lambda: len(set(disaster.published_events())) > count + 100,
            "more events are published",
            timeout_s=PATIENCE_S,
        )
        disaster.step("the volume is lost: stop the relay, restore the backup")
        disaster.own.down(within_s=0.1)
        disaster.stop()
        shutil.rmtree(home.data)
        backup.data.rename(home.data)
        disaster.own.up(["postgres"])
        disaster.reconnect(disaster.dsn)
        disaster.step("prepare the source, start the relay, close the gap")
        assert 0 == disaster.towpath("relay", "init").code
        disaster.start()
        disaster.wait_for_relay_log("gap in the source's history")
        disaster.wait_for_relay_log("relay streaming", more_than=1)
        done = disaster.towpath("snapshot", "start", "--sweep", "--wait")
        assert 0 == done.code
        disaster.verify()
