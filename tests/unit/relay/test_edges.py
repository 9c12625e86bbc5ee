"""Translations at the edges: SQLSTATEs, Kafka error codes, queries."""

import errno
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from psycopg import pq

from towpath.relay import errors
from towpath.relay.kafka.client import REQUEST_TIMEOUT_S, make_client, relay_error
from towpath.relay.postgres import worker
from towpath.relay.postgres.catalog import session_text
from towpath.relay.postgres.connect import (
    connect,
    failure,
    failure_of,
    quoted,
    translated_errors,
)
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.replication import stream_error
from towpath.relay.snapshot import protocol
from towpath.schemas.failure import TooManyFilesError
from towpath.settings import Kafka

# Without free file descriptors, the client reports an unreachable broker.
WITHOUT_FILES = """
import os, resource
from confluent_kafka import KafkaError, KafkaException
from towpath.relay.kafka.client import relay_error
down = KafkaException(KafkaError(KafkaError._TRANSPORT))
open_now = len(os.listdir("/proc/self/fd")) - 1
resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 1, open_now + 1))
made = relay_error(down, "listing topics")
print(type(made).__name__, made, sep=": ")
"""


@pytest.mark.parametrize(
    ("session", "text"),
    [
        (
            ("a", "r", "::1", datetime(2026, 1, 2, tzinfo=UTC)),
            "(a, role r) from ::1, since 2026-01-02 00:00:00 UTC",
        ),
        (
            ("worker", None, None, datetime(2026, 1, 2, tzinfo=UTC)),
            "(worker) from the server itself, since 2026-01-02 00:00:00 UTC",
        ),
        (
            (None, "r", None, None),
            (
                "(unnamed, role r); the rest is hidden from this role: grant "
                "pg_read_all_stats"
            ),
        ),
    ],
)
def test_a_session_is_described_with_the_known_facts(session, text):
    """
    A process of the server itself has no role.
    """
    assert f"server process 7 {text}" == session_text(7, *session)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (None, errors.SourceUnavailableError),
        ("08006", errors.SourceUnavailableError),
        ("57P01", errors.SourceUnavailableError),
        ("53300", errors.SourceUnavailableError),
        ("55006", errors.SlotBusyError),
        ("55000", errors.SourceRefusedError),
        ("58P01", errors.SourceRefusedError),
        ("42704", errors.NotPreparedError),
        ("28P01", errors.SourceRefusedError),
        ("42501", errors.SourceRefusedError),
        ("42703", errors.NotPreparedError),
        ("42P01", errors.NotPreparedError),
        ("57014", errors.SourceBusyError),
        ("40001", errors.SourceBusyError),
        ("40P01", errors.SourceBusyError),
        ("55P03", errors.SourceBusyError),
        ("58000", errors.SourceBusyError),
        ("58030", errors.SourceBusyError),
    ],
)
def test_the_sqlstate_determines_the_error_class(
    state: str | None, error: type[Exception]
):
    """
    Errors are classified by SQLSTATE, never by text.
    """
    assert error is type(failure_of(state, "doing: failed"))


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (b"55000", errors.SlotLostError),
        (b"58P01", errors.SlotLostError),
        (b"55006", errors.SlotBusyError),
        (None, errors.SourceUnavailableError),
    ],
)
def test_only_the_stream_can_report_its_slot_as_lost(state: bytes | None, error):
    """
    Other statements get the same SQLSTATE for other reasons.
    """
    fields = {pq.DiagnosticField.SQLSTATE: state}
    result = SimpleNamespace(error_field=fields.get)

    assert error is type(stream_error(result, "reading the stream"))


class Failed(psycopg.OperationalError):
    """A failed connection to a server that had requested a password."""

    pgconn = SimpleNamespace(needs_password=False, used_password=True)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "FATAL:  remaining connection slots are reserved for superusers",
            errors.SourceUnavailableError,
        ),
        ('FATAL:  too many connections for role "r"', errors.SourceUnavailableError),
        ("server closed the connection unexpectedly", errors.SourceUnavailableError),
        ("FATAL:  the database system is starting up", errors.SourceUnavailableError),
        (
            'FATAL:  password authentication failed for user "r"',
            errors.SourceRefusedError,
        ),
    ],
)
def test_a_full_or_closing_server_does_not_count_as_a_refused_login(text, error):
    """
    Both fail after the password was sent, and libpq reports no SQLSTATE for either.
    """
    assert error is type(failure(Failed(text), "connecting"))


def test_a_refused_password_halts_the_relay():
    """
    A connection whose login failed halts the relay, although there is no SQLSTATE.
    """
    failed = failure_of(None, "connecting: no", is_refused=True)

    assert isinstance(failed, errors.SourceRefusedError)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError._TRANSPORT, errors.BrokerUnavailableError),
        (KafkaError._TIMED_OUT, errors.BrokerUnavailableError),
        (KafkaError._DESTROY_BROKER, errors.BrokerUnavailableError),
        (KafkaError._PARTIAL, errors.BrokerUnavailableError),
        (KafkaError._NOENT, errors.BrokerUnavailableError),
        (KafkaError.UNKNOWN_LEADER_EPOCH, errors.BrokerUnavailableError),
        (KafkaError.NOT_ENOUGH_REPLICAS, errors.BrokerUnavailableError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, errors.BrokerUnavailableError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, errors.BrokerRefusedError),
        (KafkaError.INVALID_PARTITIONS, errors.BrokerRefusedError),
    ],
)
def test_a_kafka_error_is_either_transient_or_a_refusal(
    code: int, error: type[Exception]
):
    """
    Errors that a retry may resolve have a different class from the others.
    """
    made = relay_error(KafkaException(KafkaError(code)), "making topic t")

    assert (error, True) == (type(made), str(made).startswith("making topic t: "))


def test_a_lack_of_file_descriptors_is_not_reported_as_a_broker_outage():
    """
    The client reports both with the same code.
    """
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FILES],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    expected = (
        "TooManyFilesError: listing topics: this process cannot open another file"
    )
    assert ("", expected) == (done.stderr, done.stdout.strip())


@pytest.mark.parametrize(
    ("number", "error"), [(errno.EMFILE, TooManyFilesError), (errno.ENOSPC, OSError)]
)
def test_a_lack_of_file_descriptors_is_detected_in_the_driver(number, error):
    """
    The driver opens a selector to wait; other OS errors are raised unchanged.
    """
    with pytest.raises(error), translated_errors("checking the slot"):
        raise OSError(number, "selecting")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "Unable to replicate the partition: All brokers are currently fenced",
            errors.BrokerUnavailableError,
        ),
        (
            "The target replication factor of 3 cannot be reached: 1 registered",
            errors.BrokerRefusedError,
        ),
    ],
)
def test_fenced_brokers_are_waited_for_and_missing_ones_are_not(
    text: str, error: type[Exception]
):
    """
    Kafka uses the same error code for fenced brokers and for too few brokers.
    """
    refused = KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, text)

    assert error is type(relay_error(KafkaException(refused), "creating topic t"))


def test_a_lookup_of_a_topic_does_not_create_it():
    """
    A broker with auto.create.topics.enable would create it with its own defaults.
    """
    kafka = Kafka(bootstrap_servers="mock", client={"test.mock.num.brokers": "1"})
    admin = make_client(AdminClient, kafka)

    found = admin.list_topics("orders", timeout=REQUEST_TIMEOUT_S).topics["orders"]

    assert not found.partitions
    assert {} == admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics


def test_every_statement_is_found_by_its_name():
    """
    A named statement is returned; an unknown name is an error.
    """
    with pytest.raises(KeyError):
        query("nothing")

    assert query("create_relay_table").startswith(b"create table")


def test_identifiers_are_quoted():
    """
    A quoted name can never be read as anything else.
    """
    assert '"a b"."c""d"' == quoted("a b", 'c"d')


@pytest.mark.parametrize(
    "dsn",
    [
        "host=127.0.0.1 password=hun ter2",
        "postgresql://u:hunter2%zz@127.0.0.1/db",
        "postgresql://u:hun ter2@127.0.0.1/db",
        "postgresql://u:hunter2@[::1/db",
        "postgresql://127.0.0.1:hunter2/x@127.0.0.1/db",
        "hunter2",
    ],
)
def test_an_invalid_address_is_not_shown(dsn: str):
    """
    An address that cannot be parsed halts the relay; no part of its password is shown.
    """
    with pytest.raises(errors.SourceRefusedError) as caught:
        connect(dsn)
    printed = "".join(traceback.format_exception(caught.value))

    assert (False, False, None) == (
        "ter2" in printed,
        "hun" in printed,
        caught.value.__cause__,
    )


class Refusing:
    """A worker whose statements fail, except those that configure its session."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = ""
        self.info = SimpleNamespace(
            server_version=170_000, transaction_status=pq.TransactionStatus.IDLE
        )
        monkeypatch.setattr(worker, "connect", lambda _: self)
        self._woken = threading.Event()
        self.worker = worker.SnapshotWorker(
            "", self._woken.set, publication="p", relay="r"
        )

    def execute(self, statement: bytes, *_: object) -> None:
        if not statement.startswith(b"set "):
            reason = "refused"
            raise psycopg.errors.lookup(self.state)(reason)

    def cancel_safe(self, timeout: float) -> None:
        """Do nothing, because nothing is running."""

    def close(self) -> None:
        """Do nothing, because nothing is open."""

    def submit(self, effect: protocol.WorkerEffect) -> protocol.WorkerFact:
        """Submit an effect; return its fact, or raise the worker's error."""
        self.worker.submit(effect)
        assert self._woken.wait(5)
        (fact,) = self.worker.facts()
        return fact


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusing]:
    """Provide a worker whose statements fail."""
    refusing = Refusing(monkeypatch)
    yield refusing
    refusing.worker.close()


@pytest.mark.parametrize(
    ("state", "may_recover"),
    [
        ("40P01", True),
        ("57014", True),
        ("58030", True),
        ("25P03", True),
        ("25P04", True),
        ("25006", True),
        ("25P02", False),
        ("58P01", False),
        ("42501", False),
    ],
    ids=[
        "deadlock",
        "canceled",
        "I/O error",
        "idle too long",
        "transaction too long",
        "standby",
        "failed transaction",
        "missing file",
        "missing permission",
    ],
)
def test_a_read_is_retried_only_if_a_retry_may_help(
    refusing: Refusing, state: str, may_recover: bool
):
    """
    A table whose file is missing fails at once, instead of being retried forever.
    """
    refusing.state = state
    failed = refusing.submit(protocol.WriteWatermark(1, "token"))

    assert isinstance(failed, protocol.ReadFailed)
    assert may_recover is failed.may_recover


def test_an_answer_refused_for_a_missing_file_halts_the_relay(refusing: Refusing):
    """
    A retry could never succeed.
    """
    refusing.state = "58P01"

    with pytest.raises(errors.SourceRefusedError, match="refused"):
        refusing.submit(protocol.AnswerSignal("s1", "running", {}))
