"""``towpath inbox`` without a database: its output, and the input that it refuses."""

import sys
from contextlib import nullcontext

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException

from towpath.cli.app import run
from towpath.inbox import cli
from towpath.schemas.failure import UnavailableError, UsageError

DATABASE = ["--dsn", "postgresql://127.0.0.1:1/x"]
KAFKA = ["--kafka", "127.0.0.1:1", "--consumer", "c"]


def test_create_prints_the_statements_that_it_would_run(capsys):
    """
    An application's own migration can use the statements.
    """
    assert 0 == run(
        ["inbox", "create", "--dsn", "unused", "--dry-run", "--schema", "s"]
    )
    assert 'create table if not exists "s".inbox_parked' in capsys.readouterr().out


def test_the_commands_name_the_extra_that_provides_their_driver(monkeypatch, capsys):
    """
    The library alone does not install psycopg.
    """
    monkeypatch.setitem(sys.modules, "psycopg", None)

    assert 2 == run(["inbox", "create", *DATABASE])
    assert "pip install 'towpath-inbox[cli]'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "prune"])
def test_an_unreachable_database_is_reported(command, capsys):
    """
    The exit code indicates that a retry may succeed.
    """
    assert 3 == run(["inbox", command, *DATABASE, *KAFKA])
    assert "the database cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            UsageError,
            "^Kafka refused the request: ",
        ),
        (KafkaError._TRANSPORT, UnavailableError, "^Kafka cannot be reached: "),
    ],
)
def test_brokers_that_refuse_a_request_are_not_called_unreachable(
    code, kind, reason, monkeypatch
):
    """
    A missing permission remains missing on a retry, so no retry is suggested.
    """
    monkeypatch.setattr(cli, "reading_offsets", nullcontext)

    with pytest.raises(kind, match=reason), cli._offsets("c", {}):
        raise KafkaException(KafkaError(code))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            psycopg.errors.DeadlockDetected("deadlock detected\nmore"),
            "deadlock detected",
        ),
        (psycopg.OperationalError(), "OperationalError"),
    ],
)
def test_a_database_that_fails_during_a_command_is_not_called_unreachable(
    error, reason, monkeypatch
):
    """
    A deadlock, a timeout or a full disk shows that the server was reached.
    """
    monkeypatch.setattr(psycopg, "connect", lambda _dsn: nullcontext())
    expected = f"the database did not complete the command: {reason}"

    with pytest.raises(UnavailableError) as raised, cli._connect("dbname=x"):
        raise error

    assert expected == str(raised.value)


@pytest.mark.parametrize("dsn", ["nonsense", "host=h pw", "postgresql://u:pw@["])
def test_an_address_that_cannot_be_parsed_is_refused(dsn, capsys):
    """
    The error does not repeat it, because it may contain a password.
    """
    code = run(["inbox", "create", "--dsn", dsn])
    printed = capsys.readouterr().err

    assert (2, True, False) == (code, "--dsn must be" in printed, "pw" in printed)


def test_a_value_that_the_driver_refuses_is_a_mistake_in_the_address(capsys):
    """
    The address can be parsed, so the message names the value.
    """
    dsn = "host=127.0.0.1 port=1 connect_timeout=soon"
    code = run(["inbox", "create", "--dsn", dsn])

    assert (2, True) == (code, "connect_timeout: 'soon'" in capsys.readouterr().err)


@pytest.mark.parametrize("option", ["--schema", "--consumer"])
@pytest.mark.parametrize("command", ["status", "parked"])
def test_an_empty_name_is_refused(command, option, monkeypatch, capsys):
    """
    Such a name results from an unset variable, and would match nothing.
    """
    monkeypatch.setattr(psycopg, "connect", lambda _dsn: nullcontext())
    more = KAFKA[:2] if command == "status" else []
    consumer = [] if option == "--consumer" else ["--consumer", "c"]

    assert 2 == run(["inbox", command, *DATABASE, *more, *consumer, option, ""])
    assert "it is empty" in capsys.readouterr().err


def test_a_standby_is_refused_if_the_command_writes(monkeypatch):
    """
    A standby answers queries, but refuses a request for a replay.
    """
    monkeypatch.setattr(psycopg, "connect", lambda _dsn: nullcontext())
    refused = psycopg.errors.ReadOnlySqlTransaction(
        "cannot execute UPDATE in a read-only transaction"
    )

    with pytest.raises(UsageError, match="primary"), cli._connect("dbname=x"):
        raise refused


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file or directory"),
        (b"sasl.username = \xe9", "not UTF-8 text"),
        (
            b"# a comment\n\nsasl.username = me\nnonsense",
            "line 4: no setting of the form",
        ),
    ],
)
def test_a_settings_file_is_read_before_connecting(text, reason, tmp_path, capsys):
    """
    A mistake in it is found before any connection.
    """
    file = tmp_path / "client.properties"
    if text is not None:
        file.write_bytes(text)
    for command in ("status", "prune"):
        args = [*DATABASE, *KAFKA, "--kafka-file", str(file)]
        assert 2 == run(["inbox", command, *args])
        assert reason in capsys.readouterr().err
