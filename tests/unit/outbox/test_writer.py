"""Checks before an event is written: no undeliverable event gets through."""

import dataclasses
from datetime import UTC, datetime

import pytest
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session

from towpath.outbox import InvalidEventError, OutboxEvent, outbox_table, record
from towpath.outbox import record_all as record_several

AT = datetime(2026, 1, 2, tzinfo=UTC)
EVENT = OutboxEvent(
    aggregate_type="customer",
    aggregate_id="7",
    type="CustomerRegistered",
    payload={
        "customer_id": "7",
        "name": "Ada",
        "email": "ada@example.org",
        "active": True,
        "created_at": AT,
        "updated_at": AT,
    },
    occurred_at=AT,
)


@pytest.fixture
def session():
    """Provide a session over an outbox table in memory."""
    engine = create_engine(
        "sqlite://", execution_options={"schema_translate_map": {"towpath": None}}
    )
    with engine.connect() as connection:
        outbox_table.metadata.create_all(connection)
        with Session(connection) as session:
            yield session
    engine.dispose()


def test_an_event_becomes_a_row(session: Session):
    """
    The row has the event's parts, its payload in plain form and its schema as a header.
    """
    event = dataclasses.replace(EVENT, traceparent="00-1-2-3", headers={"tenant": "a"})

    record(session, event)
    row = session.execute(select(outbox_table)).one()

    expected = (
        event.id,
        "customer",
        "7",
        "CustomerRegistered",
        {
            **event.payload,
            "created_at": "2026-01-02T00:00:00.000000Z",
            "updated_at": "2026-01-02T00:00:00.000000Z",
        },
        {"schema": "shop.CustomerRegistered:1", "tenant": "a"},
        "00-1-2-3",
    )

    assert expected == tuple(row)[:7]


def test_each_event_has_an_id_of_its_own():
    """
    Two events are never the same event, even if they say the same.
    """
    first, second = (
        OutboxEvent(
            aggregate_type="a", aggregate_id="1", type="T", payload={}, occurred_at=AT
        )
        for _ in range(2)
    )

    assert first.id != second.id


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"payload": {**EVENT.payload, "name": 1}}, "name"),
        ({"payload": {**EVENT.payload, "name": object()}}, "name"),
        ({"type": "CustomerEaten"}, ""),
        ({"aggregate_type": ""}, "aggregate_type"),
        ({"aggregate_type": "cust omer"}, "aggregate_type"),
        ({"aggregate_type": "a" * 201}, "aggregate_type"),
        ({"aggregate_id": ""}, "aggregate_id"),
        ({"aggregate_id": "a\0b"}, "aggregate_id"),
        ({"occurred_at": AT.replace(tzinfo=None)}, "occurred_at"),
        ({"headers": {"position": "0"}}, "headers.position"),
        ({"headers": {"tenant": 7}}, "headers.tenant"),
    ],
)
def test_a_bad_event_is_refused_before_anything_is_written(
    session: Session, change, field
):
    """
    The error names the field; of several events none is written.
    """
    bad = dataclasses.replace(EVENT, **change)

    with pytest.raises(InvalidEventError) as caught:
        record_several(session, [EVENT, bad])
    rows = session.execute(select(func.count()).select_from(outbox_table)).scalar_one()

    assert (field, 0) == (caught.value.field, rows)


def test_recording_no_events_executes_no_statement():
    """
    Recording nothing executes nothing in the session.
    """
    with Session() as unbound:
        record_several(unbound, [])

        assert not unbound.in_transaction()
