"""Commits that are logged but not yet visible, because they wait for a standby."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import psycopg

from support.rig import Rig
from support.waiting import until


@contextlib.contextmanager
def late_commits(rig: Rig) -> Iterator[Callable[[str], None]]:
    """Provide a function whose commits reach the WAL without becoming visible."""
    database = rig.connection.info.dbname
    threads: list[threading.Thread] = []
    rig.execute(f"alter database {database} set synchronous_commit = local")
    rig.execute("set synchronous_commit = local")

    def commit(statements: str) -> None:
        def run() -> None:
            with psycopg.connect(rig.dsn, autocommit=True) as connection:
                connection.execute("set synchronous_commit = on")
                connection.execute(statements)

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    try:
        wait_for_standby(rig, "missing")
        yield commit
    finally:
        wait_for_standby(rig, "")
        for thread in threads:
            thread.join()


def wait_for_standby(rig: Rig, name: str) -> None:
    """Make commits wait for a missing standby; with an empty name, for none."""
    rig.execute(f"alter system set synchronous_standby_names = '{name}'")
    rig.execute("select pg_reload_conf()")
    shown = "select current_setting('synchronous_standby_names') = %s"
    until(lambda: rig.one(shown, name), f"commits wait for the standby {name!r}")
