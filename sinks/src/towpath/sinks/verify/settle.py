"""
Settle suspects by reading both sides again until each suspect is equal or wrong.

Each round reads the source, waits until the sink has applied all earlier commits, and
reads the sink. The ``before`` row of a suspect is the sink's row of the previous round.
The first round marks no key wrong, because a row of the sink may not have been visible
in the source yet; each later round first waits for running transactions.

A row that changes in every round proves nothing. While few suspects are left, the
source is read often during the wait for the sink: if the source ever had the content
that the sink has now, the sink follows the source, and the suspect is equal.

The sink is read by key if its reader can read by key, otherwise as a whole.
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
    """A reader that can read a few keys without reading all rows."""

    def at(self, route: str, keys: Iterable[str]) -> Iterator[StoredRow]:
        """
        Yield the rows of any number of keys, as ``rows`` does.

        Raises:
            UnavailableError: The target cannot be reached.
        """


@runtime_checkable
class SampleReader(Protocol):
    """A reader that can return a few random rows."""

    def sample(self, route: str, count: int) -> Iterator[StoredRow]:
        """
        Yield about ``count`` random rows and tombstones, as ``rows`` does.

        Raises:
            UnavailableError: The target cannot be reached.
        """


def read_sink(reader: SinkReader, route: str, form: Form, suspects: Suspects) -> None:
    """
    Record the sink's rows of the open suspects.

    Raises:
        UnavailableError: The target cannot be reached.
    """
    if not isinstance(reader, KeyReader):
        suspects.record_sink_rows(form.sink_row(row) for row in reader.rows(route))
        return
    keys = (suspect.key for batch in suspects.open() for suspect in batch)
    suspects.record_sink_rows(form.sink_row(row) for row in reader.at(route, keys))


# If no suspect is settled within this time, the remaining ones are restless.
RESTLESS_AFTER_S: Final = 30.0
_FEW: Final = 200

Contents = defaultdict[str, set[bytes | None]]


class CatchUp(Protocol):
    """The waits that make a read valid."""

    def wait(self, poll: Callable[[], None] | None = None) -> None:
        """Wait until the sink has all earlier commits; call ``poll`` repeatedly."""

    def wait_until_seen(self) -> None:
        """Wait until running transactions have ended visibly, if they end soon."""

    def wait_for_answers(self, signals: Sequence[str]) -> tuple[str, ...]:
        """Wait until the relay has handled all signals; return why it refused any."""

    def highest(self) -> str:
        """Return the highest position that the sink applied; empty if unknown."""


@dataclass(frozen=True, slots=True)
class RouteComparison:
    """Both sides of one route, and the dependencies of comparing them."""

    route: str
    table: SourceTable
    form: Form
    source: Source
    reader: SinkReader
    catch_up: CatchUp
    clock: Clock


def settle(comparison: RouteComparison, suspects: Suspects) -> None:
    """
    Settle the suspects that the first read of both sides has found.

    Suspects that remain open changed in every round.

    Raises:
        UnavailableError: A system does not answer, or the sink makes no progress.
    """
    if not suspects.open_count:
        return
    comparison.catch_up.wait()
    read_sink(comparison.reader, comparison.route, comparison.form, suspects)
    _compare_suspects(comparison, suspects, {}, is_first=True)
    settle_further(comparison, suspects)


def settle_further(comparison: RouteComparison, suspects: Suspects) -> None:
    """
    Settle suspects that have been read before.

    Raises:
        UnavailableError: A system does not answer, or the sink makes no progress.
    """
    stall = StallTimeout(comparison.clock, RESTLESS_AFTER_S)
    while (left := suspects.open_count) and not stall.is_over(left):
        _round(comparison, suspects)


def _round(comparison: RouteComparison, suspects: Suspects) -> None:
    suspects.start_round()
    comparison.catch_up.wait_until_seen()
    for batch in suspects.open():
        suspects.record_source_rows(_contents(comparison, batch))
    had: Contents = defaultdict(set)
    is_few = suspects.open_count <= _FEW
    few = [one for batch in suspects.open() for one in batch] if is_few else []

    def read_source() -> None:
        rows = _contents(comparison, few)
        for suspect in few:
            had[suspect.key].add(rows.get(suspect.key))

    comparison.catch_up.wait(read_source if few else None)
    read_sink(comparison.reader, comparison.route, comparison.form, suspects)
    _compare_suspects(comparison, suspects, had, is_first=False)


def _compare_suspects(
    comparison: RouteComparison,
    suspects: Suspects,
    had: dict[str, set[bytes | None]],
    *,
    is_first: bool,
) -> None:
    is_pruned = comparison.table.is_pruned
    for batch in suspects.open():
        states = {
            suspect.key: state_of(suspect, is_pruned=is_pruned) for suspect in batch
        }
        for suspect in batch:
            if states[suspect.key] is SuspectState.MOVING and _followed(suspect, had):
                states[suspect.key] = SuspectState.EQUAL
        suspects.drop([k for k, found in states.items() if found is SuspectState.EQUAL])
        if not is_first:
            wrong = [k for k, found in states.items() if found is SuspectState.WRONG]
            suspects.mark_wrong(wrong)


def _followed(suspect: Suspect, had: dict[str, set[bytes | None]]) -> bool:
    """Return whether the source had the sink's content during the wait."""
    contents = had.get(suspect.key, ())
    return suspect.copies <= 1 and any(
        is_same(content, suspect.after) for content in contents
    )


def _contents(comparison: RouteComparison, batch: list[Suspect]) -> dict[str, bytes]:
    """Read the source's rows of suspects; a suspect without a source key has none."""
    keys = [key for one in batch if (key := comparison.form.key(one.key)) is not None]
    rows = comparison.source.listed_rows(comparison.table, keys) if keys else ()
    return {row.key: pack(row.texts) for row in comparison.form.source_rows(rows)}
