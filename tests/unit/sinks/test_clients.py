"""The Kafka clients of the sinks: their settings, and their fatal errors."""

import logging
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from support.relay_bench import Clock
from towpath.settings import Kafka, Registry, Settings, Source
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.kafka import client, progress_topic
from towpath.sinks.kafka.progress_topic import ProgressTopic

SETTINGS = Settings(
    version=1,
    source=(Source(dsn="postgresql://x/y"),),
    kafka=Kafka(bootstrap_servers="x"),
    registry=Registry(url="x"),
)


class LineHandler(logging.Handler):
    """Keeps the lines that the library prints."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage().rpartition("]: ")[2])


def test_the_sinks_producer_is_idempotent_and_waits_for_all_replicas(monkeypatch):
    """
    The library prints every setting that differs from its default.
    """
    handler = LineHandler()
    logger = logging.getLogger("test-clients")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    printing = {"debug": "conf", "log_level": 7, "logger": logger}
    monkeypatch.setattr(client, "Producer", lambda own: Producer({**own, **printing}))
    client.producer(Kafka(bootstrap_servers="127.0.0.1:1")).poll(0)
    pairs = [line.split(" = ", 1) for line in handler.lines if " = " in line]
    found = {name.strip(): value for name, value in pairs}

    assert ("true", "-1") == (
        found["enable.idempotence"],
        found["request.required.acks"],
    )


def test_progress_is_published_again_after_a_clients_fatal_error(monkeypatch):
    """
    After such an error, a client refuses every record; the driver may run for months.
    """

    class BrokenClient:
        """A client with a fatal error."""

        def produce(self, *_, **__):
            raise KafkaException(KafkaError(KafkaError._FATAL, "not authorized"))

    class WorkingClient:
        """A client that accepts every record."""

        def __init__(self):
            self.records = []

        def produce(self, _topic, *, value, **_):
            self.records.append(value)

        def poll(self, _timeout_s):
            """Call no callback."""

    fine = WorkingClient()
    made = iter((BrokenClient(), BrokenClient(), fine))
    monkeypatch.setattr(client, "Producer", lambda _: next(made))
    topic = ProgressTopic(SETTINGS, Clock())
    known = SimpleNamespace(names=lambda: {topic.name})
    monkeypatch.setattr(progress_topic, "Topics", lambda _: known)
    topic.send("cache", b"1")
    with pytest.raises(BrokerUnavailableError):
        topic.drop("cache")
    topic.send("cache", b"2")

    assert (1, [b"2"]) == (topic.failures("cache"), fine.records)


def test_another_threads_fatal_error_does_not_end_a_flush(monkeypatch):
    """
    The other thread may drop the client between any two steps of this one.
    """

    class RacedTopic(ProgressTopic):
        """Loses its client to another thread right after reading the attribute."""

        def __getattribute__(self, name):
            found = super().__getattribute__(name)
            if name == "_producer":
                self.__dict__[name] = None
            return found

    class WorkingClient:
        """A client that accepts every record."""

        def __init__(self):
            self.flushed = []

        def produce(self, *_, **__):
            """Take the record."""

        def poll(self, _timeout_s):
            """Call no callback."""

        def flush(self, within_s):
            self.flushed.append(within_s)

    fine = WorkingClient()
    monkeypatch.setattr(client, "Producer", lambda _: fine)
    topic = RacedTopic(SETTINGS, Clock())
    topic.send("cache", b"1")
    topic.flush(5)
    topic.flush(5)

    assert [5] == fine.flushed
