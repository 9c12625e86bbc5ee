"""The sinks' clients as the client library itself describes them."""

import logging

from confluent_kafka import Producer

from towpath.settings import Kafka
from towpath.sinks.kafka import client


class Lines(logging.Handler):
    """Keeps what the library prints."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage().rpartition("]: ")[2])


def test_the_sinks_producer_is_idempotent_and_waits_for_all_replicas(monkeypatch):
    """
    The library states it: it prints every setting that is not its default.
    """
    handler = Lines()
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
