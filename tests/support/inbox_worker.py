"""A consumer process that records each effect in the database until stopped."""

import signal
import sys
import threading
from contextlib import contextmanager

import psycopg

from towpath.inbox import Consumer, Inbox

EFFECTS = """
create table effects (
    number bigint generated always as identity,
    event_id text not null,
    key text not null,
    count int not null,
    worker text not null
)
"""


def main(dsn, kafka, topic, group, worker):
    """Consume until SIGTERM; a worker whose name ends in s is a static member."""
    connection = psycopg.connect(dsn, autocommit=True)

    @contextmanager
    def begin():
        with connection.transaction():
            yield connection

    def handle(event, session):
        session.execute(
            "insert into effects (event_id, key, count, worker)"
            " values (%s, %s, %s, %s)",
            [event.id, event.key, event.payload["count"], worker],
        )

    settings = {
        "bootstrap.servers": kafka,
        "session.timeout.ms": 6000,
        "auto.commit.interval.ms": 300,
    }
    if worker.endswith("s"):
        settings["group.instance.id"] = worker
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    consumer = Consumer(Inbox(group), settings, [topic], begin=begin, handle=handle)
    consumer.run(stop)


if __name__ == "__main__":
    main(*sys.argv[1:])
