"""Counts the posts of each author, from the topic of events: each event once."""

import json
import os
import uuid

from confluent_kafka import Consumer, Message
from sqlalchemy import text
from sqlalchemy.orm import Session

from blog.database import sessions

SETTINGS = {
    "bootstrap.servers": os.environ["KAFKA_SERVERS"],
    "group.id": "author-counts",
    # A restarted consumer takes over the partitions of the one that was killed.
    "group.instance.id": "author-counts-1",
    "auto.offset.reset": "earliest",
    "enable.auto.offset.store": False,
}
INBOX = "insert into inbox (id) values (:id) on conflict do nothing"
COUNT = """
insert into author_counts (author, posts) values (:author, 1)
on conflict (author) do update set posts = author_counts.posts + 1
"""


def handle(session: Session, record: Message) -> None:
    """Count a post, unless its event is in the inbox: then it was counted before."""
    headers = dict(record.headers())
    event_id = uuid.UUID(headers["id"].decode())
    if session.execute(text(INBOX), {"id": event_id}).rowcount:
        session.execute(text(COUNT), {"author": json.loads(record.value())["author"]})


def main() -> None:
    """Consume until killed; an offset is stored behind the effect of its record."""
    consumer = Consumer(SETTINGS)
    consumer.subscribe(["outbox.event.post"])
    while True:
        record = consumer.poll(1.0)
        if record is None or record.error():
            continue
        with sessions().begin() as session:
            handle(session, record)
        consumer.store_offsets(record)


if __name__ == "__main__":
    main()
