"""Counts each author's posts from the event topic, each event exactly once."""

import os
import threading

from sqlalchemy import text
from sqlalchemy.orm import Session

from blog.database import sessions
from towpath.inbox import Consumer, Event, Inbox

COUNT = """
insert into author_counts (author, posts) values (:author, 1)
on conflict (author) do update set posts = author_counts.posts + 1
"""


def count(event: Event, session: Session) -> None:
    """Count a post, in the transaction that puts the event's id into the inbox."""
    session.execute(text(COUNT), {"author": event.payload["author"]})


consumer = Consumer(
    Inbox("author-counts"),
    {
        "bootstrap.servers": os.environ["KAFKA_SERVERS"],
        # A restarted process takes over the partitions of the one that was killed.
        "group.instance.id": "author-counts-1",
    },
    ["outbox.event.post"],
    begin=sessions().begin,
    handle=count,
)

if __name__ == "__main__":
    consumer.run(threading.Event())
