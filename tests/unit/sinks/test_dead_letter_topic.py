"""A dead letter is durable once it is acknowledged; any failure raises an error."""

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from support.configuration import configuration
from support.parked_shop import change
from towpath.settings import load
from towpath.sinks.dead_letters.entries import DeadLetter, Resolution, Subject
from towpath.sinks.errors import BrokerUnavailableError, SinkTakenOverError
from towpath.sinks.kafka import client
from towpath.sinks.kafka import dead_letter_topic as module
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic

LETTER = DeadLetter(change(3, note="bad"), "too long", "orders", True)


class ExistingTopic:
    """A cluster that has the topic."""

    def __init__(self, _kafka):
        """Accept the settings of any brokers."""
        self.requested = 0

    def create(self, _name, _settings, *, is_kept_whole):
        """Count the request; create nothing."""
        self.requested += 1
        return not is_kept_whole


@pytest.fixture
def topic_of(tmp_path, monkeypatch):
    """Provide a function that makes a dead-letter topic with a silent broker."""
    monkeypatch.setattr(module, "Topics", ExistingTopic)

    def make(*before):
        path = tmp_path / "towpath.toml"
        arguments = ("postgresql://unused/shop", "127.0.0.1:1", "towpath", ())
        path.write_text(configuration(*arguments), encoding="utf-8")
        return DeadLetterTopic(load(path, {}), "cache", *before)

    return make


def test_a_dead_letter_that_is_not_acknowledged_in_time_raises_an_error(
    topic_of, monkeypatch
):
    """
    The batch is written again, because the dead letter may not be durable.
    """
    monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", 0.01)

    with pytest.raises(BrokerUnavailableError, match="no answer in time"):
        topic_of().put([LETTER])


def test_a_dead_letter_that_the_client_gives_up_on_raises_an_error(
    topic_of, monkeypatch
):
    """
    Nothing is in flight anymore, and nothing was acknowledged.
    """
    monkeypatch.setattr(
        client, "Producer", lambda own: Producer({**own, "message.timeout.ms": 1})
    )

    with pytest.raises(BrokerUnavailableError, match="timed out"):
        topic_of().put([LETTER])


def test_a_dead_letter_that_failed_is_not_sent_later(topic_of, monkeypatch):
    """
    A retry may apply the record; a late dead letter would then park its key.
    """
    made = []
    monkeypatch.setattr(
        client, "Producer", lambda own: made.append(Producer(own)) or made[-1]
    )
    monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", 2.1)
    with pytest.raises(BrokerUnavailableError):
        topic_of().put([LETTER])

    # flush() first serves other events, such as lost connections, which count, too.
    assert [0] == [producer.flush(0) for producer in made]


def test_a_topic_that_may_have_been_deleted_is_created_again(topic_of, monkeypatch):
    """
    Each write after a failed one requests the topic again.
    """
    monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", 0.01)
    cluster = ExistingTopic(None)
    monkeypatch.setattr(module, "Topics", lambda _kafka: cluster)
    topic = topic_of()
    for _ in range(2):
        with pytest.raises(BrokerUnavailableError):
            topic.put([LETTER])

    assert 2 == cluster.requested


def test_storing_an_empty_list_returns_immediately(topic_of):
    """
    There is nothing that a broker could acknowledge.
    """
    assert 0 == topic_of().put([])


def test_a_failing_check_prevents_a_resolution(topic_of):
    """
    A driver that has lost its sink resolves nothing.
    """

    def refuse():
        message = "taken over"
        raise SinkTakenOverError(message)

    resolution = Resolution(Subject("orders", b"1"), "a", "replayed")
    with pytest.raises(SinkTakenOverError):
        topic_of(refuse).resolve([resolution])


def test_a_client_with_a_fatal_error_is_replaced(topic_of, monkeypatch):
    """
    Such a client refuses every later record, so a retry needs a new one.
    """
    made = []

    class Unusable:
        """A client whose user may not write."""

        def produce(self, *_, **__):
            raise KafkaException(KafkaError(KafkaError._FATAL, "not authorized"))

    monkeypatch.setattr(client, "Producer", lambda _: made.append(1) or Unusable())
    topic = topic_of()
    with pytest.raises(BrokerUnavailableError, match="not authorized"):
        topic.put([LETTER])

    assert 2 == len(made)
