"""
Have what is wrong read anew, and see whether it is equal then.

What differs is asked for by key, for this sink only; the relay reads those rows, and
tells of those that are gone. When it has answered and the sink has passed that, the
keys are compared once more. What is wrong even then is told with the reason: no further
asking would change it.

Has single keys erased by the sink itself: an order in its dead-letter topic.

So nobody but the sink writes to its target, and no batch is under way meanwhile. An
order that is not answered in time is withdrawn: nothing is erased later, unseen.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple, Protocol

from towpath.schemas.clock import Clock
from towpath.settings import Settings, Sink
from towpath.sinks.dead_letters.entries import (
    DeadLetterReply,
    DeadLetterRequest,
    DeadLetterSubject,
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


# What is erased if that is asked for; nothing else ever is.
_ERASED: Final = frozenset({ABOVE, TWICE, NO_KEY})


class SourceRepairs(Protocol):
    """Has rows of one sink's routes read anew."""

    def request_source_keys(self, route: str, keys: Iterable[Key]) -> list[str] | None:
        """
        Have the rows of these keys read, and deletes told for those that are gone.

        Returns:
            The ids of the signals; ``None``: the keys cannot be asked for.

        Raises:
            UnavailableError: It is not known to be asked for.
        """


class Eraser(Protocol):
    """Has single keys taken out of the sink's target, by the sink itself."""

    def erase(self, route: str, keys: Sequence[str], *, is_read_again: bool) -> str:
        """
        Have keys erased; return why that was not done, or nothing.

        Rows of the source that are to be read again are asked for before that.

        Raises:
            UnavailableError: It is not known to be asked for.
        """


class UnrepairedKeys(NamedTuple):
    """Keys that a repair did not make equal, and why not."""

    reason: str
    keys: int


class Repaired(NamedTuple):
    """How many keys are equal since they were asked for, and what is left."""

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
    Ask for what is wrong, and compare it again when it has come.

    Args:
        bench: Both sides.
        suspects: What is wrong.
        repairs: Where to ask for rows.
        eraser: Erases what no row that is read anew replaces; then these are asked for
            once more. Without it they are left as they are.

    Raises:
        UnavailableError: A part does not answer, or the sink does not get on.
    """
    wrong_before = suspects.wrong_count
    if not wrong_before:
        return NOTHING_REPAIRED
    # Keys that did not stand still are compared again too, and may turn out wrong.
    differed = wrong_before + suspects.open_count
    refusals = _read_again(comparison, suspects, repairs)
    if refusals is None:
        return Repaired(0, (UnrepairedKeys(NOT_REQUESTED, wrong_before),))
    kept = ""
    if eraser is not None:
        # What the relay refuses to read would be missing once it is erased.
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
    """Have what is wrong read, and compare it; return why some was not read."""
    if not suspects.wrong_count:
        return ()
    signals = _ask(comparison, suspects, repairs)
    if signals is None:
        return None
    refusals = comparison.catch_up.wait_for_answers(signals)
    suspects.reopen()
    settle_further(comparison, suspects)
    return refusals


def _reasons(
    comparison: RouteComparison, suspects: Suspects, refusals: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Return of each key that is wrong all the same why it is."""
    for some in suspects.wrong():
        for one in some:
            yield one.key, _reason(comparison, one, refusals)


def _erase(comparison: RouteComparison, eraser: Eraser, suspects: Suspects) -> str:
    """Have erased what can be cured by nothing else; return why it was not."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for key, why in _reasons(comparison, suspects, ()):
        if why in _ERASED:
            found[why != NO_KEY].append(key)
    said = [
        eraser.erase(comparison.route, keys, is_read_again=can_be)
        for can_be, keys in found.items()
        if keys
    ]
    return "; ".join(filter(None, said))


def _ask(
    comparison: RouteComparison, suspects: Suspects, repairs: SourceRepairs
) -> list[str] | None:
    """Ask for all that is wrong and can be a key of the source."""
    signals: list[str] = []
    for some in suspects.wrong():
        keys = _possible(comparison, [one.key for one in some])
        # Without a key to ask for it tells all the same whether any can be.
        asked = repairs.request_source_keys(comparison.route, keys)
        if asked is None:
            return None
        signals += asked
    return signals


def _possible(comparison: RouteComparison, names: Sequence[str]) -> list[Key]:
    """Return the source's keys that names tell, if it can have them."""
    keys = [key for name in names if (key := comparison.form.key(name)) is not None]
    return comparison.source.possible(comparison.table, keys)


def _reason(
    comparison: RouteComparison, suspect: Suspect, refusals: Sequence[str]
) -> str:
    """Tell why a key is wrong that was asked for, if it was."""
    if not _possible(comparison, [suspect.key]):
        return NO_KEY
    if suspect.copies > 1:
        return TWICE
    highest = comparison.catch_up.highest()
    if highest and suspect.after and suspect.after.position > highest:
        return ABOVE
    return "; ".join(refusals) or STILL_WRONG


# A record of Kafka takes them, and a statement of the warehouse.
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
        Have keys erased; return why that was not done, or nothing.

        Args:
            route: Whose they are.
            keys: As the target has them.
            is_read_again: Whether the source's table can have them: then the sink asks
                for their rows.

        Raises:
            UnavailableError: The broker does not answer.
        """
        (topic,) = {one.topic for one in self._sink.route if one.name == route}
        subject = DeadLetterSubject(topic, None)
        orders = [
            DeadLetterRequest(
                uuid.uuid4().hex, Verb.ERASE, subject, route, tuple(some), is_read_again
            )
            for first in range(0, len(keys), KEYS_AT_ONCE)
            if (some := keys[first : first + KEYS_AT_ONCE])
        ]
        with closing(DeadLetterTopic(self._settings, self._sink.name)) as dead_letters:
            said = send_requests(dead_letters, orders, self._clock, _ANSWER_WITHIN_S)
            for order, answer in said.items():
                if answer is None:
                    dead_letters.reply(DeadLetterReply(order, _WITHDRAWN, subject))
        if None in said.values():
            return _WITHDRAWN
        refused = (
            one.text for one in said.values() if isinstance(one, DeadLetterReply)
        )
        return next(refused, "")
