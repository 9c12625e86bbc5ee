"""``towpath snapshot start | list | show | pause | resume | stop``."""

import json as json_text
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final

from cyclopts import App, Parameter
from rich.console import Console

from towpath.deploy.cli.options import ConfigOption, config_file
from towpath.deploy.snapshots import signals
from towpath.deploy.snapshots.options import SnapshotOptions
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
from towpath.settings import Settings, Source, load

app = App(name="snapshot", help="Fill sinks from existing rows.")
JsonOption = Annotated[
    bool, Parameter(name="--json", negative="", help="Print one JSON document.")
]
Flag = Parameter(negative="")

# A relay that runs answers within a second; one that is starting takes a few.
_ANSWERED_WITHIN_S: Final = 10.0
_INTERRUPTED: Final = 130


@app.command
def start(
    *collections: str,
    wishes: SnapshotOptions | None = None,
    wait: Annotated[bool, Flag] = False,
    answer_within: float = _ANSWERED_WITHIN_S,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Ask the relay to read tables into the stream; print the signal's id.

    Exit 1 if it is rejected, fails or is incomplete; 3 if no relay answers: the signal
    waits for one.

    Args:
        collections: Tables as schema.table, aggregates as outbox.TYPE, or expressions
            on such names; left out, all tables and views that are configured.
        wishes: What else the signal says.
        wait: Show how far it is until it has ended.
        answer_within: How many seconds to wait for the relay's answer; 0: not at all.
        json: Print one JSON document: id, status and detail.
        config: Configuration file.
    """
    wishes = wishes or SnapshotOptions()
    settings = _settings(config)
    _check_target(settings, wishes.target)
    source = settings.database
    chosen = signals.ask(
        source,
        collections or settings.collections,
        target=wishes.target,
        max_rows_per_second=wishes.max_rows_per_second,
        signal_id=wishes.id,
        wishes=wishes.fields(collections),
    )
    if not json:
        print(chosen, flush=True)
    answer = SignalAnswer(None, {})
    with _leaving(chosen):
        if answer_within > 0:
            answer = wait_answer(source, chosen, SystemClock(), answer_within)
        if wait and answer.is_good:
            return _follow(source, chosen, as_json=json)
    return _tell(chosen, answer, as_json=json)


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
        all: Also those by which the relay completes rows of the stream.
        json: Print one JSON document.
        config: Configuration file.
    """
    rows = signals.progress(_settings(config).database, own=all)
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
        follow: Show how far it is until it has ended.
        json: Print one JSON document.
        config: Configuration file.
    """
    source = _settings(config).database
    if follow:
        with _leaving(snapshot_id):
            return _follow(source, snapshot_id, as_json=json)
    rows = signals.progress(source, snapshot_id)
    if rows:
        return _show(rows, as_json=json)
    answer = read_answer(source, snapshot_id)
    if answer is None:
        message = f"there is no snapshot {snapshot_id}"
        raise UsageError(message)
    return _tell(snapshot_id, answer, as_json=json, is_asked=True)


@app.command
def pause(*names: str, json: JsonOption = False, config: ConfigOption = None) -> int:
    """
    Let snapshots wait until they are resumed, also over a restart.

    Args:
        names: A snapshot's id, or tables, or an id and then tables; left out, all.
        json: Print one JSON document.
        config: Configuration file.
    """
    return _change("pause-snapshot", names, config, as_json=json)


@app.command
def resume(*names: str, json: JsonOption = False, config: ConfigOption = None) -> int:
    """
    Go on with paused snapshots; by its id also with one that failed or was stopped.

    Of one that is incomplete, the rows that were not delivered are read again.

    Args:
        names: A snapshot's id, or tables, or an id and then tables; left out, all that
            are paused.
        json: Print one JSON document.
        config: Configuration file.
    """
    return _change("resume-snapshot", names, config, as_json=json)


@app.command
def stop(*names: str, json: JsonOption = False, config: ConfigOption = None) -> int:
    """
    End snapshots where they are.

    Args:
        names: A snapshot's id, or tables, or an id and then tables; left out, all.
        json: Print one JSON document.
        config: Configuration file.
    """
    return _change("stop-snapshot", names, config, as_json=json)


def _change(
    kind: str, names: Sequence[str], config: ConfigOption, *, as_json: bool
) -> int:
    """Send a signal about snapshots that run, and tell its answer."""
    source = _settings(config).database
    snapshot_id, collections = None, list(names)
    if names and signals.progress(source, names[0]):
        snapshot_id, *collections = names
    elif names and "." not in names[0]:
        message = f"there is no snapshot {names[0]}, and it is no table's name"
        raise UsageError(message)
    fields = {"data-collections": collections or None, "snapshot-id": snapshot_id}
    signal_id = signals.send(source, kind, fields)
    answer = wait_answer(source, signal_id, SystemClock(), _ANSWERED_WITHIN_S)
    if not as_json:
        for what in ("paused", "resumed", "stopped"):
            if what in answer.detail:
                print(f"{what}: {', '.join(answer.detail[what]) or 'nothing'}")
    return _tell(signal_id, answer, as_json=as_json)


def _follow(source: Source, snapshot_id: str, *, as_json: bool) -> int:
    """Watch a snapshot to its end."""
    clock = SystemClock()
    if as_json:
        answer = watch(source, snapshot_id, clock, lambda _: None)
    else:
        with open_bars(Console(stderr=True)) as bars:
            answer = watch(source, snapshot_id, clock, bars.show)
    return _tell(snapshot_id, answer, as_json=as_json, is_asked=True)


@contextmanager
def _leaving(snapshot_id: str) -> Iterator[None]:
    """Say that a snapshot goes on when whoever watches it leaves."""
    try:
        yield
    except KeyboardInterrupt:
        print(
            f"snapshot {snapshot_id} goes on: towpath snapshot show {snapshot_id} "
            f"--follow, or towpath snapshot stop {snapshot_id}",
            file=sys.stderr,
        )
        sys.exit(_INTERRUPTED)


def _tell(
    signal_id: str, answer: SignalAnswer, *, as_json: bool, is_asked: bool = False
) -> int:
    """Print what became of a signal, and return the exit code."""
    if as_json:
        told: dict[str, Any] = {"id": signal_id, **answer._asdict()}
        print(json_text.dumps(told, indent=1, default=str))
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


def _settings(config: ConfigOption) -> Settings:
    return load(config_file(config), os.environ)  # noqa: TID251 - a root
