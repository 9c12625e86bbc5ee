"""The client waits while a broker's errors about a topic may be temporary."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from towpath.settings import Kafka
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.kafka import client
from towpath.sinks.kafka.client import Topics

SETTLING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)


class Clock:
    """A clock that advances only in ``wait``."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic_s(self):
        """Return the seconds waited."""
        return self.now_s

    def wait(self, delay_s):
        """Advance the clock."""
        self.now_s += delay_s


class Admin:
    """A broker with one topic, which first answers with the given errors."""

    def __init__(self, *errors):
        self._errors = list(errors)
        self.topics = ["orders"]
        # How many more times a deleted topic is listed.
        self.lingers = 0

    def list_topics(self, timeout):
        """List the topic with its partition."""
        assert timeout > 0
        if not self.topics and self.lingers:
            self.lingers -= 1
            return SimpleNamespace(topics={"orders": self._topic()})
        return SimpleNamespace(topics={name: self._topic() for name in self.topics})

    def list_offsets(self, wanted, request_timeout):
        """Return each partition's end."""
        assert request_timeout > 0
        return {
            partition: self._answer(SimpleNamespace(offset=7)) for partition in wanted
        }

    def delete_topics(self, names, request_timeout):
        """Delete topics."""
        assert request_timeout > 0
        answers = {name: self._answer(None) for name in names}
        if not any(answer.exception() for answer in answers.values()):
            self.topics = []
        return answers

    def _topic(self):
        return SimpleNamespace(partitions={0: None})

    def _answer(self, value):
        answer = Future()
        if self._errors:
            code = self._errors.pop(0)
            answer.set_exception(KafkaException(KafkaError(code, "why")))
        else:
            answer.set_result(value)
        return answer


@pytest.fixture
def clock():
    """Return a clock."""
    return Clock()


@pytest.fixture
def topics(monkeypatch, clock):
    """Return a function that makes the client of a given broker."""

    def make(admin):
        monkeypatch.setattr(client, "AdminClient", lambda _: admin)
        return Topics(Kafka(bootstrap_servers="kafka:9092"), clock)

    return make


@pytest.mark.parametrize("code", SETTLING)
def test_offsets_of_a_new_topic_are_requested_again(topics, code):
    """
    Its partitions may have no leader for a moment, or a broker may not know it yet.
    """
    made = topics(Admin(code, code))

    assert {"orders": {"0": 7}} == made.end_offsets(["orders"])


def test_a_partition_that_remains_without_a_leader_raises_an_error(topics, clock):
    """
    The wait is bounded.
    """
    made = topics(Admin(*[KafkaError.NOT_LEADER_FOR_PARTITION] * 1000))
    with pytest.raises(BrokerUnavailableError, match="why"):
        made.first_offsets(["orders"])

    assert 5 <= clock.now_s < 6


def test_any_other_kafka_error_is_raised_immediately(topics, clock):
    """
    Waiting would not help.
    """
    made = topics(Admin(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerUnavailableError, match="why"):
        made.end_offsets(["orders"])

    assert 0 == clock.now_s


def test_delete_waits_until_the_topic_is_gone(topics, clock):
    """
    A repeated deletion does nothing.
    """
    admin = Admin()
    admin.lingers = 4
    made = topics(admin)
    kept = [made.delete(["orders", "lines"]), made.delete(["orders"])]

    assert ([{}, {}], True) == (kept, clock.now_s > 0)


def test_a_topic_that_is_not_deleted_in_time_raises_an_error(topics):
    """
    This wait is bounded too.
    """
    admin = Admin()
    admin.lingers = 1000
    with pytest.raises(BrokerUnavailableError, match="orders still exists"):
        topics(admin).delete(["orders"])


def test_a_topic_that_the_broker_keeps_is_reported_with_its_reason(topics):
    """
    Deletion is disabled or forbidden; this is not an error, as a retry would not help.
    """
    made = topics(Admin(KafkaError.TOPIC_DELETION_DISABLED))

    assert {"orders": "why"} == made.delete(["orders"])
