"""Checks before an event is written into the log."""

import dataclasses
import json
from datetime import UTC, datetime

import pytest
from sqlalchemy.orm import Session

from towpath.outbox import InvalidEventError, OutboxEvent, emit, emit_all
from towpath.relay.encode.dead_letters import DeadLetters
from towpath.relay.encode.logical import LogicalEvents
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.wal.transactions import LogicalMessageEvent, Transaction
from towpath.settings.outbox import Outbox

AT = datetime(2026, 1, 2, 3, 4, 5, 600000, tzinfo=UTC)
EVENT = OutboxEvent(
    aggregate_type="customer",
    aggregate_id="7",
    type="CustomerRegistered",
    payload={
        "customer_id": "7",
        "name": "Adä",
        "email": "ada@example.org",
        "active": True,
        "created_at": AT,
        "updated_at": AT,
    },
    headers={"tenant": "a"},
    traceparent="00-1",
    occurred_at=AT,
)


class Spy:
    """Stands in for a session, and keeps the executed statements."""

    def __init__(self) -> None:
        self.told: list[dict[str, object]] = []

    def execute(self, statement: object) -> None:
        """Keep a statement's parameters."""
        self.told.append(dict(statement.compile().params))  # type: ignore[attr-defined]

    def content(self) -> bytes:
        """Return the content of the first message."""
        return str(list(self.told[0].values())[2]).encode()


def test_the_relay_makes_the_event_of_the_message():
    """
    The relay reads the library's message: the library and the route agree.
    """
    spy = Spy()
    emit(spy, EVENT)  # type: ignore[arg-type]
    parked = ParkedAggregates(1)
    dead = DeadLetters("p", print, parked)
    transaction = Transaction(9, 160, 160, 1_700_000_000_123_456, b"P.")
    spoken = LogicalMessageEvent(
        "towpath.outbox", spy.content(), 160, 0, transaction, 160
    )
    (record,) = LogicalEvents(Outbox(), dead, parked, frozenset(), print).records(
        spoken, 0
    )
    marks = dict(record.headers)

    assert (
        ("outbox.event.customer", b"7", "Adä"),
        (
            str(EVENT.id).encode(),
            b"shop.CustomerRegistered:1",
            b"a",
            b"2026-01-02T03:04:05.600000Z",
            b"00-1",
        ),
    ) == (
        (record.topic, record.key, json.loads(record.value or b"")["name"]),
        tuple(
            marks[name]
            for name in ("id", "schema", "tenant", "occurred_at", "traceparent")
        ),
    )


def test_messages_belong_to_the_transaction_and_carry_the_prefix():
    """
    One statement per event, in their order.
    """
    spy = Spy()
    emit_all(spy, [EVENT, EVENT], prefix="mine")  # type: ignore[arg-type]

    assert [(True, "mine")] * 2 == [tuple(one.values())[:2] for one in spy.told]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"type": "CustomerEaten"}, ""),
        ({"aggregate_type": "cust omer"}, "aggregate_type"),
        ({"headers": {"position": "0"}}, "headers.position"),
    ],
)
def test_an_invalid_event_is_refused_before_anything_is_written(
    change: dict[str, object], field: str
):
    """
    The rules are those of the table's writer; of several events none is written.
    """
    spy = Spy()
    with pytest.raises(InvalidEventError) as caught:
        emit_all(spy, [EVENT, dataclasses.replace(EVENT, **change)])  # type: ignore[arg-type]

    assert (field, []) == (caught.value.field, spy.told)


def test_emitting_no_events_executes_no_statement():
    """
    Emitting nothing executes nothing in the session.
    """
    with Session() as unbound:
        emit_all(unbound, [])

        assert not unbound.in_transaction()
