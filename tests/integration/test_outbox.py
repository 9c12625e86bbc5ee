"""The outbox on a real Postgres: an event is committed if and only if its state is."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from sqlalchemy import Column, Engine, Table, Text, create_engine, text
from sqlalchemy.orm import Session, registry, sessionmaker

from towpath.outbox import (
    Events,
    InvalidEventError,
    Outbox,
    OutboxEvent,
    SavepointError,
)
from towpath.outbox.sqlalchemy import Collector, track
from towpath.schemas import source_tables
from towpath.services.orders.events import shop_schemas

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

AT = datetime(2026, 1, 2, tzinfo=UTC)
OUTBOX = Outbox(Events(shop_schemas()))
record = OUTBOX.record


@dataclass
class Member:
    """An aggregate with its own row and its pending events."""

    id: str
    name: str
    events: list[OutboxEvent] = field(default_factory=list)

    def rename(self, name: object) -> None:
        """Change the name, and add an event."""
        self.name = str(name)
        self.events.append(registered(self.id, name))


def registered(key: str, name: object = "Ada") -> OutboxEvent:
    """Return an event of a customer."""
    payload = {
        "customer_id": key,
        "name": name,
        "email": "ada@example.org",
        "active": True,
        "created_at": AT,
        "updated_at": AT,
    }
    return OutboxEvent(
        aggregate_type="customer",
        aggregate_id=key,
        type="CustomerRegistered",
        payload=payload,
        occurred_at=AT,
    )


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    """Provide an engine for a database with an outbox and a table of members."""
    engine = create_engine(database.replace("postgresql:", "postgresql+psycopg2:", 1))
    with engine.begin() as connection:
        connection.execute(text("create schema towpath"))
        connection.execute(text("create table member (id text primary key, name text)"))
        connection.execute(text(source_tables.outbox().create_statement()))
    yield engine
    engine.dispose()


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    """Provide a session factory with a collector installed."""
    sessions = sessionmaker(engine)
    Collector(outbox=OUTBOX).install(sessions)
    return sessions


def insert(session: Session, member: Member) -> Member:
    """Insert a member with a separate statement, as a repository does, and track it."""
    row = {"id": member.id, "name": member.name}
    session.execute(text("insert into member values (:id, :name)"), row)
    return track(session, member)


def written(engine: Engine) -> tuple[list[str], list[str]]:
    """Return the ids of the members, and those of the events' aggregates."""
    with engine.connect() as connection:
        members = connection.scalars(text("select id from member order by id"))
        events = connection.scalars(
            text("select aggregate_id from towpath.outbox order by aggregate_id")
        )
        return list(members), list(events)


def test_an_event_is_committed_with_its_state(engine: Engine):
    """
    One commit writes both the member and the event.
    """
    with Session(engine) as session:
        insert(session, Member("a", "Ada"))
        record(session, registered("a"))
        session.commit()

    assert (["a"], ["a"]) == written(engine)


def test_an_event_is_rolled_back_with_its_state(engine: Engine):
    """
    Without a commit, neither the member nor the event is written.
    """
    with Session(engine) as session:
        insert(session, Member("a", "Ada"))
        record(session, registered("a"))

    assert ([], []) == written(engine)


def test_a_bad_event_writes_nothing_and_leaves_the_transaction_usable(engine: Engine):
    """
    The event is checked before the statement is sent, so the caller can continue.
    """
    with Session(engine) as session:
        with pytest.raises(InvalidEventError):
            record(session, registered("a", name=7))
        record(session, registered("b"))
        session.commit()

    assert ([], ["b"]) == written(engine)


def test_an_event_can_be_recorded_with_a_connection(engine: Engine):
    """
    Code without sessions records events in the connection's transaction.
    """
    with engine.begin() as connection:
        record(connection, registered("a"))

    assert ([], ["a"]) == written(engine)


def test_the_row_has_the_columns_that_the_relay_reads(engine: Engine):
    """
    The payload keeps every character, and an absent traceparent is NULL.
    """
    event = registered("a", name='Zoë \u2028 \\ "')
    with Session(engine) as session:
        record(session, event)
        session.commit()
        row = session.execute(
            text(
                "select id, payload->>'name', payload->>'created_at',"
                " headers->>'schema', traceparent, occurred_at from towpath.outbox"
            )
        ).one()

    expected = (
        event.id,
        'Zoë \u2028 \\ "',
        "2026-01-02T00:00:00.000000Z",
        "shop.CustomerRegistered:1",
        None,
        AT,
    )

    assert expected == (uuid.UUID(str(row[0])), *row[1:])


def test_an_aggregates_events_are_recorded_at_commit(engine: Engine, sessions):
    """
    The handler need not record them, and a second commit does not repeat them.
    """
    with sessions() as session:
        insert(session, Member("a", "")).rename("Ada")
        session.commit()
        session.commit()

    assert (["a"], ["a"]) == written(engine)


def test_an_aggregates_events_are_recorded_at_flush(engine: Engine, sessions):
    """
    Events of mapped aggregates are written at flush, before the commit.
    """

    class Row:
        def __init__(self, key: str) -> None:
            self.id = key
            self.name = ""
            self.events = [registered(key)]

    local = registry()
    columns = (Column("id", Text, primary_key=True), Column("name", Text))
    local.map_imperatively(Row, Table("member", local.metadata, *columns))
    with sessions() as session:
        session.add(track(session, Row("a")))
        session.flush()
        seen = session.scalar(text("select count(*) from towpath.outbox"))
        session.commit()

    assert (1, (["a"], ["a"])) == (seen, written(engine))
    local.dispose()


def test_an_aggregates_events_are_rolled_back_with_its_rows(engine: Engine, sessions):
    """
    After a rollback, the next commit writes none of the events.
    """
    with sessions() as session:
        member = insert(session, Member("a", ""))
        member.rename("Ada")
        session.rollback()
        track(session, member)
        session.commit()

    assert ([], []) == written(engine)


def test_a_bad_event_stops_the_commit(engine: Engine, sessions):
    """
    State is never committed without its event, even at a second attempt.
    """
    with sessions() as session:
        insert(session, Member("a", "")).rename(7)
        for _ in range(2):
            with pytest.raises(InvalidEventError):
                session.commit()

    assert ([], []) == written(engine)


def test_events_of_a_savepoint_are_rolled_back_with_it(engine: Engine, sessions):
    """
    A rollback to a savepoint removes its events, but no others.
    """
    with sessions() as session:
        inner = session.begin_nested()
        insert(session, Member("a", "")).rename("Ada")
        inner.rollback()
        with session.begin_nested():
            insert(session, Member("b", "")).rename("Bob")
        insert(session, Member("c", "")).rename("Cy")
        session.commit()

    assert (["b", "c"], ["b", "c"]) == written(engine)


def test_a_savepoint_is_refused_before_pending_events_are_recorded(
    engine: Engine, sessions
):
    """
    Otherwise, a rollback to the savepoint would remove events that precede it.
    """
    collector = Collector(outbox=OUTBOX)
    with sessions() as session:
        insert(session, Member("a", "")).rename("Ada")
        with pytest.raises(SavepointError):
            session.begin_nested()
        session.rollback()

        insert(session, Member("b", "")).rename("Bob")
        collector.drain(session)
        inner = session.begin_nested()
        inner.rollback()
        session.commit()

    assert (["b"], ["b"]) == written(engine)


def test_events_are_recorded_in_the_order_of_tracked_aggregates(
    engine: Engine, sessions
):
    """
    Each aggregate's events remain together, in order; tracking it again repeats none.
    """
    with sessions() as session:
        first = insert(session, Member("a", ""))
        second = insert(session, Member("b", ""))
        second.rename("1")
        first.rename("2")
        first.rename("3")
        track(session, first)
        session.commit()
    with engine.connect() as connection:
        names = connection.scalars(
            text("select payload->>'name' from towpath.outbox order by ctid")
        ).all()

    assert ["2", "3", "1"] == names


def test_an_event_can_be_written_to_the_wal_alone(engine: Engine):
    """
    A message is in the WAL if and only if its transaction commits.
    """
    slot = (
        "select count(*) from pg_create_logical_replication_slot('s', 'test_decoding')"
    )
    read = "select data from pg_logical_slot_get_changes('s', null, null)"
    with engine.connect() as connection:
        connection.execute(text(slot))
        connection.commit()
    with Session(engine) as session:
        messages = Outbox(OUTBOX.events, way="message")
        messages.record(session, registered("1"))
        session.rollback()
        messages.record(session, registered("2"))
        session.commit()
    with engine.connect() as connection:
        lines = [row[0] for row in connection.execute(text(read))]
        connection.execute(text("select pg_drop_replication_slot('s')"))
    found = [line for line in lines if line.startswith("message: ")]
    rows = [line for line in lines if "outbox" in line and line not in found]

    assert (1, True, []) == (
        len(found),
        "transactional: 1 prefix: towpath.outbox" in found[0]
        and '"aggregate_id": "2"' in found[0],
        rows,
    )
