"""
``towpath sink list | add | refill | rebuild | drop``.

All except the first change a sink while everything runs: they add it, refill it from
the existing rows, replace its search indexes, or drop it.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.table import Table

from towpath.cli.options import ConfigOption, Flag, config_file, reading
from towpath.deploy.sinks import dropping, lifecycle
from towpath.deploy.snapshots.signals import LARGEST_SPEED, TableProgress
from towpath.deploy.snapshots.view import open_bars
from towpath.deploy.status import overview
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import Settings, load
from towpath.settings.logs import configure_logs

# The relay refuses other speeds as well, but only once the sink is declared.
_Speed = Annotated[int | None, Parameter(validator=Number(gte=1, lte=LARGEST_SPEED))]


def list_sinks(*, config: ConfigOption = None) -> int:
    """
    List the configured sinks with their state, and how many records each is behind.

    The column dead counts the dead letters that are neither replayed nor discarded;
    awaited, the rows that were requested from the source and have not arrived yet.
    Problems are listed below the table: failures, blocks that a driver refused, a relay
    that is not running. Exit 1 if there are any.

    Args:
        config: Configuration file.
    """
    configure_logs()
    settings = _settings(config_file(config))
    document = overview((), settings, SystemClock())
    table = Table(
        *("sink", "kind", "driver", "state", "behind", "written", "dead", "parked"),
        *("awaited",),
        box=None,
    )
    for sink in document["sinks"]:
        names = ("lag_records", "rows", "open_letters", "parked", "pending_refetches")
        counts = ("?" if sink[n] is None else f"{sink[n]:,}" for n in names)
        texts = (sink[n] for n in ("sink", "kind", "driver", "running_state"))
        table.add_row(*texts, *counts)
    Console().print(table)
    for sentence in document["wrong"]:
        print(sentence)
    return int(bool(document["wrong"]))


def add(
    block: Path,
    /,
    *,
    max_rows_per_second: _Speed = None,
    signal: str | None = None,
    config: ConfigOption = None,
) -> int:
    """
    Add a sink while everything runs, and fill it from the existing rows.

    Its driver must be running. The sink begins at the current end of the stream; a
    snapshot with the sink as its target delivers the earlier rows. Run an interrupted
    command again: it resumes. Exit 1 if the snapshot fails, or if keys are parked
    behind dead letters. A sink that does not fit its tables and its target, or that no
    running relay could fill, is not declared.

    Args:
        block: A file with one [[sink]] block and its routes.
        max_rows_per_second: Limit on the reading speed.
        signal: Send no signal, but print the SQL statement that requests the snapshot
            with this id, and wait until it has been run.
        config: Configuration file.
    """
    with reading(block):
        text = block.read_text(encoding="utf-8")
    is_good = lifecycle.add_sink(
        *(config_file(config), _environ(), text, _PrintedReport()),
        max_rows_per_second=max_rows_per_second,
        signal_id=signal,
    )
    return int(not is_good)


def refill(
    name: str,
    /,
    *,
    route: str | None = None,
    max_rows_per_second: _Speed = None,
    config: ConfigOption = None,
) -> int:
    """
    Read all existing rows into a sink again; rows that the source lacks are deleted.

    The sink keeps serving during the refill, as do other sinks. Run an interrupted
    command again: it resumes. Exit 1 if the snapshot fails, or if keys are parked
    behind dead letters.

    Args:
        name: The sink.
        route: Only this route of the sink.
        max_rows_per_second: Limit on the reading speed.
        config: Configuration file.
    """
    is_good = lifecycle.refill_sink(
        *(_settings(config_file(config)), name, _PrintedReport()),
        route=route,
        max_rows_per_second=max_rows_per_second,
    )
    return int(not is_good)


def drop(
    name: str,
    /,
    *,
    data: Annotated[bool, Flag] = False,
    yes: Annotated[bool, Flag] = False,
    config: ConfigOption = None,
) -> int:
    """
    Drop a sink: its block, its state and its topics; with --data, its data as well.

    Its driver continues with the other sinks. Run an interrupted command again: it
    resumes. The sink's topics hold its dead letters and the rows that snapshots read
    for it; each deleted topic is listed.

    Args:
        name: The sink.
        data: Delete its data, too: keys, indexes, tables with their history.
        yes: Drop it without asking for confirmation.
        config: Configuration file.
    """
    path = config_file(config)
    settings = _settings(path)
    planned = dropping.plan_drop(settings, name, deletes_data=data)
    if not yes and not _confirm(lifecycle.drop_question(planned)):
        print(f"{name} is kept")
        return 1
    lifecycle.drop_sink(path, _environ(), planned, _PrintedReport())
    return 0


class _PrintedReport:
    """Prints the steps, and shows the progress of snapshots as bars."""

    def say(self, line: str) -> None:
        """Print a step."""
        print(line, flush=True)

    def warn(self, line: str) -> None:
        """Print a sentence about a step that remains to be done."""
        print(line, file=sys.stderr)

    @contextmanager
    def watching(self) -> Iterator[Callable[[Sequence[TableProgress]], None]]:
        """Show bars while the block runs."""
        with open_bars(Console(stderr=True)) as bars:
            yield bars.show


def _confirm(question: str) -> bool:
    """
    Return whether the user answers yes; the end of the input counts as no.

    Raises:
        UsageError: There is no terminal on which to ask.
    """
    if not sys.stdin.isatty():
        message = "there is no terminal to confirm on: pass --yes"
        raise UsageError(message)
    try:
        return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}
    except EOFError:
        return False


def _environ() -> Mapping[str, str]:
    return os.environ  # noqa: TID251 - a root


def _settings(path: Path) -> Settings:
    return load(path, _environ())


def rebuild(
    sink: str,
    /,
    *,
    route: Annotated[str | None, Parameter(name="--route")] = None,
    config: ConfigOption = None,
) -> int:
    """
    Rebuild a search sink's indexes from the source, while searches continue.

    The sink must be running. A new index is created from the current tables and
    configuration, is written together with the old one, is filled by a snapshot, and
    then replaces the old one in one step. Run the command again after a crash: it
    resumes. Exit 1 if a snapshot fails, or if records became dead letters during the
    rebuild; that index is then not replaced.

    Args:
        sink: The sink.
        route: Only this route's index; by default, all of them, one by one.
        config: Configuration file.
    """
    settings = _settings(config_file(config))
    is_good = lifecycle.rebuild_sink(settings, sink, _PrintedReport(), route=route)
    return int(not is_good)
