"""Replication slots of tests, which must be dropped before their database."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg

from support.waiting import until


def drop_slot(dsn: str, name: str) -> None:
    """Drop a slot, if it exists, as soon as no process uses it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        until(lambda: _is_dropped(connection, name), "the slot is free")


@contextlib.contextmanager
def slot_in_creation(dsn: str, name: str) -> Iterator[None]:
    """Create a slot; an open transaction delays its creation until the block ends."""
    create = "select pg_create_logical_replication_slot(%s, 'pgoutput')"
    shown = "select from pg_replication_slots where slot_name = %s"
    with (
        ThreadPoolExecutor() as pool,
        psycopg.connect(dsn, autocommit=True) as connection,
        psycopg.connect(dsn) as older,
    ):
        older.execute("select pg_current_xact_id()")
        creation = pool.submit(connection.execute, create, (name,))
        until(lambda: older.execute(shown, (name,)).rowcount, "the creation begins")
        yield
        older.commit()
        creation.result()


def _is_dropped(connection: psycopg.Connection, name: str) -> bool:
    with contextlib.suppress(psycopg.errors.ObjectInUse):
        connection.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            " where slot_name = %s",
            (name,),
        )
        return True
    return False
