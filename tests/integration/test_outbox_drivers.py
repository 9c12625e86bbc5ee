"""Events in the transactions of every driver that the outbox library supports."""

import asyncio
import json
import uuid
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime

import asyncpg
import psycopg
import psycopg2
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from support.django_connection import connect_django
from towpath.outbox import (
    NO_SCHEMA,
    Events,
    NoTransactionError,
    Outbox,
    OutboxEvent,
    SessionTypeError,
    configure,
    record,
    record_async,
)
from towpath.outbox.sqlalchemy import Collector, track
from towpath.schemas import source_tables

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

events = Events(unknown="none")
WAYS = ("keep", "delete", "message")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@events.event(aggregate_type="post", key="post_id", schema=NO_SCHEMA)
@dataclass
class PostPublished:
    """An event of a blog."""

    post_id: int
    title: str


class Log:
    """A database with an outbox, and the events in its WAL."""

    def __init__(self, dsn):
        self.dsn = dsn
        self.url = dsn.replace("postgresql:", "postgresql+{}:", 1)
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(source_tables.schema_statement())
        self._connection.execute(source_tables.outbox().create_statement())
        self.slot = f"s_{uuid.uuid4().hex[:12]}"
        self._connection.execute(
            "select pg_create_logical_replication_slot(%s, 'test_decoding')",
            [self.slot],
        )

    def titles(self):
        """Return the titles of the new committed events in the WAL, in order."""
        rows = self._connection.execute(
            "select data from pg_logical_slot_get_changes(%s, null, null)", [self.slot]
        )
        lines = [row[0] for row in rows]
        found = [
            line
            for line in lines
            if line.startswith("message: ") or "outbox: INSERT" in line
        ]
        return [line.split('"title": "')[1].split('"')[0] for line in found]

    def kept(self):
        """Return the number of rows in the outbox."""
        (count,) = self._connection.execute(
            "select count(*) from towpath.outbox"
        ).fetchone()
        return count

    def row(self):
        """Return the only row in the outbox."""
        return self._connection.execute(
            "select id, aggregate_type, aggregate_id, type, payload, headers,"
            " traceparent, occurred_at from towpath.outbox"
        ).fetchone()

    def close(self):
        """Drop the slot."""
        self._connection.execute("select pg_drop_replication_slot(%s)", [self.slot])
        self._connection.close()


@pytest.fixture
def log(database):
    """Provide a database with an outbox, and its WAL."""
    made = Log(database)
    yield made
    made.close()


def event(title):
    """Return an event with a title."""
    return PostPublished(7, title)


@pytest.mark.parametrize("way", ["keep", "delete"])
def test_more_events_than_fit_in_one_statement_are_recorded(log, way):
    """
    Several statements write the events in order.
    """
    titles = [str(number) for number in range(9000)]
    outbox = Outbox(events, way=way)
    many = [event(title) for title in titles]

    async def asynchronous():
        connection = await asyncpg.connect(log.dsn)
        async with connection.transaction():
            await outbox.record_all_async(connection, many)
        await connection.close()

    with psycopg.connect(log.dsn) as connection:
        outbox.record_all(connection, many)
    first = log.titles()
    asyncio.run(asynchronous())

    assert (titles, titles) == (first, log.titles())
    assert (0 if way == "delete" else 18_000) == log.kept()


def test_a_quoted_table_name_is_used_as_in_the_relay(log):
    """
    A name with a capital letter or a dot must be quoted.
    """
    with psycopg.connect(log.dsn, autocommit=True) as connection:
        connection.execute('create schema "S.c"')
        connection.execute('alter table towpath.outbox set schema "S.c"')
        with connection.transaction():
            Outbox(events, table='"S.c".outbox').record(connection, event("a"))
        rows = connection.execute('select count(*) from "S.c".outbox').fetchone()

    assert (1,) == rows


def in_session(outbox, log):
    """Record with an SQLAlchemy ORM session."""
    engine = create_engine(log.url.format("psycopg2"))
    with Session(engine) as session, session.begin():
        outbox.record(session, event("a"))
        savepoint = session.begin_nested()
        outbox.record(session, event("lost"))
        savepoint.rollback()
        outbox.record_all(session, [event("b"), event("c")])
    with Session(engine) as session:
        outbox.record(session, event("lost"))
        session.rollback()
    engine.dispose()


def in_scoped_session(outbox, log):
    """Record with a scoped session, as used by web frameworks, on psycopg 3."""
    engine = create_engine(log.url.format("psycopg"))
    session = scoped_session(sessionmaker(engine))
    outbox.record(session, event("a"))
    outbox.record_all(session, [event("b"), event("c")])
    session.commit()
    outbox.record(session, event("lost"))
    session.remove()
    engine.dispose()


def on_core_connection(outbox, log):
    """Record with an SQLAlchemy Core connection."""
    engine = create_engine(log.url.format("psycopg2"))
    with engine.begin() as connection:
        outbox.record(connection, event("a"))
        savepoint = connection.begin_nested()
        outbox.record(connection, event("lost"))
        savepoint.rollback()
        outbox.record_all(connection, [event("b"), event("c")])
    with engine.connect() as connection:
        outbox.record(connection, event("lost"))
    engine.dispose()


def on_psycopg2(outbox, log):
    """Record with a psycopg2 connection and its cursor."""
    connection = psycopg2.connect(log.dsn)
    with connection, connection.cursor() as cursor:
        outbox.record(connection, event("a"))
        cursor.execute("savepoint s")
        outbox.record(cursor, event("lost"))
        cursor.execute("rollback to savepoint s")
        outbox.record_all(cursor, [event("b"), event("c")])
    outbox.record(connection, event("lost"))
    connection.rollback()
    connection.close()


def on_psycopg(outbox, log):
    """Record with a psycopg 3 connection and its cursor."""
    with psycopg.connect(log.dsn, autocommit=True) as connection:
        with connection.transaction(), connection.cursor() as cursor:
            outbox.record(connection, event("a"))
            with connection.transaction(force_rollback=True):
                outbox.record(connection, event("lost"))
            outbox.record_all(cursor, [event("b"), event("c")])
        with connection.transaction(force_rollback=True):
            outbox.record(connection, event("lost"))


def on_django(outbox, log):
    """Record with Django's connection, inside ``atomic``."""
    connection = connect_django(log.dsn)
    from django.db import transaction  # noqa: PLC0415 - needs its settings first

    with transaction.atomic():
        outbox.record(connection, event("a"))
        savepoint = transaction.savepoint()
        outbox.record(connection, event("lost"))
        transaction.savepoint_rollback(savepoint)
        outbox.record_all(connection, [event("b"), event("c")])
    with pytest.raises(NoTransactionError):
        outbox.record(connection, event("lost"))
    connection.close()


def in_async_session(outbox, log):
    """Record with an asynchronous SQLAlchemy session, on asyncpg."""

    async def record():
        engine = create_async_engine(log.url.format("asyncpg"))
        sessions = async_sessionmaker(engine)
        async with sessions.begin() as session:
            await outbox.record_async(session, event("a"))
            savepoint = await session.begin_nested()
            await outbox.record_async(session, event("lost"))
            await savepoint.rollback()
        async with engine.begin() as connection:
            await outbox.record_all_async(connection, [event("b"), event("c")])
        await engine.dispose()

    asyncio.run(record())


def on_async_psycopg(outbox, log):
    """Record with an asynchronous psycopg 3 connection."""

    async def record():
        async with await psycopg.AsyncConnection.connect(log.dsn) as connection:
            await outbox.record_async(connection, event("a"))
            async with connection.transaction(force_rollback=True):
                await outbox.record_async(connection, event("lost"))
            async with connection.cursor() as cursor:
                await outbox.record_all_async(cursor, [event("b"), event("c")])

    asyncio.run(record())


@asynccontextmanager
async def connected(dsn):
    """Provide an asyncpg connection for the block."""
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


def on_asyncpg(outbox, log):
    """Record with an asyncpg connection."""

    async def record():
        async with connected(log.dsn) as connection:
            with pytest.raises(NoTransactionError):
                await outbox.record_async(connection, event("lost"))
            async with connection.transaction():
                await outbox.record_async(connection, event("a"))
                savepoint = connection.transaction()
                await savepoint.start()
                await outbox.record_async(connection, event("lost"))
                await savepoint.rollback()
                await outbox.record_all_async(connection, [event("b"), event("c")])

    asyncio.run(record())


DRIVERS = (
    *(in_session, in_scoped_session, on_core_connection, on_psycopg2, on_psycopg),
    *(on_django, in_async_session, on_async_psycopg, on_asyncpg),
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.__name__)
def test_every_driver_records_events_in_the_callers_transaction(log, driver, way):
    """
    The WAL has the committed events in order, and none that was rolled back.
    """
    driver(Outbox(events, way=way), log)

    assert (["a", "b", "c"], 3 if way == "keep" else 0) == (log.titles(), log.kept())


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.__name__)
def test_every_driver_writes_the_same_row(log, driver):
    """
    Strings keep every character, and times every digit.
    """
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    given = OutboxEvent(
        aggregate_type="post",
        aggregate_id="Zoë:1%",
        type="PostPublished",
        payload={"title": 'Zoë \u2028 \\ " %s :name $1', "big": 2**60 + 1},
        headers={"tenant": "ä"},
        traceparent=TRACE,
        occurred_at=at,
    )

    class One(Outbox):
        def record(self, session, event):
            return super().record(session, given if event.title == "a" else event)

        async def record_async(self, session, event):
            chosen = given if event.title == "a" else event
            return await super().record_async(session, chosen)

    outbox = One(events)
    log.titles()
    driver(outbox, log)
    log._connection.execute(
        "delete from towpath.outbox where aggregate_id <> %s", [given.aggregate_id]
    )
    row = log.row()

    assert (
        *(given.id, "post", "Zoë:1%", "PostPublished", dict(given.payload)),
        *({"tenant": "ä"}, TRACE, at),
    ) == row


def test_the_rows_of_a_batch_keep_every_character(log):
    """
    Even characters with a special meaning in an array literal are kept.
    """
    texts = ["a", "NULL", "", '{"\\', "Zoë, \u2028 \n", ' "x" ', "%s :name $1"]
    given = [
        OutboxEvent(
            aggregate_type="post",
            aggregate_id=f"7{text}",
            type="PostPublished",
            payload={"title": text},
            headers={"h": text},
            traceparent=None if text == "a" else TRACE,
        )
        for text in texts
    ]
    with psycopg.connect(log.dsn) as connection:
        Outbox(events).record_all(connection, given)
        rows = connection.execute(
            "select aggregate_id, payload ->> 'title', headers ->> 'h', traceparent"
            " from towpath.outbox"
        ).fetchall()

    assert rows == [
        (f"7{text}", text, text, None if text == "a" else TRACE) for text in texts
    ]


def test_an_asynchronous_session_records_its_aggregates_events(log):
    """
    The collector is installed on the inner synchronous session.
    """

    class Post:
        def __init__(self):
            self.events = [event("a"), event("b")]

    async def work():
        engine = create_async_engine(log.url.format("asyncpg"))
        inner = sessionmaker()
        Collector(outbox=Outbox(events)).install(inner)
        sessions = async_sessionmaker(engine, sync_session_class=inner)
        async with sessions.begin() as session:
            track(session.sync_session, Post())
        async with sessions() as session:
            track(session.sync_session, Post())
            await session.rollback()
        await engine.dispose()

    asyncio.run(work())

    assert ["a", "b"] == log.titles()


def test_a_connection_that_commits_each_statement_is_refused(log):
    """
    Otherwise, an event would be committed without its state. Nothing is written.
    """
    outbox, title = Outbox(events), event("lost")
    engine = create_engine(log.url.format("psycopg2"), isolation_level="AUTOCOMMIT")
    with (
        closing(psycopg2.connect(log.dsn)) as old,
        psycopg.connect(log.dsn, autocommit=True) as new,
        engine.connect() as connection,
    ):
        old.autocommit = True
        for session in (old, new, connection):
            with pytest.raises(NoTransactionError):
                outbox.record(session, title)
    engine.dispose()

    assert [] == log.titles()


def test_a_session_of_the_wrong_kind_is_refused(log):
    """
    Synchronous functions refuse asynchronous sessions, and vice versa.
    """
    outbox = Outbox(events)

    async def check():
        engine = create_async_engine(log.url.format("asyncpg"))
        async with engine.connect() as connection:
            with pytest.raises(
                SessionTypeError, match="synchronous function cannot use a sqlalch"
            ):
                outbox.record(connection, event("lost"))
        await engine.dispose()
        with (
            psycopg.connect(log.dsn) as connection,
            pytest.raises(
                SessionTypeError, match="asynchronous function cannot use a psycopg"
            ),
        ):
            await outbox.record_async(connection, event("lost"))
        with pytest.raises(SessionTypeError, match=r"builtins\.dict"):
            await outbox.record_async({}, event("lost"))

    asyncio.run(check())

    assert [] == log.titles()


def test_configured_table_and_column_names_are_used(log):
    """
    The names have the same form as the relay's; a column without a name is not written.
    """
    log._connection.execute(
        'create table "Out Box" ("Id" text, kind text, key varchar, body jsonb)'
    )
    outbox = Outbox(
        events,
        table="public.Out Box",
        columns={
            "id": "Id",
            "aggregate_type": "kind",
            "aggregate_id": "key",
            "type": "",
            "payload": "body",
            "headers": "",
            "traceparent": "",
            "occurred_at": "",
        },
    )
    with psycopg.connect(log.dsn) as connection:
        recorded = outbox.record(connection, event("a"))
    row = log._connection.execute('select * from "Out Box"').fetchone()

    assert (str(recorded.id), "post", "7", {"post_id": 7, "title": "a"}) == row


def test_a_large_payload_is_stored_elsewhere(log):
    """
    The row has a claim check instead of the payload.
    """
    stored = {}

    def store(event, payload):
        stored[f"s3://claims/{event.id}"] = json.loads(payload)
        return f"s3://claims/{event.id}"

    outbox = Outbox(events, max_bytes=1000, claim_check=store)
    with psycopg.connect(log.dsn) as connection:
        large = outbox.record(connection, event("x" * 2000))
    row = log.row()
    claim = f"s3://claims/{large.id}"

    assert ({"claim_check": claim}, {"claim_check": claim}) == (row[4], row[5])
    assert {claim: {"post_id": 7, "title": "x" * 2000}} == stored


def test_the_engine_determines_how_events_are_written(log, monkeypatch):
    """
    Sessions of a configured engine write messages; all others write rows by default.
    """
    url = log.url.format("psycopg2")
    engine, other = create_engine(url), create_engine(url)
    async_engine = create_async_engine(log.url.format("asyncpg"))
    monkeypatch.setattr("towpath.outbox.outbox._default", [])
    configure(Outbox(events))
    for one in (engine, async_engine):
        configure(Outbox(events, way="message"), engine=one)

    async def record_messages():
        async with async_sessionmaker(async_engine).begin() as session:
            await record_async(session, event("c"))
            await record_async(await session.connection(), event("d"))
        await async_engine.dispose()

    with Session(engine) as session, session.begin():
        record(session, event("a"))
        record(session.connection(), event("b"))
    asyncio.run(record_messages())
    with Session(other) as session, session.begin():
        record(session, event("e"))
    with psycopg.connect(log.dsn) as connection:
        record(connection, event("f"))
    engine.dispose()
    other.dispose()
    rows = log._connection.execute("select payload from towpath.outbox").fetchall()

    assert ["a", "b", "c", "d", "e", "f"] == log.titles()
    assert {"e", "f"} == {payload["title"] for (payload,) in rows}


def test_a_percent_sign_in_a_name_is_escaped(log):
    """
    Drivers do not mistake part of a table name for a parameter.
    """
    table = source_tables.outbox("public.100%s")
    outbox = Outbox(events, table="public.100%s")
    django_connection = connect_django(log.dsn)
    from django.db import transaction  # noqa: PLC0415 - needs its settings first

    with (
        psycopg.connect(log.dsn) as new,
        closing(psycopg2.connect(log.dsn)) as old,
        closing(django_connection),
    ):
        new.execute(table.create_statement().encode())
        new.commit()
        outbox.record(new, event("a"))
        with old:
            outbox.record(old, event("b"))
        with transaction.atomic():
            outbox.record(django_connection, event("c"))
        new.commit()
        found = new.execute(b'select payload from public."100%s"').fetchall()

    assert {"a", "b", "c"} == {payload["title"] for (payload,) in found}


def test_a_text_statement_with_colons_in_names_is_escaped(log):
    """
    SQLAlchemy does not mistake part of a table name for a parameter.
    """
    log._connection.execute('create table "a:b%c" (id uuid, payload json)')
    others = ("aggregate_type", "aggregate_id", "type", "headers", "traceparent")
    empty = dict.fromkeys((*others, "occurred_at"), "")
    outbox = Outbox(events, table="public.a:b%c", columns=empty)
    engine = create_engine(log.url.format("psycopg2"))
    with engine.begin() as connection:
        outbox.record(connection, event("a"))
        count = connection.scalar(text('select count(*) from "a\\:b%c"'))
    engine.dispose()

    assert 1 == count
