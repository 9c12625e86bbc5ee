"""
Repair differences by refetching wrong rows and erasing single keys.

Wrong keys are requested for this sink only; the relay reads their rows, and publishes
deletes for missing ones. Once the relay has answered and the sink has applied the
records, the keys are compared again. Keys that are still wrong are reported with the
reason: another request would change nothing.

The sink itself erases keys, on a request in its dead-letter topic: only the sink writes
to its target, and it erases between batches. A request that gets no reply in time is
withdrawn, so that no key is erased later, unnoticed.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple, Protocol

from towpath.schemas.clock import Clock
from towpath.settings import Settings, Sink
from towpath.sinks.dead_letters.entries import (
    DeadLetterRequest,
    Reply,
    Subject,
    Verb,
)
from towpath.sinks.dead_letters.requests import send_requests
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic
from towpath.sinks.verify.canonical import Key
from towpath.sinks.verify.compare import Suspect
from towpath.sinks.verify.settle import RouteComparison, settle_further
from towpath.sinks.verify.suspects import Suspects

NOT_REQUESTED: Final = (
    "rows of this route cannot be refetched by key: events never can; documents need "
    "their view in relay.outbox.view; a table with relay.rows.key_columns needs a full "
    "read by towpath sink refill SINK --route ROUTE; otherwise "
    "relay.snapshot.signal_topic may be empty"
)
NO_KEY: Final = (
    "the source's table cannot contain the key, so its row cannot be refetched: erase "
    "it with towpath verify SINK --repair --erase"
)
NOT_ERASED: Final = "the key could not be erased"
ABOVE: Final = (
    "the sink has the row at a position above every position that it has applied, so a "
    "refetched row does not replace it: erase and refetch its key with towpath verify "
    "SINK --repair --erase"
)
TWICE: Final = (
    "the sink has the row more than once, and a refetched row replaces every copy "
    "without removing any: erase and refetch its key with towpath verify SINK --repair "
    "--erase"
)
STILL_WRONG: Final = (
    "the row was refetched and still differs: see the sink's log and its dead letters"
)


# The reasons that allow erasing: keys with any other reason are never erased.
_ERASABLE: Final = frozenset({ABOVE, TWICE, NO_KEY})


class SourceRepairs(Protocol):
    """Requests rows of one sink's routes from the relay."""

    def request_source_keys(self, route: str, keys: Iterable[Key]) -> list[str] | None:
        """
        Request the rows of these keys, and deletes for missing ones.

        Returns:
            The ids of the signals; ``None`` if the keys cannot be requested.

        Raises:
            UnavailableError: The request may not have been sent.
        """


class Eraser(Protocol):
    """Erases single keys of the target, through the sink itself."""

    def erase(self, route: str, keys: Sequence[str], *, is_read_again: bool) -> str:
        """
        Erase keys; return why that failed, or an empty string.

        With ``is_read_again`` the sink requests the rows of the keys before it erases
        them.

        Raises:
            UnavailableError: The request may not have been sent.
        """


class UnrepairedKeys(NamedTuple):
    """The number of keys that still differ after a repair, and why."""

    reason: str
    keys: int


class Repaired(NamedTuple):
    """The number of repaired keys, and the keys that still differ."""

    equal: int
    left: tuple[UnrepairedKeys, ...] = ()


NOTHING_REPAIRED: Final = Repaired(0)


def repair(
    comparison: RouteComparison,
    suspects: Suspects,
    repairs: SourceRepairs,
    eraser: Eraser | None = None,
) -> Repaired:
    """
    Refetch wrong rows, and compare them again once the sink has applied them.

    Args:
        comparison: Both sides.
        suspects: The wrong keys.
        repairs: Requests rows.
        eraser: Erases keys that a refetch cannot correct, which are then requested
            again; ``None`` leaves them.

    Raises:
        UnavailableError: A system does not answer, or the sink makes no progress.
    """
    wrong_before = suspects.wrong_count
    if not wrong_before:
        return NOTHING_REPAIRED
    # Restless keys are compared again too, and may turn out wrong.
    differed = wrong_before + suspects.open_count
    refusals = _refetch(comparison, suspects, repairs)
    if refusals is None:
        return Repaired(0, (UnrepairedKeys(NOT_REQUESTED, wrong_before),))
    failure = ""
    if eraser is not None:
        # A row that the relay refuses to read would be missing once it is erased.
        failure = "; ".join(refusals) or _erase(comparison, eraser, suspects)
        refusals = _refetch(comparison, suspects, repairs) or ()
    reasons = (why for _, why in _reasons(comparison, suspects, refusals))
    left = Counter(
        f"{NOT_ERASED}: {failure}" if failure and why in _ERASABLE else why
        for why in reasons
    )
    equal = differed - suspects.wrong_count - suspects.open_count
    return Repaired(
        equal, tuple(UnrepairedKeys(*each) for each in sorted(left.items()))
    )


def _refetch(
    comparison: RouteComparison, suspects: Suspects, repairs: SourceRepairs
) -> tuple[str, ...] | None:
    """Refetch and compare the wrong rows; return why some were not read."""
    if not suspects.wrong_count:
        return ()
    signals = _request(comparison, suspects, repairs)
    if signals is None:
        return None
    refusals = comparison.catch_up.wait_for_answers(signals)
    suspects.reopen()
    settle_further(comparison, suspects)
    return refusals


def _reasons(
    comparison: RouteComparison, suspects: Suspects, refusals: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield each key that is still wrong, with the reason."""
    for batch in suspects.wrong():
        for suspect in batch:
            yield suspect.key, _reason(comparison, suspect, refusals)


def _erase(comparison: RouteComparison, eraser: Eraser, suspects: Suspects) -> str:
    """Erase keys that a refetch cannot correct; return why that failed."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for key, why in _reasons(comparison, suspects, ()):
        if why in _ERASABLE:
            found[why != NO_KEY].append(key)
    failures = [
        eraser.erase(comparison.route, keys, is_read_again=is_possible)
        for is_possible, keys in found.items()
        if keys
    ]
    return "; ".join(filter(None, failures))


def _request(
    comparison: RouteComparison, suspects: Suspects, repairs: SourceRepairs
) -> list[str] | None:
    """Request all wrong rows whose key the source can contain."""
    signals: list[str] = []
    for batch in suspects.wrong():
        keys = _possible_keys(comparison, [suspect.key for suspect in batch])
        # Called even without keys: the result says whether keys can be requested.
        requested = repairs.request_source_keys(comparison.route, keys)
        if requested is None:
            return None
        signals += requested
    return signals


def _possible_keys(comparison: RouteComparison, names: Sequence[str]) -> list[Key]:
    """Return the source keys of these names that the table can contain."""
    keys = [key for name in names if (key := comparison.form.key(name)) is not None]
    return comparison.source.possible_keys(comparison.table, keys)


def _reason(
    comparison: RouteComparison, suspect: Suspect, refusals: Sequence[str]
) -> str:
    """Return why a key is still wrong after its refetch."""
    if not _possible_keys(comparison, [suspect.key]):
        return NO_KEY
    if suspect.copies > 1:
        return TWICE
    highest = comparison.catch_up.highest()
    if highest and suspect.after and suspect.after.position > highest:
        return ABOVE
    return "; ".join(refusals) or STILL_WRONG


# This many keys fit into a Kafka record, and into a statement of the warehouse.
KEYS_AT_ONCE: Final = 100
# A warehouse may be in the middle of a batch.
_ANSWER_WITHIN_S: Final = 120.0

_WITHDRAWN: Final = (
    "the sink did not answer, so the request was withdrawn: start the sink"
)


class RequestedEraser:
    """Erases keys of one sink through requests in its dead-letter topic."""

    def __init__(self, settings: Settings, sink: Sink, clock: Clock) -> None:
        self._settings = settings
        self._sink = sink
        self._clock = clock

    def erase(self, route: str, keys: Sequence[str], *, is_read_again: bool) -> str:
        """
        Erase keys; return why that failed, or an empty string.

        Args:
            route: The route of the keys.
            keys: The keys as the target stores them.
            is_read_again: Whether the sink requests their rows first; the source's
                table must be able to contain the keys.

        Raises:
            UnavailableError: The broker does not answer.
        """
        (topic,) = {one.topic for one in self._sink.route if one.name == route}
        subject = Subject(topic, None)
        requests = [
            DeadLetterRequest(
                uuid.uuid4().hex,
                Verb.ERASE,
                subject,
                route,
                tuple(keys[first : first + KEYS_AT_ONCE]),
                is_read_again,
            )
            for first in range(0, len(keys), KEYS_AT_ONCE)
        ]
        with closing(DeadLetterTopic(self._settings, self._sink.name)) as dead_letters:
            replies = send_requests(
                dead_letters, requests, self._clock, _ANSWER_WITHIN_S
            )
            for request_id, reply in replies.items():
                if reply is None:
                    dead_letters.reply(Reply(request_id, _WITHDRAWN, subject))
        if None in replies.values():
            return _WITHDRAWN
        refused = (one.text for one in replies.values() if isinstance(one, Reply))
        return next(refused, "")
