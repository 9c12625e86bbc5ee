"""The outbox route of a relay process: published and parked events, and kills."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.rig import Rig
from support.topics import headers_of, position_of
from towpath.relay.commands.dead_letters import Aggregate, release_of
from towpath.relay.encode.dead_letters import BEHIND, NO_SUCH_PARTITION, TOO_LARGE
from towpath.relay.encode.event_options import ATTRIBUTES
from towpath.relay.encode.outbox import HEADERS_NOT_AN_OBJECT, NO_AGGREGATE_TYPE
from towpath.relay.encode.outbox_columns import ILLEGAL_TOPIC
from towpath.relay.kafka.reading import TopicReader
from towpath.relay.kafka.recovery import read_parked
from towpath.relay.kafka.state import publish_now
from towpath.settings import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

INSERT = (
    "insert into towpath.outbox"
    " (id, aggregate_type, aggregate_id, type, payload, headers, traceparent)"
    " values (gen_random_uuid(), %s, %s, 'Said', %s, %s, %s)"
)
EMIT = "select pg_logical_emit_message(%s, 'towpath.outbox', %s)"


class Relay(Rig):
    """A database, its relay, and the topics that it writes."""

    def prepare(self, outbox: str = "") -> None:
        """Write the configuration, and prepare the database."""
        self.configure(f"{self.outbox}{outbox}")
        self.init()

    def insert_event(
        self,
        kind: str | None,
        aggregate_id: str | None,
        number: int,
        *,
        headers: object = None,
        pad: int = 0,
    ) -> None:
        """Insert an event into the outbox."""
        payload = json.dumps({"n": number, "pad": "x" * pad})
        own = None if headers is None else json.dumps(headers)
        self.connection.execute(INSERT, (kind, aggregate_id, payload, own, None))


def number(message: Message) -> int:
    """Return the number of an event, from its payload or its dead letter."""
    document = json.loads(message.value())
    inner = document.get("payload")
    return json.loads(inner)["n"] if isinstance(inner, str) else document["n"]


@pytest.fixture
def relay(database: str, stack, unique: str, tmp_path: Path) -> Iterator[Relay]:
    """Provide a relay for a fresh database, neither prepared nor started."""
    relay = Relay(database, stack.kafka, unique, tmp_path)
    yield relay
    relay.close()


def allow_nulls(relay: Relay) -> None:
    """Drop NOT NULL from outbox columns: a table created by others may lack it."""
    for column in ("aggregate_type", "aggregate_id"):
        relay.connection.execute(
            f"alter table towpath.outbox alter column {column} drop not null"
        )


def test_events_that_cannot_be_routed_are_parked_and_others_published(relay: Relay):
    """
    Each dead letter has its reason, and later events of its aggregate are parked (I9).

    This holds after a kill and a restart, too; no record is published twice.
    """
    relay.prepare()
    allow_nulls(relay)
    relay.start()
    relay.insert_event(None, "no-type", 0)
    relay.insert_event("bad topic", "1", 1)
    relay.insert_event("order", "list", 2, headers=[1])
    relay.insert_event("order", "large", 3, pad=1_200_000)
    for number_, aggregate in enumerate(("no-type", "list", "large", "good"), 10):
        relay.insert_event("order", aggregate, number_)
    relay.insert_event("customer", "list", 20)
    before = relay.read("dead.relay", at_least=7)
    relay.kill()
    relay.insert_event("order", "list", 30)
    relay.insert_event("order", "good", 31)
    relay.start()
    relay.insert_event("order", "large", 32)
    published = relay.read("event.order", at_least=2)
    dead = relay.read("dead.relay", at_least=9)
    reasons: dict[str, list[str]] = {}
    for message in sorted(dead, key=position_of):
        reasons.setdefault((message.key() or b"").decode(), []).append(
            headers_of(message)["reason"]
        )

    assert (
        {
            "no-type": [NO_AGGREGATE_TYPE, BEHIND],
            "1": [ILLEGAL_TOPIC],
            "list": [HEADERS_NOT_AN_OBJECT, BEHIND, BEHIND],
            "large": [TOO_LARGE, BEHIND, BEHIND],
        },
        ([13, 31], [20], 7, 9),
    ) == (
        reasons,
        (
            sorted(number(m) for m in published),
            [number(m) for m in relay.read("event.customer", at_least=1)],
            len(before),
            len(dead),
        ),
    )


def test_a_dead_letter_has_the_whole_row(relay: Relay):
    """
    It has every column, so that the row can be inserted again.
    """
    relay.prepare()
    relay.start()
    relay.connection.execute(
        INSERT, ("a b", "7", '{"n":  1.10}', '{"x": "y"}', "00-a-b-01")
    )
    (message,) = relay.read("dead.relay", at_least=1)
    row = json.loads(message.value())

    assert (
        ("a b", "7", "Said", '{"n":  1.10}', '{"x": "y"}', "00-a-b-01"),
        ("row", "towpath.outbox", "c", ILLEGAL_TOPIC, ILLEGAL_TOPIC, "7", "a b"),
        True,
    ) == (
        tuple(
            row[name]
            for name in (
                "aggregate_type",
                "aggregate_id",
                "type",
                "payload",
                "headers",
                "traceparent",
            )
        ),
        tuple(
            headers_of(message)[name]
            for name in (
                "form",
                "table",
                "op",
                "reason",
                "__connect.errors.exception.message",
                "parked",
                "aggregate_type",
            )
        ),
        {"id", "occurred_at"} <= row.keys(),
    )


def test_a_topic_that_only_the_broker_refuses_parks_its_events(relay: Relay):
    """
    A name that collides with another topic's ("." equals "_") does not stop the relay.
    """
    relay.prepare()
    relay.start()
    for number_, kind in enumerate(("a.b", "a_b", "c", "a_b")):
        relay.insert_event(kind, "1", number_)
    dead = relay.read("dead.relay", at_least=2)

    assert ([1, 3], [2]) == (
        sorted(number(m) for m in dead),
        [number(m) for m in relay.read("event.c", at_least=1)],
    )


def test_a_row_can_choose_its_partition(relay: Relay):
    """
    An event for a partition that does not exist is a dead letter (A42).
    """
    relay.prepare('placements = ["part:partition"]')
    relay.connection.execute("alter table towpath.outbox add part int")
    relay.start()
    insert = (
        "insert into towpath.outbox"
        " (id, aggregate_type, aggregate_id, type, payload, part)"
        " values (gen_random_uuid(), 'order', %s, 'Said', %s, %s)"
    )
    for part in (2, 0, 3):
        payload = json.dumps({"n": part})
        relay.connection.execute(insert, (str(part), payload, part))
    events = relay.read("event.order", at_least=2)
    (dead,) = relay.read("dead.relay", at_least=1)

    assert ({(2, 2), (0, 0)}, 3, NO_SUCH_PARTITION) == (
        {(number(m), m.partition()) for m in events},
        number(dead),
        headers_of(dead)["reason"],
    )


def test_the_events_of_a_key_are_in_commit_order(relay: Relay):
    """
    With eight writers, positions and numbers rise together within each key (A55).
    """
    relay.prepare()
    relay.start()
    relay.connection.execute("create table n (key int primary key, n int not null)")
    relay.connection.execute("insert into n select g, 0 from generate_series(0, 19) g")
    write = (
        "with next as (update n set n = n + 1 where key = %s returning key, n)"
        " insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload)"
        " select gen_random_uuid(), 'order', key::text, 'Said',"
        " json_build_object('n', n) from next"
    )

    def work(worker: int) -> None:
        with psycopg.connect(relay.dsn, autocommit=True) as connection:
            for turn in range(100):
                connection.execute(write, ((worker * 7 + turn * 3) % 20,))

    workers = [threading.Thread(target=work, args=(each,)) for each in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    by_key: dict[bytes, list[tuple[str, int]]] = {}
    for message in relay.read("event.order", at_least=800):
        found = (position_of(message), number(message))
        by_key.setdefault(message.key(), []).append(found)

    assert (20, 800, []) == (
        len(by_key),
        sum(map(len, by_key.values())),
        [
            key
            for key, found in by_key.items()
            if found != sorted(found)
            or [n for _, n in found] != list(range(1, len(found) + 1))
        ],
    )


def message_of(aggregate_id: str, number_: int, **more: object) -> str:
    """Return the content of a logical message that is an event."""
    event = {
        "id": f"id-{number_}",
        "aggregate_type": "order",
        "aggregate_id": aggregate_id,
        "type": "Said",
        "payload": {"n": number_},
        "occurred_at": "2026-01-02T03:04:05.600000Z",
    }
    return json.dumps(event | more)


def test_logical_messages_are_published_as_events_without_a_table(relay: Relay):
    """
    After a rollback, only the non-transactional message is published (A81).

    After a kill, none is published again, though no publication has the table (A83).
    """
    relay.prepare()
    relay.connection.execute(
        'alter publication "towpath_outbox" drop table towpath.outbox'
    )
    relay.start()
    with relay.connection.transaction():
        relay.connection.execute(EMIT, (True, message_of("1", 1)))
        relay.connection.execute(EMIT, (True, message_of("1", 2)))
    with relay.connection.transaction(force_rollback=True):
        relay.connection.execute(EMIT, (True, message_of("1", 3)))
        relay.connection.execute(EMIT, (False, message_of("2", 4)))
    relay.connection.execute(EMIT, (True, message_of("1", 5)))
    first = relay.read("event.order", at_least=4)
    relay.kill()
    relay.connection.execute(EMIT, (False, message_of("2", 6)))
    relay.start()
    relay.connection.execute(EMIT, (True, message_of("1", 7)))
    messages = relay.read("event.order", at_least=6)
    by_key: dict[bytes, list[int]] = {}
    for message in messages:
        by_key.setdefault(message.key(), []).append(number(message))
    outside = {position_of(m)[17:] for m in messages if m.key() == b"2"}

    assert (4, {b"1": [1, 2, 5, 7], b"2": [4, 6]}, {"-"}, {1767323045600}) == (
        len(first),
        by_key,
        outside,
        {m.timestamp()[1] for m in messages if m.key() == b"2"},
    )


def test_a_message_that_is_not_an_event_is_a_dead_letter(relay: Relay):
    """
    The dead letter has the whole message; rows of its aggregate are parked as well.
    """
    relay.prepare()
    relay.start()
    relay.connection.execute(EMIT, (True, "no json"))
    relay.connection.execute(EMIT, (False, message_of("9", 1, headers=[])))
    relay.insert_event("order", "9", 2)
    relay.insert_event("order", "8", 3)
    dead = sorted(relay.read("dead.relay", at_least=3), key=position_of)

    assert (["message", "message", "record"], "no json", [3]) == (
        [headers_of(m)["form"] for m in dead],
        json.loads(dead[0].value())["content"],
        [number(m) for m in relay.read("event.order", at_least=1)],
    )


def test_a_release_ends_the_parking_of_an_aggregate(relay: Relay):
    """
    After the next start, later events are published; earlier ones remain dead letters.
    """
    relay.prepare()
    relay.start()
    relay.insert_event("order", "1", 1, headers=[1])
    relay.insert_event("order", "1", 2)
    dead = relay.read("dead.relay", at_least=2)
    relay.kill()
    last = max(position_of(m) for m in dead)
    producer = Producer({"bootstrap.servers": relay.kafka})
    producer.produce(
        relay.topic("dead.relay"),
        None,
        b"1",
        headers=[("aggregate_type", b"order"), ("released", last.encode())],
    )
    producer.flush(10)
    with TopicReader(Kafka(bootstrap_servers=relay.kafka)) as reader:
        parked = read_parked(reader, relay.prefix, 10)
    relay.start()
    relay.insert_event("order", "1", 3)
    events = relay.read("event.order", at_least=1)

    assert ([3], 0, True, 3) == (
        [number(m) for m in events],
        len(parked),
        parked.holds("order", b"1", last.encode()),
        len(relay.read("dead.relay", at_least=3)),
    )


def test_parked_aggregates_are_read_from_every_partition(stack, unique: str):
    """
    Without a topic, no aggregate is parked; with one, all aggregates in it are.
    """
    kafka = Kafka(bootstrap_servers=stack.kafka)
    reader = TopicReader(kafka)
    without_topic = read_parked(reader, unique, 10)
    topic = f"{unique}.dead.relay"
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(10)
    producer = Producer({"bootstrap.servers": stack.kafka})
    keys = [b"%d" % n for n in range(50)]
    for key in keys:
        headers = [("aggregate_type", b"order"), ("position", b"P.1"), ("parked", key)]
        producer.produce(topic, b"{}", key, headers=headers)
    for key in keys[:9]:
        headers = [("position", b"P.1"), ("parked", key)]
        producer.produce(topic, b"{}", key, headers=headers)
    producer.flush(10)
    parked = read_parked(reader, unique, 100)
    # These aggregates have the same ids, but no type.
    released = [release_of(unique, Aggregate(None, key), b"P.1") for key in keys[:9]]
    publish_now(kafka, *released)
    with reader:
        remaining = read_parked(reader, unique, 100)

    assert (0, 59, 50, True) == (
        len(without_topic),
        len(parked),
        len(remaining),
        all(remaining.holds("order", key, b"P.2") for key in keys),
    )


def test_cloudevents_and_a_continued_trace_arrive(relay: Relay):
    """
    In binary mode, every attribute is a UTF-8 header, and the payload is unchanged.
    """
    relay.prepare('cloudevents = "/shop"\ntraceparent = "continue"')
    relay.start()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    own = json.dumps({"schema": "shop.Said:1", "tracestate": "a=b"})
    relay.connection.execute(INSERT, ("order", "1", '{"n":  1.0}', own, trace))
    (message,) = relay.read("event.order", at_least=1)
    found_headers = headers_of(message)
    version, trace_id, parent, flags = found_headers["traceparent"].split("-")

    assert (
        (
            "1.0",
            found_headers["id"],
            "/shop",
            "Said",
            "1",
            "shop.Said:1",
            "application/json",
        ),
        ("00", "0af7651916cd43dd8448eb211c80319c", True, "01", "a=b"),
        (b'{"n":  1.0}', True, found_headers["occurred_at"]),
    ) == (
        tuple(
            found_headers[name]
            for name in (
                "ce_specversion",
                "ce_id",
                "ce_source",
                "ce_type",
                "ce_subject",
                "ce_dataschema",
                "content-type",
            )
        ),
        (
            version,
            trace_id,
            parent != "b7ad6b7169203331",
            flags,
            found_headers["tracestate"],
        ),
        (message.value(), found_headers.keys() >= ATTRIBUTES, found_headers["ce_time"]),
    )
