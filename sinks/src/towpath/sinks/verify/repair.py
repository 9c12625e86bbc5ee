"""
Have what is wrong read anew, and see whether it is equal then.

What differs is asked for by key, for this sink only; the relay reads those rows, and
tells of those that are gone. When it has answered and the sink has passed that, the
keys are compared once more. What is wrong even then is told with the reason: no further
asking would change it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from towpath.sinks.verify.compare import Suspect
from towpath.sinks.verify.keys import Key
from towpath.sinks.verify.settle import Bench, settle_further
from towpath.sinks.verify.suspects import Suspects

NOT_ASKED: Final = (
    "nothing reads these rows anew: an event log keeps what it has; of a document, "
    "declare its view in relay.outbox.view; of a table with relay.rows.key_columns, "
    "have all rows read: towpath sink refill SINK --route ROUTE; "
    "relay.snapshot.signal_topic may be empty"
)
NO_KEY: Final = (
    "the source's table can have no such key, so nothing can be read for it: take the "
    "row out of the sink by hand"
)
ABOVE: Final = (
    "the sink holds it at a position above all that it ever applied, so no row that is "
    "read anew replaces it: fill the sink from nothing by towpath sink drop --data and "
    "towpath sink add"
)
TWICE: Final = (
    "the sink holds it more than once, and a row that is read anew replaces every copy "
    "and takes none away: fill the sink from nothing by towpath sink drop --data and "
    "towpath sink add"
)
STILL_WRONG: Final = (
    "it was read anew and differs all the same: see the sink's log and its dead letters"
)


class SourceRepairs(Protocol):
    """Has rows of one sink's routes read anew."""

    def ask_source_keys(self, route: str, keys: Iterable[Key]) -> list[str] | None:
        """
        Have the rows of these keys read, and deletes told for those that are gone.

        Returns:
            The ids of the signals; ``None``: the keys cannot be asked for.

        Raises:
            UnavailableError: It is not known to be asked for.
        """


class Left(NamedTuple):
    """Keys that a repair did not make equal, and why not."""

    reason: str
    keys: int


class Repaired(NamedTuple):
    """How many keys are equal since they were asked for, and what is left."""

    equal: int
    left: tuple[Left, ...] = ()


NOTHING_ASKED: Final = Repaired(0)


def repair(bench: Bench, suspects: Suspects, repairs: SourceRepairs) -> Repaired:
    """
    Ask for what is wrong, and compare it again when it has come.

    Raises:
        UnavailableError: A part does not answer, or the sink does not get on.
    """
    wrong_before = suspects.wrong_count
    if not wrong_before:
        return NOTHING_ASKED
    signals = _ask(bench, suspects, repairs)
    if signals is None:
        return Repaired(0, (Left(NOT_ASKED, wrong_before),))
    refusals = bench.waits.wait_for_answers(signals)
    suspects.reopen()
    settle_further(bench, suspects)
    left = Counter(
        _reason(bench, one, refusals) for some in suspects.wrong() for one in some
    )
    equal = wrong_before - suspects.wrong_count - suspects.open_count
    return Repaired(equal, tuple(Left(*each) for each in sorted(left.items())))


def _ask(bench: Bench, suspects: Suspects, repairs: SourceRepairs) -> list[str] | None:
    """Ask for all that is wrong and can be a key of the source."""
    signals: list[str] = []
    for some in suspects.wrong():
        keys = _possible(bench, [one.key for one in some])
        asked = repairs.ask_source_keys(bench.route, keys) if keys else []
        if asked is None:
            return None
        signals += asked
    return signals


def _possible(bench: Bench, names: Sequence[str]) -> list[Key]:
    """Return the source's keys that names tell, if it can have them."""
    keys = [key for name in names if (key := bench.form.key(name)) is not None]
    return bench.source.possible(bench.table, keys)


def _reason(bench: Bench, suspect: Suspect, refusals: Sequence[str]) -> str:
    """Tell why a key is wrong that was asked for, if it was."""
    if not _possible(bench, [suspect.key]):
        return NO_KEY
    if suspect.copies > 1:
        return TWICE
    highest = bench.waits.highest()
    if highest and suspect.after and suspect.after.position > highest:
        return ABOVE
    return "; ".join(refusals) or STILL_WRONG
