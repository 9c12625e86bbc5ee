"""A consumer with an inbox, its database and its topic."""

import json
import threading
import uuid
from contextlib import contextmanager

import psycopg
from confluent_kafka import Consumer as Client
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.waiting import until
from towpath.inbox import Consumer, Event, Inbox, create_statements

EFFECTS = "create table effects (number serial, event_id text, key text, count int)"


@contextmanager
def run_consumer(consumer):
    """Run a consumer in a thread until the end of the block."""
    stop, failures = threading.Event(), []

    def run():
        try:
            consumer.run(stop)
        except BaseException as error:  # noqa: BLE001 - reported below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
    assert (False, []) == (thread.is_alive(), failures)


class InboxPlace:
    """One consumer's database and topic."""

    def __init__(self, dsn, kafka, name, decode=None):
        self.dsn, self.kafka, self.name = dsn, kafka, name
        self.topic = f"{name}.event.post"
        self.inbox = Inbox(name, decode=decode)
        self.admin = AdminClient({"bootstrap.servers": kafka})
        self.admin.create_topics([NewTopic(self.topic, 3, 1)])[self.topic].result()
        self.connection = psycopg.connect(dsn, autocommit=True)
        for statement in (*create_statements(), *create_statements(), EFFECTS):
            self.connection.execute(statement)
        self.refused = set()
        self.down = False
        self.begun = 0
        self.calls = []

    def send(self, key, *counts, event_id=None, partition=None, encode=None, **more):
        """Produce a key's events with headers, as JSON or by ``encode``; return ids."""
        ids = [event_id or str(uuid.uuid4()) for _ in counts]
        # A new producer sees partitions that were just added.
        producer = Producer({"bootstrap.servers": self.kafka})
        for id_, count in zip(ids, counts, strict=True):
            options = {} if partition is None else {"partition": partition}
            producer.produce(
                self.topic,
                (encode or json.dumps)({"count": count}),
                key,
                headers=[("id", id_), ("type", "PostViewed"), *more.items()],
                **options,
            )
        producer.flush()
        return ids

    @contextmanager
    def begin(self):
        """Begin a transaction, unless the database is down."""
        self.begun += 1
        if self.down:
            message = "the database is down"
            raise psycopg.OperationalError(message)
        with psycopg.connect(self.dsn) as connection:
            yield connection

    def handle(self, event, session):
        """Record the effect; then fail if the count is to be refused."""
        count = event.payload["count"]
        self.calls.append(count)
        session.execute(
            "insert into effects (event_id, key, count) values (%s, %s, %s)",
            [event.id, event.key, count],
        )
        if count in self.refused:
            message = f"count {count} is refused"
            raise ValueError(message)

    def consumer(self, *, settings=(), handle=None, **options):
        """Make a consumer, with further settings of its client."""
        given = {"bootstrap.servers": self.kafka, "session.timeout.ms": 6000}
        return Consumer(
            *(self.inbox, given | dict(settings), [self.topic]),
            begin=self.begin,
            handle=handle or self.handle,
            **options,
        )

    def running(self, **options):
        """Run a consumer in a thread."""
        return run_consumer(self.consumer(**options))

    def counts(self, key=None):
        """Return the counts of a key's effects, in order."""
        rows = self.connection.execute(
            "select count from effects where key = %s or %s::text is null"
            " order by number",
            [key, key],
        )
        return [row[0] for row in rows]

    def wait_counts(self, *counts, key=None):
        """Wait until a key has these effects."""
        until(lambda: self.counts(key) == [*counts], f"{counts} are applied")

    def parked(self):
        """Return count and reason of each parked event."""
        with self.begin() as session:
            found = self.inbox.parked(session)
        return [(one.event.payload["count"], one.reason) for one in found]

    def committed(self):
        """Return the sum of the group's committed offsets."""
        client = Client({"bootstrap.servers": self.kafka, "group.id": self.name})
        partitions = [TopicPartition(self.topic, number) for number in range(3)]
        found = client.committed(partitions, timeout=10)
        client.close()
        return sum(max(0, one.offset) for one in found)

    def rewind(self):
        """Reset the group's offsets to the start of the topic."""
        partitions = [TopicPartition(self.topic, number, 0) for number in range(3)]
        group = ConsumerGroupTopicPartitions(self.name, partitions)
        self.admin.alter_consumer_group_offsets([group])[self.name].result()

    def close(self):
        """Close the connection."""
        self.connection.close()


def event(**changes):
    """Make an event."""
    fields = {
        "id": "1",
        "type": "PostViewed",
        "aggregate_type": "post",
        "key": "a",
        "value": b'{"count": 1}',
        "headers": {},
        "topic": "t",
        "partition": 0,
        "offset": 0,
    }
    return Event(**fields | changes)
