"""The edges' own translations: SQLSTATEs, queries, health pages."""

from http import HTTPStatus

import pytest
from confluent_kafka import KafkaError, KafkaException
from prometheus_client import CollectorRegistry

from towpath.relay import errors
from towpath.relay.health import TallyCollector, _answer
from towpath.relay.kafka.client import translated
from towpath.relay.postgres.connect import failure_of, quoted
from towpath.relay.postgres.queries import query
from towpath.relay.tally import Tally


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (None, errors.SourceUnavailableError),
        ("08006", errors.SourceUnavailableError),
        ("57P01", errors.SourceUnavailableError),
        ("53300", errors.SourceUnavailableError),
        ("55006", errors.SlotBusyError),
        ("55000", errors.SlotLostError),
        ("42704", errors.NotPreparedError),
        ("28P01", errors.SourceRefusedError),
        ("42501", errors.SourceRefusedError),
        ("57014", errors.SourceRefusedError),
    ],
)
def test_a_state_decides_the_error(state: str | None, error: type[Exception]):
    """
    Errors are told apart by SQLSTATE, never by text.
    """
    assert error is type(failure_of(state, "doing: told"))


def test_a_refused_password_is_not_tried_for_ever():
    """
    A connection that failed at its login halts, although it has no SQLSTATE.
    """
    failed = failure_of(None, "connecting: no", was_login=True)

    assert isinstance(failed, errors.SourceRefusedError)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError._TRANSPORT, errors.BrokerUnavailableError),
        (KafkaError._TIMED_OUT, errors.BrokerUnavailableError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, errors.BrokerRefusedError),
        (KafkaError.INVALID_PARTITIONS, errors.BrokerRefusedError),
    ],
)
def test_a_brokers_error_is_away_or_refused(code: int, error: type[Exception]):
    """
    What trying again may cure is told apart from what it does not.
    """
    made = translated(KafkaException(KafkaError(code)), "making topic t")

    assert (error, True) == (type(made), str(made).startswith("making topic t: "))


def test_every_statement_is_found_by_its_name():
    """
    A named statement is returned; an unknown name is an error.
    """
    with pytest.raises(KeyError):
        query("nothing")

    assert query("create_schema").startswith(b"create schema")


def test_names_are_quoted():
    """
    Names are written so that they cannot be anything else.
    """
    assert '"a b"."c""d"' == quoted("a b", 'c"d')


def test_each_reason_is_told_once_and_counted_always():
    """
    The first occurrence of a reason is logged; every one is counted.
    """
    told: list[tuple[str, str]] = []
    tally = Tally(on_first=lambda what, reason: told.append((what, reason)))
    for reason in ("a", "a", "b"):
        tally.bury(reason)
        tally.skip(reason)

    assert (4, {"a": 2, "b": 1}) == (len(told), dict(tally.dead_letters))


@pytest.mark.parametrize(
    ("path", "is_streaming", "status", "part"),
    [
        ("/health/live", False, HTTPStatus.OK, b"live"),
        ("/health/ready", True, HTTPStatus.OK, b"ready"),
        ("/health/ready", False, HTTPStatus.SERVICE_UNAVAILABLE, b"not streaming"),
        ("/metrics", False, HTTPStatus.OK, b'dead_letters_total{reason="a"} 1.0'),
        ("/", False, HTTPStatus.NOT_FOUND, b"/metrics"),
    ],
)
def test_each_page_answers(
    path: str, status: HTTPStatus, part: bytes, *, is_streaming: bool
):
    """
    Health and metrics are told from the tally.
    """
    tally = Tally(is_streaming=is_streaming)
    tally.bury("a")
    registry = CollectorRegistry()
    registry.register(TallyCollector(tally))
    answer = _answer(path, tally, registry)

    assert (status, True) == (answer[0], part in answer[1])
