"""Avro payloads with a real registry: decoded for the handler, or parked."""

import asyncio
import datetime as dt
import json
from contextlib import asynccontextmanager, closing
from decimal import Decimal
from uuid import UUID

import psycopg
import pytest
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from support.inbox_place import InboxPlace, event
from support.registry import registry_client
from support.waiting import until
from towpath.inbox import AsyncConsumer
from towpath.inbox.avro import AvroDecoder
from towpath.inbox.inbox import BEHIND
from towpath.schemas.transactions import drive

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

COUNT = {"name": "count", "type": "int"}
TYPES = {
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "day": {"type": "int", "logicalType": "date"},
    "uid": {"type": "string", "logicalType": "uuid"},
    "mood": {"type": "enum", "name": "Mood", "symbols": ["OK", "SAD"]},
    "note": ["null", "string"],
}
VALUES = {
    "price": Decimal("2.50"),
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, 600, dt.UTC),
    "day": dt.date(2026, 1, 2),
    "uid": UUID("6f1c1a3e-0000-4000-8000-0123456789ab"),
    "mood": "OK",
    "note": None,
}


class Registry:
    """The registry, and encoders that use its schemas."""

    def __init__(self, url, subject):
        self.url, self._subject = url, subject
        self._client = registry_client(url)

    def encoder(self, *fields):
        """Return a function that encodes a record with these fields."""
        record = {"type": "record", "name": "PostViewed", "fields": [*fields]}
        encode = AvroSerializer(self._client, json.dumps(record))
        context = SerializationContext(self._subject, MessageField.VALUE)
        return lambda value: encode(value, context)

    def close(self):
        """Close the connections."""
        self._client.close()


@pytest.fixture
def registry(stack, unique):
    """Provide the registry."""
    made = Registry(stack.registry_url, unique)
    yield made
    made.close()


@pytest.fixture
def decoders(registry):
    """Provide a list with the decoder in use, which a test may replace."""
    made = AvroDecoder({"url": registry.url})
    yield [made]
    made.close()


@pytest.fixture
def rig(stack, database, unique, decoders):
    """Provide a consumer, its database and its topic."""
    stack.up("postgres", "kafka")

    def decode(event):
        return decoders[0](event)

    made = InboxPlace(database, stack.kafka, unique, decode)
    yield made
    made.close()


def test_each_event_is_decoded_with_its_writers_schema(rig, registry):
    """
    One topic has two schema versions and JSON; the key's events remain in order.
    """
    old = registry.encoder(COUNT)
    new = registry.encoder(COUNT, {"name": "n", "type": "int", "default": 0})
    rig.send("a", 1, encode=old)
    rig.send("a", 2, encode=lambda value: new(value | {"n": 1}))
    rig.send("a", 3)
    rig.send("a", 4, encode=old, **{"content-type": "application/avro"})
    with rig.running(attempts=1):
        rig.wait_counts(1, 2, 3, 4)


def test_logical_types_become_python_values(registry, decoders):
    """
    Decimals, timestamps, dates, UUIDs, enums and unions are decoded.
    """
    fields = [{"name": name, "type": kind} for name, kind in TYPES.items()]
    value = registry.encoder(*fields)(VALUES)

    assert VALUES == event(value=value, decode=decoders[0]).payload


def test_an_event_that_cannot_be_decoded_is_parked_until_a_replay(
    rig, registry, decoders
):
    """
    Events with an unknown schema or no frame are parked together with their followers.
    """
    good = registry.encoder(COUNT)
    rig.send("a", 1, encode=lambda _: b"\0\x7f\xff\xff\xff\x02", partition=0)
    rig.send("a", 2, encode=good, partition=0)
    rig.send("b", 3, partition=0, **{"content-type": "avro/binary"})
    rig.send("c", 4, encode=good, partition=0)
    with rig.running(attempts=2):
        rig.wait_counts(4)
        with rig.begin() as session:
            unknown, behind, unframed = rig.inbox.parked(session)
        decoders[0] = lambda one: {"count": one.offset + 1}
        with rig.begin() as session:
            rig.inbox.request_replay(session)
        until(lambda: len(rig.counts()) == 4, "all events are applied")

    assert ({"count": 2}, BEHIND) == (behind.event.payload, behind.reason)
    assert "the schema registry responded: " in unknown.reason
    assert "the payload is not framed, or does not match its " in unframed.reason
    assert ([1, 2], [3]) == (rig.counts("a"), rig.counts("b"))


def test_an_unreachable_registry_parks_no_event(rig, registry, decoders):
    """
    The event is retried until the registry can be reached, and so is a replay.
    """
    rig.send("a", 1, encode=registry.encoder(COUNT), partition=0)
    with rig.begin() as session:
        value = registry.encoder(COUNT)({"count": 7})
        drive(session, rig.inbox.park(event(id="7", key="b", value=value), "x"))
        rig.inbox.request_replay(session)
    working = decoders.pop()
    decoders.append(AvroDecoder({"url": "http://127.0.0.1:1"}))
    with closing(decoders[0]), rig.running(attempts=1):
        until(lambda: rig.begun >= 6, "some attempts have failed")
        assert [] == rig.counts()
        decoders[0] = working
        until(lambda: sorted(rig.counts()) == [1, 7], "both events are applied")

    assert [] == rig.parked()


def test_an_async_consumer_decodes_before_it_handles(rig, registry):
    """
    The handler gets a decoded payload, and makes no request itself.
    """
    applied = asyncio.Event()
    seen = []

    @asynccontextmanager
    async def begin():
        async with await psycopg.AsyncConnection.connect(rig.dsn) as connection:
            yield connection

    async def handle(event, _session):
        seen.append(vars(event)["payload"])
        applied.set()

    async def work():
        stop = asyncio.Event()
        settings = {"bootstrap.servers": rig.kafka}
        consumer = AsyncConsumer(
            rig.inbox, settings, [rig.topic], begin=begin, handle=handle
        )
        task = asyncio.create_task(consumer.run_async(stop))
        await applied.wait()
        stop.set()
        await task

    rig.send("a", 1, encode=registry.encoder(COUNT))
    asyncio.run(work())

    assert [{"count": 1}] == seen
