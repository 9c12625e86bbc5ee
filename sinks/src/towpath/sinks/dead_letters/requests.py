"""
Dead letters as operators see them, and the requests that operators send to a sink.

A request is an entry of the dead-letter topic, and a stopped sink handles it at its
next start. Therefore only the sink writes to its target, and a replay passes the same
guard as any batch.
"""

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import orjson

from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.failure import UsageError
from towpath.sinks.dead_letters.entries import (
    BEHIND,
    DeadLetter,
    DeadLetterRequest,
    Entry,
    Reply,
    Resolution,
    Subject,
    Verb,
)
from towpath.sinks.dead_letters.parked import OpenDeadLetters
from towpath.sinks.key_text import text_of

_CHECK_EVERY_S: Final = 0.2


class RequestTopic(Protocol):
    """The dead-letter topic, as a sender of requests sees it."""

    def request(self, requests: Sequence[DeadLetterRequest]) -> None:
        """Write requests durably."""

    def since(self) -> list[Entry]:
        """Return the entries written since the topic was last read."""


def open_summaries(
    open_dead_letters: OpenDeadLetters, key: str | None = None
) -> list[dict[str, Any]]:
    """Return a summary per open subject, in the order of their first dead letters."""
    return [
        subject_summary(subject, open_dead_letters.of(subject))
        for subject in named_subjects(open_dead_letters, key)
    ]


def named_subjects(
    open_dead_letters: OpenDeadLetters, key: str | None
) -> list[Subject]:
    """
    Return the open subjects that a key's text names.

    Args:
        open_dead_letters: The open dead letters.
        key: The key as in the records, optionally preceded by its topic and a space; or
            only its values (``7``, ``7:de``); or ``<topic>/<partition>/<offset>`` of
            one dead letter; ``None`` for all.
    """
    if key is None:
        return list(open_dead_letters.dead_letters)
    return [
        subject for subject in open_dead_letters.dead_letters if key in _names(subject)
    ]


def subject_summary(
    subject: Subject, dead_letters: Sequence[DeadLetter]
) -> dict[str, Any]:
    """Return the summary of a subject's open dead letters."""
    cause = next((x for x in dead_letters if x.reason != BEHIND), dead_letters[0])
    return {
        "topic": subject.topic,
        "route": cause.route,
        "key": text_of_key(subject.key),
        "is_parked": subject.at is None,
        "letters": len(dead_letters),
        "reason": cause.reason,
        "first_position": dead_letters[0].position,
        "last_position": dead_letters[-1].position,
        "record": "/".join(map(str, cause.record.origin)),
    }


def dead_letter_documents(dead_letters: Iterable[DeadLetter]) -> list[dict[str, Any]]:
    """Return each dead letter with its record, as a document."""
    return [
        {
            "record": "/".join(map(str, dead_letter.record.origin)),
            "route": dead_letter.route,
            "reason": dead_letter.reason,
            "position": dead_letter.position,
            "key": text_of_key(dead_letter.record.key),
            "headers": {n: _text(v) for n, v in dead_letter.record.headers.items()},
            "value": None
            if dead_letter.record.value is None
            else _text(dead_letter.record.value),
        }
        for dead_letter in dead_letters
    ]


def text_of_key(key: bytes | None) -> str:
    """Return a record's key as text; empty if it has none."""
    return "" if key is None else _text(key)


def _names(subject: Subject) -> set[str]:
    text = text_of_key(subject.key)
    names = set() if subject.key is None else {text, f"{subject.topic} {text}"}
    if subject.at is not None:
        names.add("/".join(map(str, (subject.topic, *subject.at))))
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        return names
    if isinstance(values, dict):
        names.add(":".join(map(text_of, values.values())))
    return names


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def chosen_subjects(
    open_dead_letters: OpenDeadLetters, sink: str, keys: Sequence[str] | None
) -> list[Subject]:
    """
    Return the open subjects that keys name, each once.

    Args:
        open_dead_letters: The open dead letters.
        sink: The name of their sink.
        keys: The keys as ``named_subjects`` accepts them; ``None`` for all.

    Raises:
        UsageError: A key has no dead letters, or there are none.
    """
    found: dict[Subject, None] = {}
    for key in [None] if keys is None else keys:
        subjects = named_subjects(open_dead_letters, key)
        if not subjects:
            named = "the sink" if key is None else f"the key {key}"
            message = (
                f"{named} has no dead letters: towpath dead-letters list --sink {sink}"
            )
            raise UsageError(message)
        found |= dict.fromkeys(subjects)
    return list(found)


def request_outcomes(
    topic: RequestTopic,
    open_dead_letters: OpenDeadLetters,
    subjects: Sequence[Subject],
    verb: Verb,
    clock: Clock,
    timeout_s: float,
) -> list[dict[str, Any]]:
    """
    Send one request per subject, and return the outcome of each as a document.

    The ``state`` of an outcome is done, refused, or open if the sink has not answered
    in time.

    Raises:
        UnavailableError: The broker does not answer.
    """
    answers = request_each(topic, subjects, verb, clock, timeout_s)
    return [
        _outcome(subject, len(open_dead_letters.of(subject)), answers[subject])
        for subject in subjects
    ]


def _outcome(
    subject: Subject, dead_letters: int, answer: Resolution | Reply | None
) -> dict[str, Any]:
    if answer is None:
        state, outcome = "open", "the sink has not answered yet; the request stays open"
    elif isinstance(answer, Reply):
        state, outcome = "refused", f"remains a dead letter: {answer.text}"
    else:
        state, outcome = "done", answer.how
    return {
        "topic": subject.topic,
        "key": text_of_key(subject.key),
        "letters": dead_letters,
        "state": state,
        "outcome": outcome,
    }


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
        Per subject, its resolution or the reply; ``None`` if the sink has not handled
        the request in time: the request then stays open.

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
    Send requests, and return what ``request_each`` does, but by the requests' ids.

    Raises:
        UnavailableError: The broker does not answer.
    """
    topic.request(requests)
    open_dead_letters = OpenDeadLetters(frozenset())
    deadline = Deadline(clock, timeout_s)
    while True:
        open_dead_letters.read(topic.since())
        replies = {
            request.id: open_dead_letters.replies.get(request.id)
            for request in requests
        }
        if None not in replies.values() or deadline.passed():
            return replies
        clock.wait(_CHECK_EVERY_S)
