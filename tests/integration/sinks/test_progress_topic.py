"""Drivers publish progress, and readers on other machines read it, in a real Kafka."""

from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from support.driver_process import Place
from support.published import SinkRun
from support.waiting import CLOCK
from towpath.settings import Kafka
from towpath.sinks.errors import BrokerUnavailableError, UnreadableProgressError
from towpath.sinks.kafka import client, progress_topic
from towpath.sinks.kafka.progress_topic import ProgressReader, ProgressTopic
from towpath.sinks.state.progress import Progress
from towpath.sinks.state.published import PublishedVerification, not_alive

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


def progress(rows):
    """Return the progress of a sink."""
    return Progress("cache", applied={"shop.orders": {"0": rows}}, rows=rows)


@pytest.fixture
def settings(stack, unique, tmp_path):
    """Provide the configuration of a driver."""
    stack.up("kafka")
    sink_place = Place(stack, unique, tmp_path)
    sink_place.write_config(sink_place.sink("cache", "cache", "redis://unused"))
    return sink_place.settings


@pytest.fixture
def reader(settings):
    """Provide a reader on another machine, with only the broker and the prefix."""
    made = ProgressReader(settings, CLOCK)
    yield made
    made.close()


@pytest.fixture
def topic(settings):
    """Provide the topic to which drivers publish."""
    made = ProgressTopic(settings, CLOCK)
    yield made
    made.close()


def begin(settings, topic, folder="here"):
    """Begin a run of the sink with a state folder of its own."""
    return SinkRun(settings.state_folder / folder, "cache", topic)


def rows(reader):
    """Read how many rows the newest run has written."""
    return reader.read("cache").record.progress.rows


def test_a_reader_follows_the_runs_of_a_sink(settings, topic, reader):
    """
    A reader that starts before the topic exists reads each record once.

    It reads until the sink is dropped.
    """
    found = [reader.read("cache")]
    run = begin(settings, topic)
    for number in (1, 2):
        run.publish(progress(number))
        topic.flush(10)
        found.append(rows(reader))
    run.end()
    ended = not_alive(reader.read("cache"), "cache")
    topic.drop("cache")

    assert [None, 1, 2] == found
    assert ended.startswith("the driver of the sink cache ended at ")
    assert reader.read("cache") is None


def test_a_second_driver_in_another_folder_replaces_the_first(settings, topic, reader):
    """
    New and existing readers ignore late records of the earlier run.
    """
    first, second = begin(settings, topic), None
    first.publish(progress(100))
    topic.flush(10)
    before = rows(reader)
    second = begin(settings, topic, "restored")
    second.publish(progress(40))
    first.publish(progress(101))
    topic.flush(10)
    other = ProgressReader(settings, CLOCK)
    found = rows(other)
    other.close()

    assert [100, 40, 40] == [before, rows(reader), found]


def test_a_reader_finds_the_last_verification_of_a_sink(settings, topic, reader):
    """
    The verification remains until the sink is dropped, even if no driver has run.
    """
    found = PublishedVerification("cache", "2026-01-02T03:04:05+00:00", 1, 9)
    topic.publish_verification(found)
    seen = [reader.read("cache"), reader.verification("cache")]
    begin(settings, topic).publish(progress(1))
    for differences in (1, 0):
        topic.publish_verification(replace(found, differences=differences))
        assert 1 == rows(reader)
        seen.append(reader.verification("cache"))
    late = ProgressReader(settings, CLOCK)
    found_late = late.read("cache")
    seen.append(late.verification("cache"))
    late.close()
    topic.drop("cache")
    reader.read("cache")

    assert [None, None, found, replace(found, differences=0)] == seen[:4]
    assert (1, seen[3]) == (found_late.record.progress.rows, seen[4])
    assert reader.verification("cache") is None


def test_the_topic_is_compacted_within_minutes(stack, topic):
    """
    A reader starts at the topic's first record, so the topic must stay short.
    """
    topic.read("cache")
    resource = ConfigResource(ResourceType.TOPIC, topic.name)
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    config = admin.describe_configs([resource])[resource].result()

    assert ("compact", "600000", "1048576") == tuple(
        config[name].value for name in ("cleanup.policy", "segment.ms", "segment.bytes")
    )


def test_a_record_of_a_newer_version_is_reported(stack, settings, topic, reader):
    """
    Only readers of its sink fail; they continue with the next record they can read.
    """
    run = begin(settings, topic)
    producer = Producer({"bootstrap.servers": stack.kafka})
    for sink in ("cache", "other"):
        producer.produce(topic.name, key=sink, value=b'{"version": 2}')
    producer.flush(10)
    with pytest.raises(UnreadableProgressError, match="version 2"):
        reader.read("cache")
    run.publish(progress(3))
    topic.flush(10)

    assert 3 == rows(reader)


def test_an_unreachable_broker_is_not_taken_for_a_silent_driver(settings, monkeypatch):
    """
    The reader raises the error for an unavailable broker.
    """
    monkeypatch.setattr(progress_topic, "REQUEST_TIMEOUT_S", 0.5)
    unreachable = settings.model_copy(
        update={"kafka": Kafka(bootstrap_servers="127.0.0.1:1")}
    )
    reader = ProgressReader(unreachable, CLOCK)

    with pytest.raises(BrokerUnavailableError):
        reader.read("cache")
    reader.close()


def test_a_record_that_is_not_published_is_counted(settings, monkeypatch):
    """
    Publishing neither waits nor fails.
    """
    monkeypatch.setattr(
        client, "Producer", lambda own: Producer({**own, "message.timeout.ms": 1})
    )
    unreachable = settings.model_copy(
        update={"kafka": Kafka(bootstrap_servers="127.0.0.1:1")}
    )
    topic = ProgressTopic(unreachable, CLOCK)
    topic.send("cache", b"{}")
    topic.flush(10)

    assert (1, 0) == (topic.failures("cache"), topic.failures("other"))
