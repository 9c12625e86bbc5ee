"""The blog's events, bound to the schemas in ``schemas``."""

from dataclasses import dataclass
from pathlib import Path

from towpath.outbox import Events, Outbox, configure

events = Events(Path(__file__).parents[1] / "schemas")


@events.event(aggregate_type="post", key="post_id")
@dataclass(frozen=True)
class PostPublished:
    """An author has published a post."""

    post_id: int
    author: str
    title: str


configure(Outbox(events))
