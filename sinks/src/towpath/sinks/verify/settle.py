"""
Settle suspects: look at both sides again until each is equal or proven wrong.

Each round reads, in this order: the source, then, once the sink has passed that, the
sink. What the sink held before is the look of the round before. Nobody is proven wrong
by the first round, because what stood in the sink then may not have been visible in the
source yet: before the source is read again, whoever wrote meanwhile is waited for.

A row that changes in every round proves nothing. While few are left, the source is
looked at often while the sink is waited for: if it ever had what the sink then came to,
the sink follows it.

How a sink is looked at again: by key where its reader can, else as a whole.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from towpath.schemas.clock import Clock, StallTimeout
from towpath.sinks.ports import SinkReader, StoredRow
from towpath.sinks.verify.compare import Suspect, SuspectState, is_same, pack, state_of
from towpath.sinks.verify.forms import Form
from towpath.sinks.verify.source import Source
from towpath.sinks.verify.suspects import Suspects
from towpath.sinks.verify.table import SourceTable


@runtime_checkable
class KeyReader(Protocol):
    """A reader that need not go through all keys to find a few."""

    def at(self, route: str, keys: Iterable[str]) -> Iterator[StoredRow]:
        """
        Read the rows of any number of keys, as ``rows`` gives them.

        Raises:
            UnavailableError: The target cannot be reached.
        """


@runtime_checkable
class SampleReader(Protocol):
    """A reader that need not go through all keys to pick a few by chance."""

    def sample(self, route: str, count: int) -> Iterator[StoredRow]:
        """
        Read about so many rows, tombstones among them, as ``rows`` gives them.

        Raises:
            UnavailableError: The target cannot be reached.
        """


def read_sink(reader: SinkReader, route: str, form: Form, suspects: Suspects) -> None:
    """
    See what a sink holds of the open suspects.

    Raises:
        UnavailableError: The target cannot be reached.
    """
    if not isinstance(reader, KeyReader):
        suspects.record_sink_rows(form.held(row) for row in reader.rows(route))
        return
    keys = (suspect.key for some in suspects.open() for suspect in some)
    suspects.record_sink_rows(form.held(row) for row in reader.at(route, keys))


# A row that never stood still for so long, while others came to rest or not.
RESTLESS_AFTER_S: Final = 30.0
_FEW: Final = 200

Contents = defaultdict[str, set[bytes | None]]


class CatchUp(Protocol):
    """What must have happened before a look counts."""

    def wait(self, poll: Callable[[], None] | None = None) -> None:
        """Return when the sink has what is committed now; look meanwhile, if asked."""

    def wait_until_seen(self) -> None:
        """Return when whoever writes now is done, so that all it did is seen."""

    def wait_for_answers(self, signals: Sequence[str]) -> tuple[str, ...]:
        """Return when the relay has read what it was asked; why some was not read."""

    def highest(self) -> str:
        """Return the highest position that the sink applied; empty: nobody knows."""


@dataclass(frozen=True, slots=True)
class RouteComparison:
    """Both sides of one route, and what is needed to compare them."""

    route: str
    table: SourceTable
    form: Form
    source: Source
    reader: SinkReader
    catch_up: CatchUp
    clock: Clock


def settle(comparison: RouteComparison, suspects: Suspects) -> None:
    """
    Settle suspects of which both sides were read once, the source last.

    Those that stay open never stood still.

    Raises:
        UnavailableError: A part does not answer, or the sink does not get on.
    """
    if not suspects.open_count:
        return
    comparison.catch_up.wait()
    read_sink(comparison.reader, comparison.route, comparison.form, suspects)
    _judge(comparison, suspects, {}, is_first=True)
    settle_further(comparison, suspects)


def settle_further(comparison: RouteComparison, suspects: Suspects) -> None:
    """
    Settle suspects that were looked at before.

    Raises:
        UnavailableError: A part does not answer, or the sink does not get on.
    """
    stall = StallTimeout(comparison.clock, RESTLESS_AFTER_S)
    while (left := suspects.open_count) and not stall.is_over(left):
        _round(comparison, suspects)


def _round(comparison: RouteComparison, suspects: Suspects) -> None:
    suspects.start_round()
    comparison.catch_up.wait_until_seen()
    for some in suspects.open():
        suspects.told(_contents(comparison, some))
    had: Contents = defaultdict(set)
    is_few = suspects.open_count <= _FEW
    few = [one for some in suspects.open() for one in some] if is_few else []

    def note() -> None:
        rows = _contents(comparison, few)
        for suspect in few:
            had[suspect.key].add(rows.get(suspect.key))

    comparison.catch_up.wait(note if few else None)
    read_sink(comparison.reader, comparison.route, comparison.form, suspects)
    _judge(comparison, suspects, had, is_first=False)


def _judge(
    comparison: RouteComparison,
    suspects: Suspects,
    had: dict[str, set[bytes | None]],
    *,
    is_first: bool,
) -> None:
    is_pruned = comparison.table.is_pruned
    for some in suspects.open():
        states = {
            suspect.key: state_of(suspect, is_pruned=is_pruned) for suspect in some
        }
        for suspect in some:
            if states[suspect.key] is SuspectState.MOVING and _followed(suspect, had):
                states[suspect.key] = SuspectState.EQUAL
        suspects.drop([k for k, found in states.items() if found is SuspectState.EQUAL])
        if not is_first:
            wrong = [k for k, found in states.items() if found is SuspectState.WRONG]
            suspects.mark_wrong(wrong)


def _followed(suspect: Suspect, had: dict[str, set[bytes | None]]) -> bool:
    """Tell whether the source had what the sink came to while it was waited for."""
    contents = had.get(suspect.key, ())
    return suspect.copies <= 1 and any(
        is_same(content, suspect.after) for content in contents
    )


def _contents(comparison: RouteComparison, some: list[Suspect]) -> dict[str, bytes]:
    """Read what the source has of suspects; a name that tells no key has no row."""
    keys = [key for one in some if (key := comparison.form.key(one.key)) is not None]
    rows = comparison.source.listed(comparison.table, keys) if keys else ()
    return {row.key: pack(row.texts) for row in comparison.form.source_rows(rows)}
