"""The outbox route as a process: what is parked, what flows, also after a kill."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from towpath.relay.__main__ import init
from towpath.relay.kafka.parked import read_parked
from towpath.relay.routing.cloudevents import ATTRIBUTES
from towpath.relay.routing.dead import BEHIND, NO_SUCH_PARTITION, TOO_LARGE
from towpath.relay.routing.outbox_event import HEADERS_NOT_AN_OBJECT, NO_AGGREGATE_TYPE
from towpath.relay.routing.topic_rule import ILLEGAL_TOPIC
from towpath.schemas.clock import Deadline, SystemClock
from towpath.settings import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

CLOCK = SystemClock()
TIMEOUT_S = 45.0
INSERT = (
    "insert into towpath.outbox"
    " (id, aggregate_type, aggregate_id, type, payload, headers, traceparent)"
    " values (gen_random_uuid(), %s, %s, 'Said', %s, %s, %s)"
)
SPEAK = "select pg_logical_emit_message(%s, 'towpath.outbox', %s)"


class Relay:
    """A database, its relay, and the topics that it writes."""

    def __init__(self, dsn: str, kafka: str, prefix: str, folder: Path) -> None:
        self.dsn = dsn
        self.kafka = kafka
        self.prefix = prefix
        self.folder = folder
        self.config = folder / "towpath.toml"
        self.source = psycopg.connect(dsn, autocommit=True)
        self.processes: list[subprocess.Popen[bytes]] = []

    def prepare(self, outbox: str = "") -> None:
        """Write the configuration, and prepare the database."""
        self.config.write_text(
            f"""
version = 1
[[source]]
dsn = "{self.dsn}"
prefix = "{self.prefix}"
slot = "{self.prefix}"
[kafka]
bootstrap_servers = "{self.kafka}"
[registry]
url = "http://127.0.0.1:1"
[topics]
partitions = 3
[relay.outbox]
topic = "{self.prefix}.event.{{aggregate_type}}"
{outbox}
""",
            encoding="utf-8",
        )
        init(self.config, dry_run=False)

    def start(self) -> subprocess.Popen[bytes]:
        """Start a relay process."""
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "towpath.relay", str(self.config)],
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    @property
    def log_file(self) -> Path:
        return self.folder / "relay.log"

    def say(
        self,
        kind: str | None,
        aggregate_id: str | None,
        number: int,
        *,
        headers: object = None,
        pad: int = 0,
    ) -> None:
        """Insert an event."""
        payload = json.dumps({"n": number, "pad": "x" * pad})
        own = None if headers is None else json.dumps(headers)
        self.source.execute(INSERT, (kind, aggregate_id, payload, own, None))

    def close(self) -> None:
        """Leave nothing behind."""
        for process in self.processes:
            process.kill()
            process.wait()

        def is_dropped() -> bool:
            with contextlib.suppress(psycopg.errors.ObjectInUse):
                self.source.execute(
                    "select pg_drop_replication_slot(slot_name)"
                    " from pg_replication_slots where slot_name = %s",
                    (self.prefix,),
                )
                return True
            return False

        until(is_dropped, "the slot is free")
        self.source.close()

    def topic(self, name: str) -> str:
        """Name a topic below the prefix."""
        return f"{self.prefix}.{name}"

    def read(self, name: str, *, at_least: int) -> list[Message]:
        """Read a topic from its beginning until so many records are there, and more."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka,
                "group.id": "test",
                "fetch.wait.max.ms": 50,
            }
        )
        deadline = Deadline(CLOCK, TIMEOUT_S)
        found: list[Message] = []
        try:
            while not assign(consumer, self.topic(name)):
                if deadline.passed():
                    pytest.fail(f"no topic {name}: {self.log_file.read_text()[-2000:]}")
                CLOCK.wait(0.05)
            while len(found) < at_least and not deadline.passed():
                found += [m for m in consumer.consume(500, 0.2) if m.error() is None]
            found += [m for m in consumer.consume(500, 1.0) if m.error() is None]
        finally:
            consumer.close()
        if len(found) < at_least:
            pytest.fail(
                f"{len(found)} of {at_least}: {self.log_file.read_text()[-2000:]}"
            )
        return found


def assign(consumer: Consumer, topic: str) -> bool:
    """Assign every partition of a topic, if it exists."""
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, at, 0) for at in partitions])
    return bool(partitions)


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    deadline = Deadline(CLOCK, TIMEOUT_S)
    while not holds():
        if deadline.passed():
            pytest.fail(f"waited {TIMEOUT_S:g} s in vain until {what}")
        CLOCK.wait(0.05)


def marks(message: Message) -> dict[str, Any]:
    """Return a record's headers, as text."""
    found = message.headers() or []
    return {name: value and value.decode() for name, value in found}


def number(message: Message) -> int:
    """Return the number of an event, in whatever form it stands."""
    told = json.loads(message.value())
    inner = told.get("payload")
    return json.loads(inner)["n"] if isinstance(inner, str) else told["n"]


@pytest.fixture
def relay(database: str, stack, unique: str, tmp_path: Path) -> Iterator[Relay]:
    """Lend a relay over a fresh database; nothing is prepared or started."""
    lent = Relay(database, stack.kafka, unique, tmp_path)
    yield lent
    lent.close()


def let_everything_be_null(relay: Relay) -> None:
    """Take the constraints off the outbox: other writers' tables have none."""
    for column in ("aggregate_type", "aggregate_id"):
        relay.source.execute(
            f"alter table towpath.outbox alter column {column} drop not null"
        )


def test_what_cannot_be_routed_is_parked_and_all_else_flows(relay: Relay):
    """
    Each row has its reason, and its aggregate's later events wait behind it (I9).

    Also after a kill and a restart; no record is there twice.
    """
    relay.prepare()
    let_everything_be_null(relay)
    process = relay.start()
    relay.say(None, "no-type", 0)
    relay.say("bad topic", "1", 1)
    relay.say("order", "list", 2, headers=[1])
    relay.say("order", "large", 3, pad=1_200_000)
    for number_, aggregate in enumerate(("no-type", "list", "large", "good"), 10):
        relay.say("order", aggregate, number_)
    relay.say("customer", "list", 20)
    before = relay.read("dead.relay", at_least=7)
    process.kill()
    process.wait()
    relay.say("order", "list", 30)
    relay.say("order", "good", 31)
    relay.start()
    relay.say("order", "large", 32)
    flowing = relay.read("event.order", at_least=2)
    dead = relay.read("dead.relay", at_least=9)
    reasons: dict[str, list[str]] = {}
    for message in sorted(dead, key=lambda m: marks(m)["position"]):
        reasons.setdefault((message.key() or b"").decode(), []).append(
            marks(message)["reason"]
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
            sorted(number(m) for m in flowing),
            [number(m) for m in relay.read("event.customer", at_least=1)],
            len(before),
            len(dead),
        ),
    )


def test_a_dead_letter_has_the_whole_row(relay: Relay):
    """
    Every column, so that the row can be written again.
    """
    relay.prepare()
    relay.start()
    relay.source.execute(
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
            marks(message)[name]
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
    A name that differs from another in dots and underscores only stops nothing.
    """
    relay.prepare()
    relay.start()
    for number_, kind in enumerate(("a.b", "a_b", "c", "a_b")):
        relay.say(kind, "1", number_)
    dead = relay.read("dead.relay", at_least=2)

    assert ([1, 3], [2]) == (
        sorted(number(m) for m in dead),
        [number(m) for m in relay.read("event.c", at_least=1)],
    )


def test_a_row_can_choose_its_partition(relay: Relay):
    """
    One that the topic does not have is a dead letter (A42).
    """
    relay.prepare('placements = ["part:partition"]')
    relay.source.execute("alter table towpath.outbox add part int")
    relay.start()
    insert = (
        "insert into towpath.outbox"
        " (id, aggregate_type, aggregate_id, type, payload, part)"
        " values (gen_random_uuid(), 'order', %s, 'Said', %s, %s)"
    )
    for part in (2, 0, 3):
        payload = json.dumps({"n": part})
        relay.source.execute(insert, (str(part), payload, part))
    events = relay.read("event.order", at_least=2)
    (dead,) = relay.read("dead.relay", at_least=1)

    assert ({(2, 2), (0, 0)}, 3, NO_SUCH_PARTITION) == (
        {(number(m), m.partition()) for m in events},
        number(dead),
        marks(dead)["reason"],
    )


def test_per_key_the_order_is_that_of_commit(relay: Relay):
    """
    Eight writers at once: positions and numbers rise together within each key (A55).
    """
    relay.prepare()
    relay.start()
    relay.source.execute("create table n (key int primary key, n int not null)")
    relay.source.execute("insert into n select g, 0 from generate_series(0, 19) g")
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
        told = (marks(message)["position"], number(message))
        by_key.setdefault(message.key(), []).append(told)

    assert (20, 800, []) == (
        len(by_key),
        sum(map(len, by_key.values())),
        [
            key
            for key, told in by_key.items()
            if told != sorted(told)
            or [n for _, n in told] != list(range(1, len(told) + 1))
        ],
    )


def message_of(aggregate_id: str, number_: int, **more: object) -> str:
    """Write the content of a message."""
    event = {
        "id": f"id-{number_}",
        "aggregate_type": "order",
        "aggregate_id": aggregate_id,
        "type": "Said",
        "payload": {"n": number_},
        "occurred_at": "2026-01-02T03:04:05.600000Z",
    }
    return json.dumps(event | more)


def test_messages_are_events_without_a_table(relay: Relay):
    """
    Inside a transaction and outside; rolled back, only the one outside is there (A81).

    After a kill none is sent again, though no publication sends the table (A83).
    """
    relay.prepare()
    relay.source.execute('alter publication "towpath_outbox" drop table towpath.outbox')
    process = relay.start()
    with relay.source.transaction():
        relay.source.execute(SPEAK, (True, message_of("1", 1)))
        relay.source.execute(SPEAK, (True, message_of("1", 2)))
    with relay.source.transaction(force_rollback=True):
        relay.source.execute(SPEAK, (True, message_of("1", 3)))
        relay.source.execute(SPEAK, (False, message_of("2", 4)))
    relay.source.execute(SPEAK, (True, message_of("1", 5)))
    first = relay.read("event.order", at_least=4)
    process.kill()
    process.wait()
    relay.source.execute(SPEAK, (False, message_of("2", 6)))
    relay.start()
    relay.source.execute(SPEAK, (True, message_of("1", 7)))
    messages = relay.read("event.order", at_least=6)
    by_key: dict[bytes, list[int]] = {}
    for message in messages:
        by_key.setdefault(message.key(), []).append(number(message))
    outside = {marks(m)["position"][17:] for m in messages if m.key() == b"2"}

    assert (4, {b"1": [1, 2, 5, 7], b"2": [4, 6]}, {"-"}, {1767323045600}) == (
        len(first),
        by_key,
        outside,
        {m.timestamp()[1] for m in messages if m.key() == b"2"},
    )


def test_a_message_that_is_no_event_is_a_dead_letter(relay: Relay):
    """
    Whole, with its reason; what it says of its aggregate parks it, rows included.
    """
    relay.prepare()
    relay.start()
    relay.source.execute(SPEAK, (True, "no json"))
    relay.source.execute(SPEAK, (False, message_of("9", 1, headers=[])))
    relay.say("order", "9", 2)
    relay.say("order", "8", 3)
    dead = sorted(
        relay.read("dead.relay", at_least=3), key=lambda m: marks(m)["position"]
    )

    assert (["message", "message", "record"], "no json", [3]) == (
        [marks(m)["form"] for m in dead],
        json.loads(dead[0].value())["content"],
        [number(m) for m in relay.read("event.order", at_least=1)],
    )


def test_a_release_lets_an_aggregate_go(relay: Relay):
    """
    At the next start its later events flow; what was set aside stays set aside.
    """
    relay.prepare()
    process = relay.start()
    relay.say("order", "1", 1, headers=[1])
    relay.say("order", "1", 2)
    dead = relay.read("dead.relay", at_least=2)
    process.kill()
    process.wait()
    last = max(marks(m)["position"] for m in dead)
    producer = Producer({"bootstrap.servers": relay.kafka})
    producer.produce(
        relay.topic("dead.relay"),
        None,
        b"1",
        headers=[("aggregate_type", b"order"), ("released", last.encode())],
    )
    producer.flush(10)
    kafka = Kafka(bootstrap_servers=relay.kafka)
    parked = read_parked(kafka, relay.prefix, 10)
    relay.start()
    relay.say("order", "1", 3)
    events = relay.read("event.order", at_least=1)

    assert ([3], 0, True, 3) == (
        [number(m) for m in events],
        len(parked),
        parked.holds("order", b"1", last.encode()),
        len(relay.read("dead.relay", at_least=3)),
    )


def test_parked_aggregates_are_read_from_every_partition(stack, unique: str):
    """
    Without a topic nothing is parked; with one, all that stands in it.
    """
    kafka = Kafka(bootstrap_servers=stack.kafka)
    nothing = read_parked(kafka, unique, 10)
    topic = f"{unique}.dead.relay"
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(10)
    producer = Producer({"bootstrap.servers": stack.kafka})
    keys = [b"%d" % n for n in range(50)]
    for key in keys:
        told = [("aggregate_type", b"order"), ("position", b"P.1"), ("parked", key)]
        producer.produce(topic, b"{}", key, headers=told)
    producer.flush(10)
    parked = read_parked(kafka, unique, 100)

    assert (0, 50, True) == (
        len(nothing),
        len(parked),
        all(parked.holds("order", key, b"P.2") for key in keys),
    )


def test_cloudevents_and_a_continued_trace_arrive(relay: Relay):
    """
    Binary mode: every attribute is there, in UTF-8, and the payload is untouched.
    """
    relay.prepare('cloudevents = "/shop"\ntraceparent = "continue"')
    relay.start()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    own = json.dumps({"schema": "shop.Said:1", "tracestate": "a=b"})
    relay.source.execute(INSERT, ("order", "1", '{"n":  1.0}', own, trace))
    (message,) = relay.read("event.order", at_least=1)
    told = marks(message)
    version, trace_id, parent, flags = told["traceparent"].split("-")

    assert (
        ("1.0", told["id"], "/shop", "Said", "1", "shop.Said:1", "application/json"),
        ("00", "0af7651916cd43dd8448eb211c80319c", True, "01", "a=b"),
        (b'{"n":  1.0}', True, told["occurred_at"]),
    ) == (
        tuple(
            told[name]
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
        (version, trace_id, parent != "b7ad6b7169203331", flags, told["tracestate"]),
        (message.value(), told.keys() >= ATTRIBUTES, told["ce_time"]),
    )
