"""
``towpath snapshot start | list | show | pause | resume | stop``.

A key is written as its text, or as a JSON list when it has several columns:
``--key 7``, ``--key '[7, "a"]'``; a file of keys has one on each line.
"""

import json as json_text
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import App, Parameter
from rich.console import Console

from towpath.cli.options import (
    INTERRUPTED,
    ConfigOption,
    Flag,
    JsonOption,
    read_settings,
)
from towpath.deploy.snapshots import signals
from towpath.deploy.snapshots.signals import (
    INCOMPLETE,
    SignalAnswer,
    TableProgress,
    read_answer,
    wait_answer,
    watch,
)
from towpath.deploy.snapshots.view import open_bars, snapshot_table
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import Settings, Source

# The most keys that one signal may list.
MAX_KEYS: Final = 10_000
_COLLECTION: Final = re.compile(r'(?:"(?:[^"]|"")*"|[^"=])*')

_Words = Annotated[tuple[str, ...], Parameter(negative="")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SnapshotOptions:
    """
    The options of ``start`` that go into the signal.

    Attributes:
        target: The one sink that gets the rows; left out, all sinks.
        where: "schema.table=filter": only these rows; a whole SELECT with --type
            blocking. May be given once for each table.
        key: Only the row with this key: its text, or a JSON list of its columns. May be
            given several times.
        keys: A file of keys, one on a line; - is standard input.
        type: Blocking: all tables in one view of the database, while the stream waits.
        surrogate_key: Read in the order of this unique column instead of the key's.
        max_rows_per_second: Bound of the reading speed.
        sweep: At the end, have sinks delete the rows that the tables do not have.
        id: The signal's id; left out, one is made.
    """

    target: str | None = None
    where: _Words = ()
    key: _Words = ()
    keys: Path | None = None
    type: Literal["incremental", "blocking"] = "incremental"
    surrogate_key: _Words = ()
    max_rows_per_second: int | None = None
    sweep: Annotated[bool, Parameter(negative="")] = False
    id: str | None = None

    def fields(self, collections: Sequence[str]) -> dict[str, Any]:
        """
        Return the signal's fields besides collections, target and speed.

        Raises:
            UsageError: Keys or filters are malformed.
        """
        listed = keys(self.key, self.keys)
        if listed is not None and len(collections) != 1:
            message = "keys belong to one table: name that table only"
            raise UsageError(message)
        return {
            "type": self.type,
            "keys": listed,
            "additional-conditions": conditions(self.where),
            "surrogate-key": list(self.surrogate_key) or None,
            "sweep": self.sweep or None,
        }


def conditions(words: Iterable[str]) -> list[dict[str, str]] | None:
    """
    Read ``COLLECTION=FILTER`` arguments; None if there are none.

    Raises:
        UsageError: An argument has no equals sign, or nothing on one side of it.
    """
    found = []
    for word in words:
        collection, sign, condition = _cut(word)
        if not (sign and collection.strip() and condition.strip()):
            message = f'--where {word!r}: write "schema.table=filter"'
            raise UsageError(message)
        entry = {"data-collection": collection.strip(), "filter": condition.strip()}
        found.append(entry)
    return found or None


def _cut(word: str) -> tuple[str, str, str]:
    """Cut at the first equals sign that is not between quotes."""
    end = len(word)
    if found := _COLLECTION.match(word):
        end = found.end()
    return word[:end], word[end : end + 1], word[end + 1 :]


def keys(words: Sequence[str], file: Path | None) -> list[list[Any]] | None:
    """
    Read keys from arguments and a file (``-``: standard input); None if there are none.

    Raises:
        UsageError: The file cannot be read, a line is not a key, or there are too many.
    """
    lines = [*words, *_lines(file)]
    found = [_key(line) for line in lines if line.strip()]
    if len(found) > MAX_KEYS:
        message = f"{len(found):,} keys: one signal takes {MAX_KEYS:,}; send several"
        raise UsageError(message)
    if file is not None and not found:
        message = f"{file} has no keys"
        raise UsageError(message)
    return found or None


def _lines(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except OSError as error:
        message = f"{file}: {error.strerror}"
        raise UsageError(message) from error
    except UnicodeDecodeError as error:
        message = f"{file} is not UTF-8 text"
        raise UsageError(message) from error
    return text.splitlines()


def _key(line: str) -> list[Any]:
    text = line.strip()
    if not text.startswith("["):
        return [text]
    try:
        # Numbers are read as text, so that no digit is lost.
        key = json_text.loads(text, parse_float=str, parse_int=str)
    except ValueError as error:
        message = f"the key {text[:80]} is not a JSON list: {error}"
        raise UsageError(message) from error
    if not isinstance(key, list) or not key:
        message = f"the key {text[:80]} is not a list of values"
        raise UsageError(message)
    return key


app = App(name="snapshot", help="Fill sinks from existing rows.")

# A running relay answers within a second; one that is starting takes a few.
_ANSWERED_WITHIN_S: Final = 10.0


@app.command
def start(
    *collections: str,
    options: SnapshotOptions | None = None,
    wait: Annotated[bool, Flag] = False,
    answer_within: float = _ANSWERED_WITHIN_S,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Request a snapshot of tables from the relay; print the signal's id.

    Exit 1 if it is rejected, fails or is incomplete; 3 if no relay answers: the signal
    waits for one.

    Args:
        collections: Tables as schema.table, aggregates as outbox.TYPE, or expressions
            on such names; left out, all tables and views that are configured.
        options: Further fields of the signal.
        wait: Show its progress until it has ended.
        answer_within: How many seconds to wait for the relay's answer; 0: not at all.
        json: Print one JSON document: id, status and detail.
        config: Configuration file.
    """
    options = options or SnapshotOptions()
    settings = read_settings(config)
    _check_target(settings, options.target)
    source = settings.database
    chosen = signals.request_snapshot(
        source,
        collections or settings.collections,
        target=options.target,
        max_rows_per_second=options.max_rows_per_second,
        signal_id=options.id,
        more_fields=options.fields(collections),
    )
    if not json:
        print(chosen, flush=True)
    answer = SignalAnswer(None, {})
    with _interruptible(chosen):
        if answer_within > 0:
            answer = wait_answer(source, chosen, SystemClock(), answer_within)
        if wait and answer.is_good:
            return _follow(source, chosen, as_json=json)
    return _print_answer(chosen, answer, as_json=json)


@app.command(name="list")
def list_snapshots(
    *,
    all: Annotated[bool, Flag] = False,  # noqa: A002 - a flag
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    List all snapshots, table by table; exit 1 if one has failed or is incomplete.

    Args:
        all: Also those with which the relay completes rows of the stream.
        json: Print one JSON document.
        config: Configuration file.
    """
    rows = signals.progress(read_settings(config).database, own=all)
    return _show(rows, as_json=json)


@app.command
def show(
    snapshot_id: str,
    /,
    *,
    follow: Annotated[bool, Flag] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Show one snapshot; exit 1 if it failed, is incomplete or was rejected.

    Args:
        snapshot_id: The id that start printed.
        follow: Show its progress until it has ended.
        json: Print one JSON document.
        config: Configuration file.
    """
    source = read_settings(config).database
    if follow:
        with _interruptible(snapshot_id):
            return _follow(source, snapshot_id, as_json=json)
    rows = signals.progress(source, snapshot_id)
    if rows:
        return _show(rows, as_json=json)
    answer = read_answer(source, snapshot_id)
    if answer is None:
        message = f"there is no snapshot {snapshot_id}"
        raise UsageError(message)
    return _print_answer(snapshot_id, answer, as_json=json, is_asked=True)


@app.command
def pause(*names: str, json: JsonOption = False, config: ConfigOption = None) -> int:
    """
    Pause snapshots until they are resumed, also over a restart.

    Args:
        names: A snapshot's id, or tables, or an id and then tables; left out, all.
        json: Print one JSON document.
        config: Configuration file.
    """
    return _signal_running("pause-snapshot", names, config, as_json=json)


@app.command
def resume(*names: str, json: JsonOption = False, config: ConfigOption = None) -> int:
    """
    Resume paused snapshots; by its id also one that failed or was stopped.

    An incomplete snapshot reads only the rows again that were not delivered.

    Args:
        names: A snapshot's id, or tables, or an id and then tables; left out, all that
            are paused.
        json: Print one JSON document.
        config: Configuration file.
    """
    return _signal_running("resume-snapshot", names, config, as_json=json)


@app.command
def stop(*names: str, json: JsonOption = False, config: ConfigOption = None) -> int:
    """
    Stop snapshots where they are.

    Args:
        names: A snapshot's id, or tables, or an id and then tables; left out, all.
        json: Print one JSON document.
        config: Configuration file.
    """
    return _signal_running("stop-snapshot", names, config, as_json=json)


def _signal_running(
    kind: str, names: Sequence[str], config: ConfigOption, *, as_json: bool
) -> int:
    """Send a signal about running snapshots, and print its answer."""
    source = read_settings(config).database
    snapshot_id, collections = None, list(names)
    if names and signals.progress(source, names[0]):
        snapshot_id, *collections = names
    elif names and "." not in names[0]:
        message = f"there is no snapshot {names[0]}; a table is named schema.table"
        raise UsageError(message)
    fields = {"data-collections": collections or None, "snapshot-id": snapshot_id}
    signal_id = signals.send(source, kind, fields)
    answer = wait_answer(source, signal_id, SystemClock(), _ANSWERED_WITHIN_S)
    if not as_json:
        for what in ("paused", "resumed", "stopped"):
            if what in answer.detail:
                print(f"{what}: {', '.join(answer.detail[what]) or 'nothing'}")
    return _print_answer(signal_id, answer, as_json=as_json)


def _follow(source: Source, snapshot_id: str, *, as_json: bool) -> int:
    """Show the progress of a snapshot until it has ended."""
    clock = SystemClock()
    if as_json:
        answer = watch(source, snapshot_id, clock, lambda _: None)
    else:
        with open_bars(Console(stderr=True)) as bars:
            answer = watch(source, snapshot_id, clock, bars.show)
    return _print_answer(snapshot_id, answer, as_json=as_json, is_asked=True)


@contextmanager
def _interruptible(snapshot_id: str) -> Iterator[None]:
    """Print on Ctrl-C that the snapshot continues without the command."""
    try:
        yield
    except KeyboardInterrupt:
        print(
            f"snapshot {snapshot_id} continues: towpath snapshot show {snapshot_id} "
            f"--follow, or towpath snapshot stop {snapshot_id}",
            file=sys.stderr,
        )
        sys.exit(INTERRUPTED)


def _print_answer(
    signal_id: str, answer: SignalAnswer, *, as_json: bool, is_asked: bool = False
) -> int:
    """Print the outcome of a signal, and return the exit code."""
    if as_json:
        document: dict[str, Any] = {"id": signal_id, **answer._asdict()}
        print(json_text.dumps(document, indent=1, default=str))
    elif is_asked or answer.reason:
        status = answer.status or "not seen by the relay yet"
        reason = f": {answer.reason}" if answer.reason else ""
        print(f"{signal_id} {status}{reason}", file=sys.stderr)
    return 0 if answer.is_good else 1


def _show(rows: list[TableProgress], *, as_json: bool) -> int:
    if as_json:
        print(json_text.dumps([row._asdict() for row in rows], indent=1, default=str))
    else:
        Console().print(snapshot_table(rows))
    return 1 if any(row.state in {"failed", INCOMPLETE} for row in rows) else 0


def _check_target(settings: Settings, target: str | None) -> None:
    if target is not None and settings.sink_named(target) is None:
        known = ", ".join(sink.name for sink in settings.sink)
        message = f"no sink is named {target!r}; there are: {known}"
        raise UsageError(message)
