"""Sinks continue on a different machine from the copies of their state in Kafka."""

import re
import signal

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from support.driver_process import PATIENCE_S, Feed, Place, driver, start
from support.waiting import until
from towpath.settings import load
from towpath.sinks.errors import BrokerUnavailableError, SinkTakenOverError
from towpath.sinks.kafka import client, state_topic
from towpath.sinks.kafka.client import Topics
from towpath.sinks.kafka.state_topic import StateTopic
from towpath.sinks.state.progress import progress_path, stored_progress

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

NAMES = ("cache", "warehouse")
SMALL = 100


@pytest.fixture
def topics(stack, unique, tmp_path):
    """Return one sink's state topic twice, once for each of two drivers."""
    stack.up("kafka")
    sink_place = Place(stack, unique, tmp_path)
    sink_place.write_config(sink_place.sink("cache", "cache", "redis://unused"))
    settings = load(sink_place.config, {})
    return StateTopic(settings, "cache"), StateTopic(settings, "cache")


def test_records_are_stored_together_and_the_topic_is_compacted(stack, topics):
    """
    The newest record of each key is returned; a deleted key is not.
    """
    one, other = topics
    assert {} == one.read()
    one.fence()
    one.write({"a": b"1", "b": b"2", "c": b""})
    before = other.end()
    one.write({"a": b"3", "b": None})

    assert {"a": b"3", "c": b""} == other.read()
    assert other.end() > before
    resource = ConfigResource(ResourceType.TOPIC, one.name)
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    config = admin.describe_configs([resource])[resource].result()
    assert ("compact", "-1") == (
        config["cleanup.policy"].value,
        config["retention.ms"].value,
    )


def test_a_fenced_writer_stores_nothing(topics):
    """
    Kafka refuses its transactions, even one that began before the fencing.
    """
    one, other = topics
    one.read()
    one.fence()
    one.write({"a": b"1"})
    other.fence()
    other.write({"a": b"2"})

    with pytest.raises(SinkTakenOverError):
        one.write({"a": b"3"})
    with pytest.raises(BrokerUnavailableError):
        one.write({"a": b"4"})
    assert {"a": b"2"} == one.read()


@pytest.mark.usefixtures("topics")
def test_an_unreachable_broker_is_reported(tmp_path, monkeypatch):
    """
    The copies cannot be read, so the sink does not start.
    """
    text = (tmp_path / "towpath.toml").read_text(encoding="utf-8")
    unreachable = tmp_path / "away.toml"
    unreachable.write_text(re.sub(r"(servers = ).*", r'\1"127.0.0.1:1"', text), "utf-8")
    topic = StateTopic(load(unreachable, {}), "cache")
    for module in (client, state_topic):
        monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", 1.0)

    for call in (topic.read, topic.end, topic.fence):
        with pytest.raises(BrokerUnavailableError):
            call()


class Machine(Place):
    """A machine with a folder of its own, and a driver of the same two sinks."""

    def __init__(self, stack, name, folder, lake):
        folder.mkdir()
        super().__init__(stack, name, folder)
        options = {"folder": str(lake), "trigger_ms": 1000, "max_batch_records": SMALL}
        self.write_config(
            "[sinks]\nstate_copies = true\n",
            self.sink(
                *("cache", "cache", stack.redis_url),
                trigger_ms=1000,
                max_batch_records=SMALL,
            ),
            self.sink(
                *("warehouse", "warehouse", stack.dsn("warehouse")),
                route=f"{name}.warehouse",
                **options,
            ),
        )

    def apply(self, feed, seed):
        """Produce some changes, and wait until both sinks have applied them."""
        feed.work(240, keys=60, seed=seed)
        for name in NAMES:
            self.wait_applied(name)

    def is_fenced_off(self):
        """Return whether this driver has lost each of its sinks to another machine."""
        # Published progress is the other driver's; only the file is this driver's own.
        paths = [progress_path(self.settings.state_folder, name) for name in NAMES]
        found = [stored_progress(path, path.parent.name).error or "" for path in paths]
        return all("a driver on another machine" in error for error in found)


@pytest.mark.spark
def test_a_driver_elsewhere_continues_and_the_earlier_one_is_fenced_off(
    stack, unique, tmp_path, request
):
    """
    The first driver is suspended as if its machine were lost, and later resumes.
    """
    stack.up("kafka", "redis", "postgres")
    first, second = (
        Machine(stack, unique, tmp_path / name, tmp_path / "lake")
        for name in ("first", "second")
    )
    feed = Feed(first)
    suspended = start(first)
    request.addfinalizer(suspended.kill)
    first.apply(feed, seed=1)
    suspended.send_signal(signal.SIGSTOP)
    feed.truncate()
    with driver(second):
        second.apply(feed, seed=2)
        suspended.send_signal(signal.SIGCONT)
        until(first.is_fenced_off, "the driver is fenced off", timeout_s=PATIENCE_S)
        assert [feed.rows] * 2 == [second.contents(name) for name in NAMES]
        second.apply(feed, seed=3)
    # The second driver has released the sinks, and the first continues from its state.
    first.apply(feed, seed=4)
    read = [first.progress(name).records for name in NAMES]
    suspended.send_signal(signal.SIGTERM)

    assert 0 == suspended.wait(60), first.log()
    assert [feed.rows] * 2 == [first.contents(name) for name in NAMES]
    # Counters continue, so no sink has started over; each of the two handovers may have
    # repeated one batch.
    ends = Topics(first.settings.kafka).end_offsets([first.topic])[first.topic]
    sent = sum(ends.values())
    assert all(sent <= count <= sent + 2 * SMALL for count in read), (sent, read)
