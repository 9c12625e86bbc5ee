"""The metrics of a service: its requests, and the outbox rows that it committed."""

import socket
from types import SimpleNamespace

import pytest
from flask import Flask
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from support.exposition import mistakes
from towpath.schemas.failure import UnavailableError, UsageError
from towpath.services.plumbing.metrics import (
    METRICS,
    ServiceMetrics,
    counted,
    install_metrics,
)
from towpath.services.plumbing.service import app_without_database

SECONDS = "towpath_service_request_seconds"
ROWS = 'towpath_service_outbox_rows_total{event="OrderPlaced"}'
SAGAS = 'towpath_service_sagas{status="paying"}'


class Clock:
    """A clock that advances by a quarter of a second with each reading."""

    def __init__(self):
        self.at_s = 0.0

    def monotonic_s(self):
        """Advance the clock, and return the time."""
        self.at_s += 0.25
        return self.at_s


def samples(page: str) -> dict[str, float]:
    """Read the samples of a page."""
    lines = (line for line in page.splitlines() if line[0] != "#")
    return {name: float(value) for name, value in (one.rsplit(" ", 1) for one in lines)}


@pytest.fixture
def app() -> Flask:
    """Provide an application with one route that succeeds and one that fails."""
    app = app_without_database("shop", lambda: None)
    install_metrics(app, Clock())

    @app.get("/orders/<bigint:order_id>")
    def find(order_id):
        return {"order_id": order_id}

    @app.post("/orders")
    def place():
        message = "The database cannot be reached."
        raise UnavailableError(message)

    return app


@pytest.fixture
def metrics() -> ServiceMetrics:
    """Provide the metrics of a process."""
    return ServiceMetrics()


def shown(metrics: ServiceMetrics) -> dict[str, float]:
    """Read the samples of a process."""
    return samples(metrics.page().decode())


@pytest.fixture
def sessions(metrics):
    """Provide sessions of an in-memory database, whose rows are counted."""
    made = sessionmaker(create_engine("sqlite://"))
    metrics.count_rows(made)
    return made


def write_event(session: Session):
    """Record an event, as the collector does."""
    session.execute(text("select 1"))
    placed = SimpleNamespace(type="OrderPlaced")
    counted(lambda event, _session: event)(placed, session)


def test_requests_are_counted_by_route_and_status(app):
    """
    Two orders share a route; unknown paths and methods get no series of their own.
    """
    client = app.test_client()
    for order_id in (1, 2):
        client.get(f"/orders/{order_id}")
    client.post("/orders")
    for path in ("/a", "/b"):
        client.open(path, method="BREW")
    client.get("/health/live")
    client.get("/metrics")
    page = client.get("/metrics").text
    labels = {
        name.removeprefix(f"{SECONDS}_count"): value
        for name, value in samples(page).items()
        if name.startswith(f"{SECONDS}_count")
    }

    assert {
        '{method="GET",route="/orders/<bigint:order_id>",status="200"}': 2,
        '{method="POST",route="/orders",status="503"}': 1,
        '{method="other",route="unmatched",status="404"}': 2,
    } == labels
    total = '{method="POST",route="/orders",status="503"}'
    assert 0.25 == samples(page)[f"{SECONDS}_sum{total}"]


def test_the_page_of_a_service_matches_the_registered_metrics(app):
    """
    Each metric of services and consumers has its registered kind, labels and help.
    """
    client = app.test_client()
    client.get("/orders/1")

    prefixes = ("towpath_service_", "towpath_inbox_")
    assert [] == mistakes(client.get("/metrics").text, prefixes)


def test_an_outbox_row_is_counted_once_it_is_committed(metrics, sessions):
    """
    The rows of a rolled-back or an open transaction are not counted.
    """
    with sessions() as session:
        write_event(session)
        session.rollback()
        before = shown(metrics)
        write_event(session)
        write_event(session)
        open_ = shown(metrics)
        session.commit()

    assert (ROWS in before, ROWS in open_) == (False, False)
    assert 2 == shown(metrics)[ROWS]


def test_a_released_savepoint_counts_with_its_transaction(metrics, sessions):
    """
    The savepoint's rows are rolled back with the enclosing transaction.
    """
    with sessions() as session:
        session.execute(text("select 1"))
        with session.begin_nested():
            write_event(session)
        session.rollback()
    rolled_back = shown(metrics)
    with sessions.begin() as session, session.begin_nested():
        write_event(session)

    assert ROWS not in rolled_back
    assert 1 == shown(metrics)[ROWS]


def test_a_rolled_back_savepoint_forgets_only_its_own_rows(metrics, sessions):
    """
    Rows before and after it are committed; those of a nested savepoint are not.
    """
    with sessions.begin() as session:
        write_event(session)
        with session.begin_nested() as savepoint:
            write_event(session)
            with session.begin_nested():
                write_event(session)
            savepoint.rollback()
        with session.begin_nested():
            write_event(session)

    assert 2 == shown(metrics)[ROWS]


def test_sagas_are_not_shown_while_the_database_is_unavailable(metrics):
    """
    A number that is no longer known is absent; the last one is not shown.
    """

    def fail():
        message = "The database cannot be reached."
        raise UnavailableError(message)

    metrics.show_sagas(lambda: {"paying": 0})
    counted = shown(metrics)
    with pytest.raises(UnavailableError):
        metrics.show_sagas(fail)

    assert 0 == counted[SAGAS]
    assert SAGAS not in shown(metrics)


def test_sagas_are_shown_while_they_are_being_counted(metrics):
    """
    A scrape during the count finds the previous numbers.
    """
    seen = []

    def count():
        seen.append(shown(metrics).get(SAGAS))
        return {"paying": 2}

    metrics.show_sagas(lambda: {"paying": 1})
    metrics.show_sagas(count)

    assert [1] == seen
    assert 2 == shown(metrics)[SAGAS]


@pytest.mark.parametrize(
    ("family", "address", "host"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::1", "[::1]"),
    ],
)
def test_a_metrics_port_in_use_is_a_mistake_on_the_command_line(
    metrics, family, address, host
):
    """
    The message names the port and the reason, for an IPv6 address as well.
    """
    with socket.create_server((address, 0), family=family) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"--metrics-port {port} .* in use"):
            metrics.listen(host, port)


def test_an_impossible_host_name_is_a_mistake_on_the_command_line():
    """
    It cannot be encoded for a lookup.
    """
    with pytest.raises(UsageError, match="not a host name"):
        ServiceMetrics().listen("pages..example", 0)


def test_an_application_that_is_not_served_has_no_metrics_page():
    """
    The console, built from the same parts, requires a login on every page.
    """
    app = app_without_database("console", lambda: None)

    assert app.test_client().get("/metrics").status_code == 404
    assert isinstance(app.extensions[METRICS], ServiceMetrics)
