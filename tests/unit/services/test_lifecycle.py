"""Background tasks of a serving process, and its options and waits at startup."""

import socketserver
import struct
import threading
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from towpath.schemas.failure import UnavailableError, UsageError
from towpath.services.orders import handlers
from towpath.services.orders.__main__ import ORDERS
from towpath.services.orders.app import consuming
from towpath.services.orders.repository import OVERDUE_AT_ONCE, OrderRepository
from towpath.services.payments.app import CONSUMING as PAYMENTS
from towpath.services.payments.handlers import ProviderWorker
from towpath.services.plumbing.database import (
    DatabaseUnavailableError,
    RefusedLoginError,
    translated,
)
from towpath.services.plumbing.server import BackgroundTask, Lifecycle, Listen
from towpath.services.plumbing.service import START_TIMEOUT_S, wait_for_database

NOWHERE = "postgresql://127.0.0.1:1/shop"


class SteppingClock:
    """A clock that advances only in ``wait``."""

    def __init__(self):
        self.at_s = 0.0

    def now(self):
        """Return a fixed time."""
        return datetime(2026, 11, 27, tzinfo=UTC)

    def monotonic_s(self):
        """Return the sum of all waits."""
        return self.at_s

    def wait(self, delay_s):
        """Advance the clock."""
        self.at_s += delay_s


def test_a_background_task_is_repeated_after_a_failure_until_the_service_stops():
    """
    The first run fails, the second one succeeds; then its thread ends.
    """
    lifecycle, succeeded, runs = Lifecycle(), threading.Event(), []

    def run():
        runs.append(threading.current_thread())
        if len(runs) == 1:
            message = "The database cannot be reached."
            raise UnavailableError(message)
        lifecycle.stopping.set()
        succeeded.set()

    lifecycle.tasks.append(BackgroundTask("a task", 0.001, run))
    lifecycle.start_tasks()

    assert succeeded.wait(4.0)
    runs[0].join(4.0)
    assert (2, False, "a task") == (len(runs), runs[0].is_alive(), runs[0].name)


def test_every_closing_callback_is_called_even_if_one_fails():
    """
    The failure is logged with its reason.
    """
    lifecycle, closed = Lifecycle(), []

    def fail():
        message = "the disk is full"
        raise UnavailableError(message)

    lifecycle.close_callbacks.extend([fail, lambda: closed.append("second")])
    with capture_logs() as records:
        lifecycle.close()

    assert ["second"] == closed
    assert ["the disk is full"] == [record["reason"] for record in records]


def test_a_start_waits_for_the_database():
    """
    Attempts are repeated while the database is unavailable.
    """
    attempts = []

    def use(_engine):
        attempts.append(1)
        if len(attempts) < 4:
            message = "The database cannot be reached."
            raise UnavailableError(message)

    wait_for_database(NOWHERE, use, SteppingClock())

    assert 4 == len(attempts)


def packet(kind: bytes, body: bytes) -> bytes:
    """Make a message of Postgres's protocol."""
    return kind + struct.pack("!i", 4 + len(body)) + body


def refusal(state: bytes, message: bytes) -> bytes:
    """Make the message of an error that ends a session."""
    return packet(b"E", b"SFATAL\0C" + state + b"\0M" + message + b"\0\0")


@contextmanager
def server_that_refuses(last: bytes, *, has_password_request: bool):
    """Run a server that refuses each session, optionally after a password request."""

    class Session(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(1000)
            if has_password_request:
                self.request.sendall(packet(b"R", struct.pack("!i", 3)))
                self.request.recv(1000)
            self.request.sendall(last)

    with socketserver.TCPServer(("127.0.0.1", 0), Session) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        port = server.server_address[1]
        try:
            yield f"host=127.0.0.1 port={port} user=u password=p dbname=d" + PLAIN
        finally:
            server.shutdown()
            thread.join()


PLAIN = " sslmode=disable gssencmode=disable"
WRONG = refusal(b"28P01", b"password authentication failed for user")
NO_ROLE = refusal(b"28000", b'role "u" does not exist')
NO_DATABASE = refusal(b"3D000", b'database "d" does not exist')
NO_ENTRY = refusal(b"28000", b'no pg_hba.conf entry for host "::1", user "u"')
STARTING = refusal(b"57P03", b"the database system is starting up")
FULL = refusal(b"53300", b"too many connections for role")


@pytest.mark.parametrize(
    ("last", "has_password_request", "failure", "is_retried"),
    [
        (WRONG, True, RefusedLoginError, False),
        (NO_ROLE, False, RefusedLoginError, False),
        (NO_DATABASE, False, RefusedLoginError, False),
        (NO_ENTRY, False, RefusedLoginError, False),
        (STARTING, False, DatabaseUnavailableError, True),
        (FULL, True, DatabaseUnavailableError, True),
    ],
)
def test_a_start_ends_at_once_if_the_database_refuses_its_login(
    last, has_password_request, failure, is_retried
):
    """
    Attempts are repeated only while the server is starting or full.
    """
    clock = SteppingClock()

    def use(engine):
        with translated(), engine.connect():
            pass

    with (
        server_that_refuses(last, has_password_request=has_password_request) as dsn,
        pytest.raises(failure) as ended,
    ):
        wait_for_database(dsn, use, clock)

    assert (failure, is_retried) == (ended.type, clock.at_s >= START_TIMEOUT_S)


def test_a_start_without_a_database_ends_at_its_deadline():
    """
    The last failure is raised once the whole time has passed.
    """
    clock = SteppingClock()

    def use(_engine):
        message = "The database cannot be reached."
        raise UnavailableError(message)

    with pytest.raises(UnavailableError):
        wait_for_database(NOWHERE, use, clock)

    assert START_TIMEOUT_S <= clock.at_s < START_TIMEOUT_S + 5


def test_a_missing_kafka_file_is_found_before_anything_is_served(monkeypatch):
    """
    The serving process, gunicorn's worker, would find it too late.
    """
    monkeypatch.setattr("towpath.services.plumbing.service.START_TIMEOUT_S", 0)
    args = ["serve", "--dsn", NOWHERE, "--kafka", "x:1", "--kafka-file", "/no/file"]

    with pytest.raises(UsageError, match="/no/file"):
        ORDERS._serve(ORDERS.options(args, {}))


def test_an_option_is_read_from_its_variable_if_it_is_not_given():
    """
    The variables have the prefix of the service.
    """
    environ = {
        "SHOP_DSN": NOWHERE,
        "SHOP_PORT": "1",
        "SHOP_DRAIN_SECONDS": "2.5",
        "SHOP_IDEMPOTENCY_HOURS": "48",
        "OTHER_THREADS": "3",
    }
    options = ORDERS.options(["migrate", "--port", "7"], environ)

    assert ("migrate", NOWHERE, 7, 2.5, 48.0, 8) == (
        options.command,
        options.dsn,
        options.port,
        options.drain_seconds,
        options.idempotency_hours,
        options.threads,
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--drain-seconds", "-1"),
        ("--drain-seconds", "nan"),
        ("--idempotency-hours", "0"),
        ("--idempotency-hours", "inf"),
        ("--threads", "0"),
        ("--customers", "0"),
        ("--orders", "-1"),
        ("--orders", "2147483648"),
        ("--seed", "9223372036854775807"),
        ("--seed", "-9223372036854775808"),
        ("--port", "65536"),
        ("--metrics-port", "-1"),
    ],
)
def test_an_option_out_of_its_range_is_refused(option: str, value: str, capsys):
    """
    The message names the option and the range.
    """
    with pytest.raises(SystemExit):
        ORDERS.options(["--dsn", NOWHERE, option, value], {})

    assert f"argument {option}: must be" in capsys.readouterr().err


@contextmanager
def begin():
    """Begin a transaction without a database."""
    yield None


def test_calls_to_the_provider_end_with_the_service_even_if_more_are_due(monkeypatch):
    """
    Under load, a new call is due after each call, so the thread could run forever.
    """
    stopping, calls = threading.Event(), []

    def run_due(_worker):
        calls.append(1)
        if len(calls) == 3:
            stopping.set()
        return 1 if len(calls) < 9 else 0

    monkeypatch.setattr(ProviderWorker, "run_due", run_due)
    (task,) = PAYMENTS.tasks(begin, None, SteppingClock(), stopping)
    task.run()

    assert 3 == len(calls)


def test_overdue_orders_are_left_to_the_next_start_once_the_service_stops(monkeypatch):
    """
    Each order may wait for a lock, so a hundred orders could take minutes.
    """
    stopping, expired = threading.Event(), []

    def expire(order_id, _store, _at):
        expired.append(order_id)
        stopping.set()

    monkeypatch.setattr(OrderRepository, "overdue", lambda *_, **_given: [1, 2, 3])
    monkeypatch.setattr(handlers, "expire_order", expire)
    (task,) = consuming().tasks(begin, None, SteppingClock(), stopping)
    task.run()

    assert [1] == expired


def test_orders_that_cannot_be_cancelled_do_not_block_later_ones(monkeypatch):
    """
    More of them are overdue than one check reads; each is retried in turn.
    """
    due, tried = list(range(1, 103)), []

    def overdue(_repository, _at, *, skipped):
        return due[skipped:][:OVERDUE_AT_ONCE]

    def expire(order_id, _store, _at):
        tried.append(order_id)
        if order_id != 101:
            raise UnavailableError
        due.remove(order_id)

    monkeypatch.setattr(OrderRepository, "overdue", overdue)
    monkeypatch.setattr(handlers, "expire_order", expire)
    (task,) = consuming().tasks(begin, None, SteppingClock(), threading.Event())
    for _ in range(3):
        task.run()

    first = list(range(1, 101))
    assert [*first, 101, 102, *first] == tried


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1:8080"),
        ("::", "[::]:8080"),
        ("[::1]", "[::1]:8080"),
    ],
)
def test_a_service_can_listen_on_an_ipv6_address(host, address):
    """
    Without brackets, the server would treat the text after a colon as the port.
    """
    assert address == Listen(host, 8080, 1).address


@pytest.mark.parametrize("command", ["serve", "consume"])
def test_an_invalid_setting_of_the_kafka_client_ends_the_command(
    command, tmp_path, monkeypatch, capsys
):
    """
    Otherwise a consumer would fail every second while its process looked healthy.
    """
    monkeypatch.setattr("towpath.services.plumbing.service.START_TIMEOUT_S", 0)
    file = tmp_path / "client"
    file.write_text("sasl.usrname=shop\n")
    args = [command, "--dsn", NOWHERE, "--kafka", "x:1", "--kafka-file", str(file)]

    assert UsageError.exit_code == ORDERS.main(args, {})
    assert "sasl.usrname" in capsys.readouterr().err


def test_an_empty_list_of_brokers_is_refused(capsys):
    """
    The variable may be empty; consumers would then wait for a broker forever.
    """
    args = ["consume", "--dsn", NOWHERE]

    assert UsageError.exit_code == ORDERS.main(args, {"SHOP_KAFKA": " "})
    assert "--kafka names no broker" in capsys.readouterr().err
