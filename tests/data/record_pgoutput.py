"""
Record the messages of a real server: ``python tests/data/record_pgoutput.py DSN``.

The script makes every kind of change in a new database, follows the changes through a
slot, and writes the received messages to two files in this folder, in stream order:
``pgoutput.hex``, one message per line, and ``frames.hex``, one whole frame of the
replication connection per line: a keepalive, and the WAL data frame with the shortest
message of each kind.

Add new statements at the end of ``STATEMENTS``: tests count messages from the
beginning.
"""

import sys
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

from towpath.deploy.local import postgres
from towpath.relay.postgres.replication import SlotStream, Wakeup
from towpath.relay.wal.pgoutput import KEEPALIVE, PAYLOAD_AT
from towpath.schemas.clock import Deadline, SystemClock

FOLDER: Final = Path(__file__).parent
NAME: Final = "towpath_recording"
TIMEOUT_S: Final = 30.0
LAST: Final = "the end"

TABLES: Final = """
create schema rec;
create type rec.mood as enum ('ok', 'sad');
create table rec.item (
    a int, id int, name text, mood rec.mood, big text, at timestamptz,
    primary key (a, id)
);
alter table rec.item alter big set storage external;
create table rec.whole (id int primary key, note text);
alter table rec.whole replica identity full;
alter table rec.whole alter note set storage external;
create table rec.indexed (id int not null, code text not null, note text);
create unique index code on rec.indexed (code);
alter table rec.indexed replica identity using index code;
create table rec.bare (note text);
alter table rec.bare replica identity nothing;
create table rec.empty ();
create domain rec.positive as int check (value > 0);
create type rec.pair as (x int, y text);
create table rec.rich (
    id int primary key, many rec.mood[], pair rec.pair, plus rec.positive,
    amount numeric(12, 2), double int generated always as (id * 2) stored
);
create table rec.part (id int, day date, primary key (id, day))
    partition by range (day);
create table rec.part_1 partition of rec.part
    for values from ('2026-01-01') to ('2027-01-01');
create table rec."Zoë ✓ ""q"" таблица" ("наименование" text primary key, "a b" int);
"""

STATEMENTS: Final = (
    "insert into rec.item values (1, 2, 'Zoë', null, null, '2026-01-02 03:04:05.6+00')",
    "update rec.item set big = repeat('x', 3000)",
    "update rec.item set name = 'n', mood = 'ok'",
    "update rec.item set a = 7",
    "delete from rec.item",
    "insert into rec.whole values (1, 'a'), (2, null)",
    "update rec.whole set note = 'b' where id = 1",
    "delete from rec.whole where id = 2",
    "truncate rec.item, rec.whole restart identity cascade",
    "select pg_logical_emit_message(true, 'towpath.test', 'in ✓')",
    """select pg_logical_emit_message(false, 'towpath.watermark', '{"token": 1}')""",
    """
    select pg_replication_origin_create('rec_origin');
    select pg_replication_origin_session_setup('rec_origin');
    begin;
    select pg_replication_origin_xact_setup('0/AABBCC', now());
    insert into rec.whole values (9, 'o');
    commit;
    select pg_replication_origin_session_reset();
    """,
    "insert into rec.indexed values (1, 'a', 'n'), (2, 'b', null)",
    "update rec.indexed set note = 'm' where id = 1",
    "update rec.indexed set code = 'c' where id = 1",
    "delete from rec.indexed",
    "insert into rec.bare values ('only inserts'), ('')",
    "insert into rec.empty default values",
    """insert into rec.rich values (1, '{ok,sad,null}', '(1,"a b")', 3, 1.50)""",
    "update rec.rich set id = 2",
    "insert into rec.part values (1, '2026-05-05')",
    "truncate rec.part",
    """insert into rec."Zoë ✓ ""q"" таблица" values ('значение ☃', 1)""",
    """update rec."Zoë ✓ ""q"" таблица" set "наименование" = '𝄞'""",
    "insert into rec.whole values (10, repeat('y', 2500))",
    "update rec.whole set id = 11 where id = 10",
    """
    begin;
    insert into rec.bare values ('kept');
    savepoint s;
    insert into rec.bare values ('rolled back');
    rollback to s;
    select pg_logical_emit_message(true, 'préfixe ☃', '');
    insert into rec.bare values ('kept too');
    commit;
    """,
    "select pg_logical_emit_message(false, 'bytes', '\\x00fffe00'::bytea)",
    "alter table rec.bare add extra jsonb default '[]', drop note",
    "insert into rec.bare default values",
    "alter table rec.bare rename extra to rest; insert into rec.bare values ('{}')",
    f"select pg_logical_emit_message(true, '{LAST}', '')",
)


def record(dsn: str) -> list[bytes]:
    """Run the statements in a fresh database, and return every received frame."""
    with psycopg.connect(dsn, autocommit=True) as source:
        source.execute(TABLES)
        source.execute(f"create publication {NAME} for tables in schema rec")
        source.execute(
            "select pg_create_logical_replication_slot(%s, 'pgoutput')", [NAME]
        )
        stream = SlotStream(dsn, SystemClock(), Wakeup())
        stream.start(NAME, (NAME,))
        for statement in STATEMENTS:
            source.execute(statement)
        source.execute("select pg_replication_origin_drop('rec_origin')")
    try:
        return list(until_the_end(stream))
    finally:
        stream.close()


def until_the_end(stream: SlotStream) -> list[bytes]:
    """Read frames up to the commit of the last statement and a following keepalive."""
    frames: list[bytes] = []
    deadline = Deadline(SystemClock(), TIMEOUT_S)
    is_over = False
    while not (is_over and frames[-1][0] == KEEPALIVE):
        frames += stream.read(1.0)
        is_over = any(LAST.encode() in frame for frame in frames)
        if deadline.passed():
            sys.exit(f"no end within {TIMEOUT_S:g} s")
    return frames


def shortest(frames: list[bytes]) -> list[bytes]:
    """Choose the last keepalive, and the shortest frame for each kind of message."""
    chosen: dict[bytes, bytes] = {}
    for frame in frames:
        kind = frame[PAYLOAD_AT : PAYLOAD_AT + 1]
        if frame[0] == KEEPALIVE:
            chosen[b"k"] = frame
        elif len(frame) < len(chosen.get(kind, frame + b"?")):
            chosen[kind] = frame
    return [frame for frame in frames if frame in chosen.values()]


def write(name: str, title: str, pieces: list[bytes]) -> None:
    """Write a title line, and then one line of hex per piece."""
    lines = [title, *(piece.hex() for piece in pieces)]
    (FOLDER / name).write_text("\n".join(lines) + "\n", encoding="ascii")


def main(dsn: str) -> None:
    """Record the messages into the two files."""
    postgres.drop_database(dsn, NAME)
    postgres.create_database(dsn, NAME)
    with psycopg.connect(dsn) as connection:
        server = connection.info.server_version // 10_000
    try:
        frames = record(make_conninfo(dsn, dbname=NAME))
    finally:
        postgres.drop_database(dsn, NAME)
    text = f"of a PostgreSQL {server} server per line"
    messages = [frame[PAYLOAD_AT:] for frame in frames if frame[0] != KEEPALIVE]
    write(
        "pgoutput.hex",
        f"# One message {text}, pgoutput protocol version 1, in stream order.",
        messages,
    )
    write("frames.hex", f"# One frame {text}, in stream order.", shortest(frames))


if __name__ == "__main__":
    main(sys.argv[1])
