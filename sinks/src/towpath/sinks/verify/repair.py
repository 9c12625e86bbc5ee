"""
Repairing differences: refetch wrong rows, or let the sink erase single keys.

Wrong keys are requested for this sink only; the relay reads their rows, and publishes
deletes for missing ones. When it has answered and the sink has passed that, the keys
are compared once more. Keys that are wrong even then are reported with the reason:
another request would change nothing.

Keys are erased by the sink itself, by an order in its dead-letter topic: only the sink
writes to its target, and no batch is running meanwhile. An order that is not answered
in time is withdrawn: no key is erased later, unnoticed.
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
from towpath.sinks.verify.compare import Suspect
from towpath.sinks.verify.forms import Key
from towpath.sinks.verify.settle import RouteComparison, settle_further
from towpath.sinks.verify.suspects import Suspects

NOT_REQUESTED: Final = (
    "nothing reads these rows anew: an event log keeps what it has; of a document, "
    "declare its view in relay.outbox.view; of a table with relay.rows.key_columns, "
    "have all rows read: towpath sink refill SINK --route ROUTE; "
    "relay.snapshot.signal_topic may be empty"
)
NO_KEY: Final = (
    "the source's table can have no such key, so nothing can be read for it: have it "
    "erased by towpath verify SINK --repair --erase"
)
NOT_ERASED: Final = "it was to be erased, and is not"
ABOVE: Final = (
    "the sink holds it at a position above all that it ever applied, so no row that is "
    "read anew replaces it: have just its key erased and read anew by towpath verify "
    "SINK --repair --erase"
)
TWICE: Final = (
    "the sink holds it more than once, and a row that is read anew replaces every copy "
    "and takes none away: have just its key erased and read anew by towpath verify "
    "SINK --repair --erase"
)
STILL_WRONG: Final = (
    "it was read anew and differs all the same: see the sink's log and its dead letters"
)


# The reasons that allow erasing; no other key is ever erased.
_ERASED: Final = frozenset({ABOVE, TWICE, NO_KEY})


class SourceRepairs(Protocol):
    """Requests rows of one sink's routes from the relay."""

    def request_source_keys(self, route: str, keys: Iterable[Key]) -> list[str] | None:
        """
        Request the rows of these keys, and deletes of missing ones.

        Returns:
            The ids of the signals; ``None`` if the keys cannot be requested.

        Raises:
            UnavailableError: The request may not have been sent.
        """


class Eraser(Protocol):
    """Erases single keys of the target, through the sink itself."""

    def erase(self, route: str, keys: Sequence[str], *, is_read_again: bool) -> str:
        """
        Have keys erased; return why it failed, or nothing.

        Rows of the source that are to be read again are requested before that.

        Raises:
            UnavailableError: The order may not have been sent.
        """


class UnrepairedKeys(NamedTuple):
    """The number of keys that a repair did not make equal, and why."""

    reason: str
    keys: int


class Repaired(NamedTuple):
    """The number of keys equal since their refetch, and the keys left."""

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
    Request wrong rows, and compare them again when they have come.

    Args:
        comparison: Both sides.
        suspects: The wrong keys.
        repairs: Requests rows.
        eraser: Erases keys that no row replaces, which are then requested again;
            ``None`` leaves them.

    Raises:
        UnavailableError: A part does not answer, or the sink makes no progress.
    """
    wrong_before = suspects.wrong_count
    if not wrong_before:
        return NOTHING_REPAIRED
    # Restless keys are compared again too, and may turn out wrong.
    differed = wrong_before + suspects.open_count
    refusals = _read_again(comparison, suspects, repairs)
    if refusals is None:
        return Repaired(0, (UnrepairedKeys(NOT_REQUESTED, wrong_before),))
    kept = ""
    if eraser is not None:
        # A row that the relay refuses to read would be missing once it is erased.
        kept = "; ".join(refusals) or _erase(comparison, eraser, suspects)
        refusals = _read_again(comparison, suspects, repairs) or ()
    reasons = (why for _, why in _reasons(comparison, suspects, refusals))
    left = Counter(
        f"{NOT_ERASED}: {kept}" if kept and why in _ERASED else why for why in reasons
    )
    equal = differed - suspects.wrong_count - suspects.open_count
    return Repaired(
        equal, tuple(UnrepairedKeys(*each) for each in sorted(left.items()))
    )


def _read_again(
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
    """Yield the reason of each key that is still wrong."""
    for some in suspects.wrong():
        for one in some:
            yield one.key, _reason(comparison, one, refusals)


def _erase(comparison: RouteComparison, eraser: Eraser, suspects: Suspects) -> str:
    """Erase keys that nothing else repairs; return why it failed."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for key, why in _reasons(comparison, suspects, ()):
        if why in _ERASED:
            found[why != NO_KEY].append(key)
    failures = [
        eraser.erase(comparison.route, keys, is_read_again=can_be)
        for can_be, keys in found.items()
        if keys
    ]
    return "; ".join(filter(None, failures))


def _request(
    comparison: RouteComparison, suspects: Suspects, repairs: SourceRepairs
) -> list[str] | None:
    """Request all wrong rows whose key the source can have."""
    signals: list[str] = []
    for some in suspects.wrong():
        keys = _possible(comparison, [one.key for one in some])
        # Even without a key it returns whether keys can be requested.
        asked = repairs.request_source_keys(comparison.route, keys)
        if asked is None:
            return None
        signals += asked
    return signals


def _possible(comparison: RouteComparison, names: Sequence[str]) -> list[Key]:
    """Return the source's keys of these names, as far as it can have them."""
    keys = [key for name in names if (key := comparison.form.key(name)) is not None]
    return comparison.source.possible(comparison.table, keys)


def _reason(
    comparison: RouteComparison, suspect: Suspect, refusals: Sequence[str]
) -> str:
    """Return why a key is still wrong after its refetch."""
    if not _possible(comparison, [suspect.key]):
        return NO_KEY
    if suspect.copies > 1:
        return TWICE
    highest = comparison.catch_up.highest()
    if highest and suspect.after and suspect.after.position > highest:
        return ABOVE
    return "; ".join(refusals) or STILL_WRONG


# This many fit a Kafka record, and a statement of the warehouse.
KEYS_AT_ONCE: Final = 100
# A warehouse may be in the middle of a batch.
_ANSWER_WITHIN_S: Final = 120.0

_WITHDRAWN: Final = (
    "the sink did not answer, and the order was withdrawn: start the sink"
)


class OrderedEraser:
    """Erases keys of one sink."""

    def __init__(self, settings: Settings, sink: Sink, clock: Clock) -> None:
        self._settings = settings
        self._sink = sink
        self._clock = clock

    def erase(self, route: str, keys: Sequence[str], *, is_read_again: bool) -> str:
        """
        Have keys erased; return why it failed, or nothing.

        Args:
            route: Their route.
            keys: As the target has them.
            is_read_again: Whether the source's table can have them: then the sink
                requests their rows.

        Raises:
            UnavailableError: The broker does not answer.
        """
        (topic,) = {one.topic for one in self._sink.route if one.name == route}
        subject = Subject(topic, None)
        orders = [
            DeadLetterRequest(
                uuid.uuid4().hex, Verb.ERASE, subject, route, tuple(some), is_read_again
            )
            for first in range(0, len(keys), KEYS_AT_ONCE)
            if (some := keys[first : first + KEYS_AT_ONCE])
        ]
        with closing(DeadLetterTopic(self._settings, self._sink.name)) as dead_letters:
            replies = send_requests(dead_letters, orders, self._clock, _ANSWER_WITHIN_S)
            for order, answer in replies.items():
                if answer is None:
                    dead_letters.reply(Reply(order, _WITHDRAWN, subject))
        if None in replies.values():
            return _WITHDRAWN
        refused = (one.text for one in replies.values() if isinstance(one, Reply))
        return next(refused, "")
