"""
``towpath snapshot start | list | show | pause | resume | stop``.

A key is written as its text, or as a JSON list if it has several columns:
``--key 7``, ``--key '[7, "a"]'``. A file of keys has one key per line.
"""

import json as json_text
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.console import Console

from towpath.cli.options import (
    INTERRUPTED,
    ConfigOption,
    Flag,
    JsonOption,
    read_settings,
    reading,
)
from towpath.deploy.snapshots import signals
from towpath.deploy.snapshots.requests import (
    ANSWERED_WITHIN_S,
    RunningChange,
    SnapshotRequest,
    request_snapshot,
    signal_running,
)
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
from towpath.settings import Source

_Strings = Annotated[tuple[str, ...], Parameter(negative="")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SnapshotOptions:
    """
    The options of ``start`` that are passed to the signal.

    Attributes:
        target: The one sink that gets the rows; by default, all sinks.
        where: "schema.table=filter": only these rows; with --type blocking, a whole
            SELECT. May be given once for each table.
        key: Only the row with this key: its text, or a JSON list of its columns. May be
            given several times.
        keys: A file of keys, one per line; - is standard input.
        type: A blocking snapshot reads all tables in one database snapshot, while the
            stream waits.
        surrogate_key: Read in the order of this unique column, not of the key.
        max_rows_per_second: Limit on the reading speed.
        sweep: At the end, have sinks delete the rows that are not in the tables.
        id: The signal's id; by default, a generated one.
    """

    target: str | None = None
    where: _Strings = ()
    key: _Strings = ()
    keys: Path | None = None
    type: Literal["incremental", "blocking"] = "incremental"
    surrogate_key: _Strings = ()
    max_rows_per_second: int | None = None
    sweep: Annotated[bool, Parameter(negative="")] = False
    id: str | None = None

    def request(self, collections: Sequence[str]) -> SnapshotRequest:
        """
        Return the request for these collections.

        Raises:
            UsageError: The file of keys cannot be read, or has no keys.
        """
        return SnapshotRequest(
            collections=collections,
            target=self.target,
            where=self.where,
            keys=key_lines(self.key, self.keys),
            type=self.type,
            surrogate_key=self.surrogate_key,
            max_rows_per_second=self.max_rows_per_second,
            sweep=self.sweep,
            id=self.id,
        )


def key_lines(arguments: Sequence[str], file: Path | None) -> list[str]:
    """
    Return the texts of keys from arguments and a file (``-``: standard input).

    Raises:
        UsageError: The file cannot be read, or has no keys.
    """
    lines = [line for line in _lines(file) if line.strip()]
    if file is not None and not lines:
        message = f"{file} has no keys"
        raise UsageError(message)
    return [*arguments, *lines]


def _lines(file: Path | None) -> list[str]:
    if file is None:
        return []
    with reading(file):
        is_input = str(file) == "-"
        text = (sys.stdin.buffer.read() if is_input else file.read_bytes()).decode()
    # Not splitlines: a key may contain other line separators.
    return [line.removesuffix("\r") for line in text.split("\n")]


app = App(name="snapshot", help="Fill sinks from existing rows.")


@app.command
def start(
    *collections: str,
    options: SnapshotOptions | None = None,
    wait: Annotated[bool, Flag] = False,
    answer_within: float = ANSWERED_WITHIN_S,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Request a snapshot of tables from the relay; print the signal's id.

    Exit 1 if the snapshot is rejected, fails, is stopped or is incomplete; 3 if no
    relay answers: the signal then waits for one.

    Args:
        collections: Tables as schema.table, aggregates as outbox.TYPE, or regular
            expressions that match such names; by default, all configured tables and
            views.
        options: Additional fields of the signal.
        wait: Show the snapshot's progress until it has ended.
        answer_within: Seconds to wait for the relay's answer; 0: not at all.
        json: Print one JSON document: id, status and detail.
        config: Configuration file.
    """
    request = (options or SnapshotOptions()).request(collections)
    settings = read_settings(config)
    source = settings.database
    chosen = request_snapshot(settings, request)
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
    List the snapshots, table by table; exit 1 if one has failed or is incomplete.

    Args:
        all: Also list the snapshots that the relay requests itself, to complete rows
            of the stream.
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

    With --follow, a stopped snapshot counts as failed.

    Args:
        snapshot_id: The id that start printed.
        follow: Show the snapshot's progress until it has ended.
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
    Pause snapshots until they are resumed, even across a restart.

    Args:
        names: A snapshot's id, or tables, or an id and then tables; by default, all.
        json: Print one JSON document.
        config: Configuration file.
    """
    return _signal_running("pause", names, config, as_json=json)


@app.command
def resume(*names: str, json: JsonOption = False, config: ConfigOption = None) -> int:
    """
    Resume paused snapshots, or one failed or stopped snapshot by its id.

    An incomplete snapshot reads again only the rows that were not delivered.

    Args:
        names: A snapshot's id, or tables, or an id and then tables; by default,
            all that are paused.
        json: Print one JSON document.
        config: Configuration file.
    """
    return _signal_running("resume", names, config, as_json=json)


@app.command
def stop(*names: str, json: JsonOption = False, config: ConfigOption = None) -> int:
    """
    Stop snapshots where they are.

    Args:
        names: A snapshot's id, or tables, or an id and then tables; by default, all.
        json: Print one JSON document.
        config: Configuration file.
    """
    return _signal_running("stop", names, config, as_json=json)


def _signal_running(
    change: RunningChange, names: Sequence[str], config: ConfigOption, *, as_json: bool
) -> int:
    """Send a signal about running snapshots, and print the relay's answer."""
    source = read_settings(config).database
    signal_id, answer = found = signal_running(source, change, names, SystemClock())
    if not as_json:
        for line in found.lines:
            print(line)
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
    """On Ctrl-C, print that the snapshot continues without the command."""
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
