"""The relay's producer as the client library itself describes it."""

import logging
from unittest.mock import Mock

import pytest
import structlog

from towpath.relay.encode.record import Record
from towpath.relay.kafka import producer as producer_module
from towpath.relay.kafka.client import client_logger
from towpath.relay.kafka.producer import KafkaProducer
from towpath.schemas.clock import SystemClock
from towpath.settings import Kafka

# The library prints every setting that differs from its default.
KAFKA = Kafka(bootstrap_servers="127.0.0.1:1", client={"debug": "conf"})


@pytest.fixture
def settings_of():
    """
    Provide a function that makes a producer and returns the library's printed settings.
    """
    logger = client_logger()
    level = logger.level
    logger.setLevel(logging.DEBUG)

    def settings(kafka=KAFKA, **options):
        with structlog.testing.capture_logs() as logs:
            producer = KafkaProducer(
                kafka,
                max_in_flight_bytes=1024 * 1024,
                batch_bytes=1_000_000,
                record_bytes=1_000_000,
                **options,
            )
            # The first poll passes on the output that the library prints at its start.
            producer.poll(0)
            producer.close()
        lines = [line["line"].rpartition("]: ")[2] for line in logs if "line" in line]
        pairs = [line.split(" = ", 1) for line in lines if " = " in line]
        return {name.strip(): value for name, value in pairs}

    yield settings
    logger.setLevel(level)


def test_the_producer_is_idempotent_and_waits_for_all_replicas(settings_of):
    """
    The library's settings say so; records never expire, and transactions are off.
    """
    found = settings_of()

    assert ("true", "-1", "0", None) == (
        found["enable.idempotence"],
        found["request.required.acks"],
        found["message.timeout.ms"],
        found.get("transactional.id"),
    )


def test_no_batch_follows_a_refused_one(settings_of):
    """
    Instead, the client fails as a whole; a transaction is aborted anyway.
    """
    name = "enable.gapless.guarantee"

    assert ("true", "false") == (
        settings_of()[name],
        settings_of(transactional_id="towpath-shop").get(name, "false"),
    )


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ({}, ("lz4", "0")),
        ({"compression.type": "zstd"}, ("zstd", "0")),
        ({"compression.codec": "gzip", "linger.ms": "7"}, ("gzip", "7")),
    ],
)
def test_the_configuration_may_tune_the_producer(settings_of, client, expected):
    """
    A client setting that does not affect a guarantee is not silently ignored.
    """
    found = settings_of(KAFKA.model_copy(update={"client": KAFKA.client | client}))

    assert expected == (
        found["compression.codec"],
        found["queue.buffering.max.ms"],
    )


def test_the_client_does_not_choose_partitions(settings_of):
    """
    No partitioner is set, not even a sticky one: the relay chooses each partition.
    """
    assert set() == {name for name in settings_of() if "partition" in name}


def test_a_transactional_producer_has_its_transactional_id(settings_of):
    """
    With this id, the broker fences the previous holder.
    """
    found = settings_of(transactional_id="towpath-shop")

    assert ("towpath-shop", "true") == (
        found["transactional.id"],
        found["enable.idempotence"],
    )


def test_no_record_has_a_timestamp_in_the_future(monkeypatch: pytest.MonkeyPatch):
    """
    A broker refuses times far ahead of its own clock; the source's clock may be wrong.
    """
    client = Mock()
    monkeypatch.setattr(producer_module, "make_client", lambda *_: client)
    producer = KafkaProducer(
        KAFKA, max_in_flight_bytes=1, batch_bytes=1, record_bytes=1
    )
    year_2020_ms, year_2100_ms = 1_577_836_800_000, 4_102_444_800_000
    records = [
        Record("t", b"k", b"v", [], b"P.1", time_ms, 600, 0)
        for time_ms in (year_2020_ms, year_2100_ms)
    ]
    producer.produce([(record, 0, None) for record in records])
    past_ms, future_ms = (call.args[6] for call in client.produce.call_args_list)
    now_ms = SystemClock().now().timestamp() * 1000

    assert year_2020_ms == past_ms < future_ms <= now_ms
