"""Replication slots of tests: they must be dropped before the database."""

import contextlib

import psycopg

from support.waiting import until


def drop_slot(dsn: str, name: str) -> None:
    """Drop a slot, if it exists, as soon as no process uses it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        until(lambda: _is_dropped(connection, name), "the slot is free")


def _is_dropped(connection: psycopg.Connection, name: str) -> bool:
    with contextlib.suppress(psycopg.errors.ObjectInUse):
        connection.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            " where slot_name = %s",
            (name,),
        )
        return True
    return False
