"""
Asks a sink to replay or to give up dead letters, and waits for what it says.

The order stands in the dead-letter topic: a sink that does not run takes it at its next
start. So nobody but the sink writes to its target, and a replay meets the same guard as
any batch.
"""

import uuid
from collections.abc import Sequence
from typing import Final, Protocol

from towpath.schemas.clock import Clock, Deadline
from towpath.sinks.dead_letters.entries import (
    DeadLetterReply,
    DeadLetterRequest,
    DeadLetterSubject,
    Entry,
    Resolution,
    Verb,
)
from towpath.sinks.dead_letters.parked import OpenDeadLetters

_LOOK_EVERY_S: Final = 0.2


class RequestTopic(Protocol):
    """The topic, as the one who asks sees it."""

    def request(self, requests: Sequence[DeadLetterRequest]) -> None:
        """Write orders; durable when this returns."""

    def since(self) -> list[Entry]:
        """Return what was written since the topic was last read."""


def request_each(
    topic: RequestTopic,
    subjects: Sequence[DeadLetterSubject],
    verb: Verb,
    clock: Clock,
    timeout_s: float,
) -> dict[DeadLetterSubject, Resolution | DeadLetterReply | None]:
    """
    Ask for all matters at once and return what became of each.

    Returns:
        Per matter its ending, or the answer why there is none; ``None`` if the sink
        has said nothing in time: the order stands.

    Raises:
        UnavailableError: The broker does not answer.
    """
    requests = [
        DeadLetterRequest(uuid.uuid4().hex, verb, subject) for subject in subjects
    ]
    replies = send_requests(topic, requests, clock, timeout_s)
    return {request.subject: replies[request.id] for request in requests}


def send_requests(
    topic: RequestTopic,
    requests: Sequence[DeadLetterRequest],
    clock: Clock,
    timeout_s: float,
) -> dict[str, Resolution | DeadLetterReply | None]:
    """
    Ask as orders say, and return what became of each, by its id; as ``ask`` does.

    Raises:
        UnavailableError: The broker does not answer.
    """
    topic.request(requests)
    book = OpenDeadLetters(frozenset())
    deadline = Deadline(clock, timeout_s)
    while True:
        book.read(topic.since())
        replies = {request.id: book.replies.get(request.id) for request in requests}
        if None not in replies.values() or deadline.passed():
            return replies
        clock.wait(_LOOK_EVERY_S)
