"""
Signals that request and control snapshots, for ``towpath snapshot`` and the console.

A key is written as its text, or as a JSON list when it has several columns: ``7``,
``[7, "a"]``. A filter is written as ``schema.table=filter``.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from towpath.deploy.snapshots import signals
from towpath.deploy.snapshots.signals import SignalAnswer, wait_answer
from towpath.schemas.clock import Clock
from towpath.schemas.failure import UsageError
from towpath.settings import Settings, Source

# The maximum number of keys in one signal.
MAX_KEYS: Final = 10_000
# A running relay answers within a second; a starting relay takes a few seconds.
ANSWERED_WITHIN_S: Final = 10.0
# The fields of the relay's answer: each lists the tables that the signal paused,
# resumed or stopped.
_RESULTS: Final = ("paused", "resumed", "stopped")
_COLLECTION: Final = re.compile(r'(?:"(?:[^"]|"")*"|[^"=])*')

RunningChange = Literal["pause", "resume", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """
    A request for a snapshot, with the user's arguments as written.

    Attributes:
        collections: Tables, aggregates or regular expressions; empty for all.
        target: The only sink that gets the rows; ``None`` for all sinks.
        where: Filters, each as ``schema.table=filter``.
        keys: The keys to read; empty for all rows.
        type: Incremental or blocking.
        surrogate_key: The unique columns to read by, instead of the primary key.
        max_rows_per_second: Limit on the reading speed.
        sweep: Whether sinks delete the rows that the tables lack.
        id: The signal's id; generated if omitted.
    """

    collections: Sequence[str] = ()
    target: str | None = None
    where: Sequence[str] = ()
    keys: Sequence[str] = ()
    type: str = "incremental"
    surrogate_key: Sequence[str] = ()
    max_rows_per_second: int | None = None
    sweep: bool = False
    id: str | None = None

    def fields(self) -> dict[str, Any]:
        """
        Return the signal's fields other than collections, target and speed.

        Raises:
            UsageError: Keys or filters are malformed.
        """
        listed = parsed_keys(self.keys)
        if listed is not None and len(self.collections) != 1:
            message = "keys belong to one table: name that table only"
            raise UsageError(message)
        return {
            "type": self.type,
            "keys": listed,
            "additional-conditions": conditions(self.where),
            "surrogate-key": list(self.surrogate_key) or None,
            "sweep": self.sweep or None,
        }


class AnsweredSignal(NamedTuple):
    """A signal about running snapshots, and the relay's answer."""

    id: str
    answer: SignalAnswer

    @property
    def lines(self) -> list[str]:
        """The tables that were paused, resumed or stopped, as lines of text."""
        return [
            f"{result}: {', '.join(self.answer.detail[result]) or 'nothing'}"
            for result in _RESULTS
            if result in self.answer.detail
        ]


def request_snapshot(settings: Settings, request: SnapshotRequest) -> str:
    """
    Check a request, and send its signal; return the snapshot's id.

    Raises:
        UsageError: Keys or filters are malformed, or there is no such sink.
        SourceUnreachableError: The source does not answer.
        SourceRefusedError: The source refuses the statement.
        SignalRefusedError: The signal table does not exist, or refuses the id.
    """
    _check_target(settings, request.target)
    return signals.request_snapshot(
        settings.database,
        request.collections or settings.collections,
        target=request.target,
        max_rows_per_second=request.max_rows_per_second,
        signal_id=request.id,
        more_fields=request.fields(),
    )


def signal_running(
    source: Source, change: RunningChange, names: Sequence[str], clock: Clock
) -> AnsweredSignal:
    """
    Send a signal about running snapshots, and wait for its answer.

    Args:
        source: The database, and the slot of its relay.
        change: Whether to pause, resume or stop the snapshots.
        names: A snapshot's id, or tables, or an id and then tables; empty for all.
        clock: Measures the wait for the answer.

    Raises:
        UsageError: There is no such snapshot.
        SourceUnreachableError: The source does not answer.
        SourceRefusedError: The source refuses a statement.
        SignalRefusedError: The signal table does not exist.
        RelaySilentError: No relay answers; the signal remains in its table.
    """
    snapshot_id, collections = None, list(names)
    if names and signals.progress(source, names[0]):
        snapshot_id, *collections = names
    elif names and "." not in names[0]:
        message = f"there is no snapshot {names[0]}; a table is named schema.table"
        raise UsageError(message)
    fields = {"data-collections": collections or None, "snapshot-id": snapshot_id}
    signal_id = signals.send(source, f"{change}-snapshot", fields)
    answer = wait_answer(source, signal_id, clock, ANSWERED_WITHIN_S)
    return AnsweredSignal(signal_id, answer)


def conditions(arguments: Iterable[str]) -> list[dict[str, str]] | None:
    """
    Read ``COLLECTION=FILTER`` arguments; None if there are none.

    Raises:
        UsageError: An argument has no equals sign, or one of its sides is empty.
    """
    found = []
    for argument in arguments:
        collection, sign, condition = _split(argument)
        if not (sign == "=" and collection.strip() and condition.strip()):
            message = f'--where {argument!r}: write "schema.table=filter"'
            raise UsageError(message)
        entry = {"data-collection": collection.strip(), "filter": condition.strip()}
        found.append(entry)
    return found or None


def _split(argument: str) -> tuple[str, str, str]:
    """Split an argument at the first equals sign that is not between quotes."""
    end = len(argument)
    if found := _COLLECTION.match(argument):
        end = found.end()
    return argument[:end], argument[end : end + 1], argument[end + 1 :]


def parsed_keys(texts: Iterable[str]) -> list[list[Any]] | None:
    """
    Read keys from strings; None if there are none.

    Raises:
        UsageError: A string is empty or is not a key, or there are too many keys.
    """
    found = [_key(text) for text in texts]
    if len(found) > MAX_KEYS:
        message = (
            f"{len(found):,} keys: one signal takes at most {MAX_KEYS:,}; send several"
            " signals"
        )
        raise UsageError(message)
    return found or None


def _key(line: str) -> list[Any]:
    text = line.strip()
    if not text:
        # Without a key the snapshot would read all rows.
        message = "a key is empty: name the row, or omit the keys to read all rows"
        raise UsageError(message)
    if not text.startswith("["):
        return [text]
    try:
        # Numbers are read as text, so that no digit is lost; NaN is read as null.
        key: list[Any] = json.loads(
            text, parse_float=str, parse_int=str, parse_constant=lambda _: None
        )
    except (ValueError, RecursionError) as error:
        message = f"the key {text[:80]} is not a JSON list: {error}"
        raise UsageError(message) from error
    if not key or not all(isinstance(value, str | bool) for value in key):
        message = (
            f"the key {text[:80]} must list one value or more, each a string, a number "
            "or a boolean"
        )
        raise UsageError(message)
    return key


def _check_target(settings: Settings, target: str | None) -> None:
    if target is not None and settings.sink_named(target) is None:
        names = ", ".join(sink.name for sink in settings.sink)
        known = (
            f"the configured sinks are: {names}" if names else "no sink is configured"
        )
        message = f"no sink is named {target!r}; {known}"
        raise UsageError(message)
