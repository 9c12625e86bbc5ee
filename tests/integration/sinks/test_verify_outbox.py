"""An event log is compared with the rows still in an outbox of any layout."""

import psycopg
import pytest

from towpath.schemas.clock import SystemClock
from towpath.settings import (
    Kafka,
    Registry,
    Relay,
    Route,
    RouteKind,
    Settings,
    Sink,
    SinkKind,
    Source,
)
from towpath.sinks.ports import StoredRow
from towpath.sinks.verify import source
from towpath.sinks.verify.errors import IncomparableError, NoOutboxError
from towpath.sinks.verify.forms import form_of
from towpath.sinks.verify.route import verify_route
from towpath.sinks.verify.routes import Tables
from towpath.sinks.verify.settle import RouteComparison

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

OUTBOX = """
    create schema shop;
    create table shop.box (
        event_id bigint primary key, stream text, subject bytea, kind text, body bytea,
        happened timestamp, region text);
    insert into shop.box values
        (1, 'order', '7', 'Placed', '{"n" : 1}', '2026-01-01 00:00:00.5', 'EU-orders'),
        (2, 'order', '7', 'Paid', ' ', '2026-01-02 00:00', 'EU-orders'),
        (3, 'order', '8', 'Placed', '{}', '2026-01-02 00:00', 'US-orders'),
        (4, 'order', '8', 'Placed', '{}', '2026-01-02 00:00', null);
"""
LAID_OUT = {
    "table": "shop.box",
    "topic": "events.{aggregate_type}",
    "columns": {
        "id": "event_id",
        "aggregate_type": "stream",
        "aggregate_id": "subject",
        "type": "kind",
        "payload": "body",
        "occurred_at": "happened",
        "headers": "",
        "traceparent": "",
    },
    "route_by": "region",
    "route_regex": "(.*)-orders",
    "route_replacement": "$1",
    "on_empty_payload": "tombstone",
}
PLACED = {
    "id": "1",
    "aggregate_type": "order",
    "aggregate_id": "7",
    "type": "Placed",
    "payload": '{"n" : 1}',
    "occurred_at": "2026-01-01T00:00:00.500000Z",
}
PAID = PLACED | {
    "id": "2",
    "type": "Paid",
    "payload": None,
    "occurred_at": "2026-01-02T00:00:00.000000Z",
}
WITHOUT_ROW = PLACED | {"id": "99"}


class AtRest:
    """Replaces the wait for the sink, and may change the database during it."""

    def __init__(self, change=lambda: None):
        self.change = change

    def wait(self, _poll=None):
        self.change()

    def wait_until_seen(self):
        """Return at once, because nothing is being written."""


class Log:
    """The contents of a sink."""

    def __init__(self, *events):
        self.events = events

    def rows(self, _route):
        return (StoredRow(one["id"], one, "0", False) for one in self.events)


def settings_of(dsn, outbox):
    """Return the settings, the sink and the route of one log."""
    route = Route(topic="events.EU", name="log", kind=RouteKind.EVENT_LOG)
    folder = "/nowhere"
    sink = Sink(
        name="it", kind=SinkKind.WAREHOUSE, url="x", folder=folder, route=(route,)
    )
    settings = Settings(
        version=1,
        source=(Source(dsn=dsn, tables=()),),
        kafka=Kafka(bootstrap_servers="x"),
        registry=Registry(url="x"),
        relay=Relay.model_validate({"outbox": outbox}),
        sink=(sink,),
    )
    return settings, sink, route


def verified(dsn, log, waits=None, outbox=LAID_OUT):
    """Verify the log; return the report."""
    settings, sink, route = settings_of(dsn, outbox)
    with source.Source(dsn) as connection:
        table = Tables(sink, settings, connection, None).of(route)
        bench = RouteComparison(
            *(route.name, table, form_of(route, table, sink), connection, log),
            *(waits or AtRest(), SystemClock()),
        )
        return verify_route(bench, None, None, lambda *_: None)


def differences_of(report):
    """Return the differences, each as its kind, key and column."""
    return [(one.kind, one.key, one.column) for one in report.first]


@pytest.fixture
def outbox(database):
    """Provide a connection to a database with a foreign outbox."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(OUTBOX)
        yield connection


@pytest.mark.usefixtures("outbox")
def test_an_outbox_is_read_with_its_own_names(database):
    """Columns, the topic's column, bytes and blank payloads are read as declared."""
    report = verified(database, Log(PLACED, PAID))

    assert ([], 2, 2, None) == (
        differences_of(report),
        report.source_rows,
        report.sink_rows,
        report.error,
    )


@pytest.mark.usefixtures("outbox")
def test_events_that_the_outbox_lacks_are_not_differences(database):
    """Such events are counted, and a note says so; all others are compared."""
    report = verified(database, Log(PLACED | {"payload": "{}"}, WITHOUT_ROW))

    assert [("changed", "1", "payload"), ("missing", "2", None)] == differences_of(
        report
    )
    assert (1, True) == (report.unmatched, "still in the outbox" in report.notes[0])


def test_a_row_pruned_between_comparisons_is_not_a_difference(database, outbox):
    """
    A differing row may be deleted in the source before the second comparison.
    """
    waits = AtRest(lambda: outbox.execute("delete from shop.box where event_id = 1"))
    report = verified(database, Log(PLACED | {"payload": "{}"}, PAID), waits)

    assert ([], 0) == (differences_of(report), report.restless)


@pytest.mark.usefixtures("outbox")
def test_an_event_that_a_log_has_twice_is_found_without_its_row(database):
    """The repetition in the log is sufficient proof, without the outbox's row."""
    report = verified(database, Log(PLACED, PAID, WITHOUT_ROW, WITHOUT_ROW))

    assert [("twice", "99", None)] == differences_of(report)


@pytest.mark.usefixtures("outbox")
def test_payloads_in_envelopes_are_reported_instead_of_compared(database):
    """The stored value is the envelope; everything else is compared."""
    enveloped = LAID_OUT | {"placements": ["kind:envelope"]}
    report = verified(
        database, Log(PLACED | {"payload": "?", "type": "X"}, PAID), outbox=enveloped
    )

    assert [("changed", "1", "type")] == differences_of(report)
    assert "envelope" in report.notes[1]


@pytest.mark.parametrize(
    ("kind", "reason"), [("float8", "several ways"), ("citext", "extension")]
)
def test_ids_that_cannot_be_read_in_order_are_refused(database, outbox, kind, reason):
    """The same types are refused as keys of a table."""
    outbox.execute("create extension citext")
    outbox.execute(f"alter table shop.box alter event_id type {kind}".encode())

    with pytest.raises(IncomparableError, match=reason):
        verified(database, Log())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"table": "shop.gone"}, "the outbox shop.gone does not exist"),
        ({"route_by": "zone"}, "lacks the column zone"),
        ({"columns": {}}, "lacks the columns aggregate_id, aggregate_type"),
    ],
)
@pytest.mark.usefixtures("outbox")
def test_an_outbox_that_differs_from_its_declaration_is_reported(
    database, changes, reason
):
    """The error names the table, or the columns that it lacks."""
    with pytest.raises(NoOutboxError, match=reason):
        verified(database, Log(), outbox=LAID_OUT | changes)
