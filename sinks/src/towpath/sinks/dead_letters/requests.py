"""
Sends requests about dead letters to a sink, and waits for the outcome.

A request is an entry of the dead-letter topic: a stopped sink handles it at its
next start. So only the sink writes to its target, and a replay passes the same
guard as any batch.
"""

import uuid
from collections.abc import Sequence
from typing import Final, Protocol

from towpath.schemas.clock import Clock, Deadline
from towpath.sinks.dead_letters.entries import (
    DeadLetterRequest,
    Entry,
    Reply,
    Resolution,
    Subject,
    Verb,
)
from towpath.sinks.dead_letters.parked import OpenDeadLetters

_LOOK_EVERY_S: Final = 0.2


class RequestTopic(Protocol):
    """The dead-letter topic, as a sender of requests sees it."""

    def request(self, requests: Sequence[DeadLetterRequest]) -> None:
        """Write requests durably."""

    def since(self) -> list[Entry]:
        """Return the entries since the topic was last read."""


def request_each(
    topic: RequestTopic,
    subjects: Sequence[Subject],
    verb: Verb,
    clock: Clock,
    timeout_s: float,
) -> dict[Subject, Resolution | Reply | None]:
    """
    Send one request per subject, and return the outcome of each.

    Returns:
        Per subject its resolution or the reply; ``None`` if the sink has not handled
        the request in time; the request then stays open.

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
) -> dict[str, Resolution | Reply | None]:
    """
    Send requests, and return the outcome of each by its id, as ``request_each`` does.

    Raises:
        UnavailableError: The broker does not answer.
    """
    topic.request(requests)
    open_letters = OpenDeadLetters(frozenset())
    deadline = Deadline(clock, timeout_s)
    while True:
        open_letters.read(topic.since())
        replies = {
            request.id: open_letters.replies.get(request.id) for request in requests
        }
        if None not in replies.values() or deadline.passed():
            return replies
        clock.wait(_LOOK_EVERY_S)
