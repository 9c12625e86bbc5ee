"""Payloads in Avro, with a real registry: decoded for the handler, or parked."""

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
    """The registry, and what encodes values by a schema of it."""

    def __init__(self, url, subject):
        self.url, self._subject = url, subject
        self._client = registry_client(url)

    def encoder(self, *fields):
        """Return a function that encodes a record with these fields."""
        record = {"type": "record", "name": "PostViewed", "fields": [*fields]}
        encode = AvroSerializer(self._client, json.dumps(record))
        place = SerializationContext(self._subject, MessageField.VALUE)
        return lambda value: encode(value, place)

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
    """Provide the decoder in use, which a test may exchange."""
    made = AvroDecoder({"url": registry.url})
    yield [made]
    made.close()


@pytest.fixture
def place(stack, database, unique, decoders):
    """Provide a consumer's database and topic."""
    stack.up("postgres", "kafka")

    def decode(event):
        return decoders[0](event)

    made = InboxPlace(database, stack.kafka, unique, decode)
    yield made
    made.close()


def test_each_event_is_decoded_by_the_schema_that_it_was_written_with(place, registry):
    """
    Two versions and JSON are in one topic; the key stays in order.
    """
    old = registry.encoder(COUNT)
    new = registry.encoder(COUNT, {"name": "n", "type": "int", "default": 0})
    place.send("a", 1, encode=old)
    place.send("a", 2, encode=lambda value: new(value | {"n": 1}))
    place.send("a", 3)
    place.send("a", 4, encode=old, **{"content-type": "application/avro"})
    with place.running(attempts=1):
        place.wait_counts(1, 2, 3, 4)


def test_logical_types_become_values_of_python(registry, decoders):
    """
    Decimals, instants, days, UUIDs, enums and unions.
    """
    fields = [{"name": name, "type": kind} for name, kind in TYPES.items()]
    value = registry.encoder(*fields)(VALUES)

    assert VALUES == event(value=value, decode=decoders[0]).payload


def test_an_event_that_cannot_be_decoded_is_parked_until_a_replay(
    place, registry, decoders
):
    """
    A schema that the registry lacks, bytes without a frame, and what is behind them.
    """
    good = registry.encoder(COUNT)
    place.send("a", 1, encode=lambda _: b"\0\x7f\xff\xff\xff\x02", partition=0)
    place.send("a", 2, encode=good, partition=0)
    place.send("b", 3, partition=0, **{"content-type": "avro/binary"})
    place.send("c", 4, encode=good, partition=0)
    with place.running(attempts=2):
        place.wait_counts(4)
        with place.begin() as session:
            unknown, behind, unframed = place.inbox.parked(session)
        decoders[0] = lambda one: {"count": one.offset + 1}
        with place.begin() as session:
            place.inbox.request_replay(session)
        until(lambda: len(place.counts()) == 4, "all are applied")

    assert ({"count": 2}, BEHIND) == (behind.event.payload, behind.reason)
    assert "the schema registry responded: " in unknown.reason
    assert "the payload is not framed, or does not match its " in unframed.reason
    assert ([1, 2], [3]) == (place.counts("a"), place.counts("b"))


def test_a_registry_that_is_down_parks_nothing(place, registry, decoders):
    """
    The event is tried for as long as it takes; a replay waits as well.
    """
    place.send("a", 1, encode=registry.encoder(COUNT), partition=0)
    with place.begin() as session:
        value = registry.encoder(COUNT)({"count": 7})
        drive(session, place.inbox.park(event(id="7", key="b", value=value), "x"))
        place.inbox.request_replay(session)
    working = decoders.pop()
    decoders.append(AvroDecoder({"url": "http://127.0.0.1:1"}))
    with closing(decoders[0]), place.running(attempts=1):
        until(lambda: place.begun >= 6, "some attempts have failed")
        assert [] == place.counts()
        decoders[0] = working
        until(lambda: sorted(place.counts()) == [1, 7], "both are applied")

    assert [] == place.parked()


def test_an_asynchronous_consumer_decodes_before_it_handles(place, registry):
    """
    The handler gets the payload without a request of its own.
    """
    applied = asyncio.Event()
    seen = []

    @asynccontextmanager
    async def begin():
        async with await psycopg.AsyncConnection.connect(place.dsn) as connection:
            yield connection

    async def handle(event, _session):
        seen.append(vars(event)["payload"])
        applied.set()

    async def work():
        stop = asyncio.Event()
        settings = {"bootstrap.servers": place.kafka}
        consumer = AsyncConsumer(
            place.inbox, settings, [place.topic], begin=begin, handle=handle
        )
        task = asyncio.create_task(consumer.run_async(stop))
        await applied.wait()
        stop.set()
        await task

    place.send("a", 1, encode=registry.encoder(COUNT))
    asyncio.run(work())

    assert [{"count": 1}] == seen
