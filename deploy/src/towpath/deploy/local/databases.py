"""Databases of the local Postgres: make one, drop one with all that holds it."""

import contextlib

import psycopg
from psycopg import sql


def create(dsn: str, name: str) -> None:
    """Create a database; ``dsn`` is the address of another one."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))


def drop(dsn: str, name: str) -> None:
    """
    Drop a database, its sessions and its replication slots.

    A slot that is read stops the drop, so its reader is sent away first.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = %s",
            [name],
        )
        slots = connection.execute(
            "select slot_name from pg_replication_slots where database = %s", [name]
        ).fetchall()
        for (slot,) in slots:
            with contextlib.suppress(psycopg.errors.UndefinedObject):
                connection.execute("select pg_drop_replication_slot(%s)", [slot])
        statement = sql.SQL("drop database if exists {} with (force)")
        connection.execute(statement.format(sql.Identifier(name)))
