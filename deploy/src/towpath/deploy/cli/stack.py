"""``towpath up | down | logs | status``: the local stack and the whole platform."""

import codecs
import collections
import contextlib
import io
import json as json_text
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from towpath.cli.options import (
    ConfigOption,
    Flag,
    StateOption,
    config_file,
    read_settings,
    reading,
    state_folder,
)
from towpath.deploy.local.configuration import (
    check_files,
    update_ports,
    write_configuration,
)
from towpath.deploy.local.lifecycle import (
    PartState,
    PartStatus,
    part_document,
    part_table,
    short_path,
)
from towpath.deploy.local.part import StateFolder
from towpath.deploy.local.postgres import check_databases, create_databases
from towpath.deploy.local.stack import NAMES, Stack
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import UsageError
from towpath.schemas.position import format_lsn, parse_position
from towpath.sinks.jars import fetch, store

if TYPE_CHECKING:
    from towpath.settings import Settings

Document = dict[str, Any]

_FOLLOW_EVERY_S: Final = 0.2


def last_lines(path: Path, count: int) -> tuple[str, int]:
    """Return the text of a file's last lines, and the offset at which it ends."""
    with path.open("rb") as file:
        lines = collections.deque(file, maxlen=count)
        return b"".join(lines).decode("utf-8", errors="replace"), file.tell()


def follow_file(path: Path, offset: int, clock: Clock | None = None) -> Iterator[str]:
    """
    Yield text as it is appended to a file, forever, even after a rotation.

    Args:
        path: The file, which may be missing during a rotation.
        offset: The offset at which the text begins.
        clock: Waits between two reads; by default, the system's clock.
    """
    wait = (clock or SystemClock()).wait
    # The bytes of a character may be written separately.
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    with contextlib.ExitStack() as opened:
        # The file stays open, so that its inode is not reused for a new one.
        file = _open_at(path, offset, opened)
        while True:
            added = b"" if file is None else _read_added(file)
            if not added and _is_replaced(path, file):
                # Lines may have been written between the last read and the rotation.
                added = b"" if file is None else _read_added(file)
                opened.close()
                file = _open_at(path, 0, opened)
                added += b"" if file is None else _read_added(file)
            if text := decode(added):
                yield text
            else:
                wait(_FOLLOW_EVERY_S)


def _open_at(
    path: Path, offset: int, opened: contextlib.ExitStack
) -> io.BufferedReader | None:
    """Open a file at an offset; return None if there is no file."""
    try:
        file = opened.enter_context(path.open("rb"))
    except FileNotFoundError:
        return None
    file.seek(offset)
    return file


def _read_added(file: io.BufferedReader) -> bytes:
    """Read what was appended; a truncated file is read from its beginning."""
    if os.fstat(file.fileno()).st_size < file.tell():
        file.seek(0)
    return file.read()


def _is_replaced(path: Path, file: io.BufferedReader | None) -> bool:
    """Return whether a path leads to a file that is not the open one."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return file is None or not os.path.samestat(found, os.fstat(file.fileno()))


def up(
    *files: Path,
    database: Annotated[tuple[str, ...], Flag] = (),
    state: StateOption = None,
) -> int:
    """
    Start the local stack, or repair what is down, and write its configuration.

    In the files that you name, only ports are changed: the ports that a file lists in a
    line "# local stack: postgres=5432 kafka=9092 ..." are replaced with the stack's
    ports wherever they follow 127.0.0.1. Without files, a configuration for the demo's
    shop is written.

    Args:
        files: Your own files with addresses of the stack: towpath.toml, an env file.
        database: A database to create in the stack's Postgres, unless it exists.
        state: State folder.
    """
    check_files(files)
    check_databases(database)
    stack = Stack(state_folder(state))
    console = Console(stderr=True)
    fetch.ensure(console.print, os.environ, store.read_lock())  # noqa: TID251 - a root
    states = dict.fromkeys(NAMES, "waiting")
    with console.status("") as line:

        def report(name: str, state: str) -> None:
            states[name] = state
            if state in {"started", "failed"}:
                console.print(f"{name}: {state}")
            waiting = [n for n, s in states.items() if s in {"waiting", "starting"}]
            line.update(f"starting {', '.join(waiting)}")

        addresses = stack.up(report=report)
    create_databases(addresses.postgres_port, database)
    path = stack.state.root / "towpath.toml"
    for file in files:
        update_ports(addresses, file)
    if not files:
        write_configuration(addresses, path)
    written = ", ".join(short_path(file) for file in files or (path,))
    print(f"{'addresses' if files else 'configuration'}: {written}")
    return _show_parts(stack.status())


def down(
    *,
    purge: Annotated[bool, Flag] = False,
    state: StateOption = None,
) -> int:
    """
    Stop the local stack; its data is kept.

    Args:
        purge: Remove the data as well.
        state: State folder.
    """
    stack = Stack(state_folder(state))
    if purge:
        stack.purge()
        print("stopped; data removed")
    else:
        stack.down()
        print("stopped")
    return 0


def logs(
    part: str,
    /,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    lines: Annotated[
        int, Parameter(name=["--lines", "-n"], validator=Number(gte=0))
    ] = 50,
    state: StateOption = None,
) -> int:
    """
    Show the log of a part.

    Args:
        part: The part's name, as status shows it.
        follow: Show new lines, too, until Ctrl-C.
        lines: The number of lines to show, from the end of the log.
        state: State folder.
    """
    path = StateFolder(state_folder(state).resolve()).log(part)
    with reading(path):
        if not path.exists():
            others = path.parent.glob("*.log")
            known = ", ".join(sorted(log.stem for log in others)) or "none"
            message = f"there is no log of {part!r}; known: {known}"
            raise UsageError(message)
        text, offset = last_lines(path, lines)
    sys.stdout.write(text)
    if follow:
        sys.stdout.flush()
        for text in follow_file(path, offset):
            sys.stdout.write(text)
            sys.stdout.flush()
    return 0


def _show_parts(parts: list[PartStatus]) -> int:
    Console().print(part_table(part_document(part) for part in parts))
    return 0 if all(p.state is not PartState.STOPPED for p in parts) else 1


_WATCH_EVERY_S: Final = 2.0
_COLORS: Final[Mapping[str, str]] = {
    "ready": "green",
    "running": "green",
    "starting": "yellow",
    "failed": "red",
    "stopped": "red",
}


def status(
    *,
    json: Annotated[bool, Flag] = False,
    watch: Annotated[bool, Flag] = False,
    config: ConfigOption = None,
    state: StateOption = None,
) -> int:
    """
    Show everything on one screen; exit 1 if something is wrong.

    It shows the parts of the local stack, if there is one; the relay with its slot and
    the log that it retains; running snapshots; and for each sink its lag in records and
    seconds against its budget (in red and with a ! above twice the budget), the time of
    its last batch by stage, its counters, and its applied position. Problems are listed
    below the tables, one sentence each.

    Args:
        json: Print one JSON document.
        watch: Refresh every two seconds, until Ctrl-C.
        config: Configuration file.
        state: State folder.
    """
    from towpath.settings.logs import configure_logs  # noqa: PLC0415 - keeps towpath up fast

    configure_logs()
    clock = SystemClock()
    if watch and not json:
        return _watch(config, state, clock)
    document = read_document(config, state, clock)
    if json:
        print(json_text.dumps(document, indent=1))
    else:
        Console().print(screen(document))
    return int(bool(document["wrong"]))


def _watch(config: Path | None, state: Path | None, clock: Clock) -> int:
    document = read_document(config, state, clock)
    try:
        with Live(screen(document), auto_refresh=False, screen=False) as live:
            while True:
                clock.wait(_WATCH_EVERY_S)
                document = read_document(config, state, clock)
                live.update(screen(document), refresh=True)
    except KeyboardInterrupt:
        return int(bool(document["wrong"]))


def read_document(config: Path | None, state: Path | None, clock: Clock) -> Document:
    """
    Return the state of the whole platform, as ``status --json`` prints it.

    Args:
        config: Configuration file.
        state: State folder.
        clock: Provides the time of the document.
    """
    from towpath.deploy.status import overview  # noqa: PLC0415 - keeps towpath up fast

    settings = _settings(config)
    document = overview(_parts(state, settings), settings, clock)
    if settings is None:
        missing = (
            f"there is no configuration {config_file(config)}: relay and sinks are not "
            "known; name one with --config, or run towpath up to write one"
        )
        document["wrong"] = [missing, *document["wrong"]]
    return document


def _settings(config: Path | None) -> "Settings | None":
    """Read the configuration; None if it is missing and --config does not name it."""
    path = config_file(config)
    if config is None and not path.exists():
        return None
    return read_settings(config)


def _parts(state: Path | None, settings: "Settings | None") -> Sequence[PartStatus]:
    """Read the parts of the stack; none if there is a configuration but no stack."""
    parts = Stack(state_folder(state)).status()
    has_stack = any(part.port is not None for part in parts)
    return parts if has_stack or settings is None else ()


def screen(document: Document) -> RenderableType:
    """Draw the document as tables, with its problems below them."""
    pieces: list[RenderableType] = []
    if document["parts"]:
        pieces += [part_table(document["parts"]), ""]
    if document["relay"] is not None:
        pieces += [_relay_line(document["relay"])]
        notices = document["relay"].get("notices", [])
        pieces += [Text(f"~ {sentence}", "yellow") for sentence in notices]
        pieces += [_snapshot_line(each) for each in document["snapshots"]]
        pieces += [""]
    if document["sinks"]:
        pieces += [_sink_table(document["sinks"])]
        offset = (document["relay"] or {}).get("lineage_offset", 0)
        pieces += [_applied_line(sink, offset) for sink in document["sinks"]]
        pieces += [""]
    wrong = [Text(f"! {sentence}", "red") for sentence in document["wrong"]]
    return Group(*pieces, *(wrong or [Text("all is well", "green")]))


def _relay_line(relay: Mapping[str, Any]) -> Text:
    if relay["error"]:
        return Text(f"relay  {relay['error']}")
    activity = "streaming" if relay["active"] else "no relay is consuming the slot"
    facts = [
        f"{relay.get('lag_bytes', 0):,} bytes behind",
        f"{relay['retained_bytes']:,} bytes of log retained",
        f"confirmed {relay['confirmed_lsn']}",
    ]
    return Text(f"relay  {activity}, {', '.join(facts)}")


def _snapshot_line(row: Mapping[str, Any]) -> Text:
    percent = "" if row["percent"] is None else f", {row['percent']:.0f} %"
    target = f" for {row['target']}" if row["target"] else ""
    return Text(
        f"snapshot {row['snapshot']}  {row['table']}{target}: {row['state']}, "
        f"{row['rows']:,} rows{percent}"
    )


def _sink_table(sinks: Iterable[Document]) -> Table:
    from towpath.deploy.status import is_late  # noqa: PLC0415 - keeps towpath up fast

    titles = ("sink", "kind", "state", "behind", "seconds", "budget", "last batch")
    table = Table(*titles, "rows", "stale", "dead", "parked", "awaited", box=None)
    counts = ("rows", "stale", "open_letters", "parked", "pending_refetches")
    for sink in sinks:
        lag_s, behind = sink["lag_s"], sink["lag_records"]
        table.add_row(
            sink["sink"],
            sink["kind"],
            _state(sink["running_state"]),
            "?" if behind is None else f"{behind:,}",
            "?" if lag_s is None else f"{lag_s:,.1f}{' !' * is_late(sink)}",
            f"{sink['budget_s']:g}",
            _batch(sink),
            *("?" if sink[name] is None else f"{sink[name]:,}" for name in counts),
            style="bold red" if is_late(sink) else "",
        )
    return table


def _applied_line(sink: Mapping[str, Any], offset: int) -> Text:
    """
    Describe the progress of a sink, in the log's own LSNs.

    Args:
        sink: The sink's document.
        offset: The offset that the current lineage adds to the log's LSNs.
    """
    applied, lag_s = "nothing yet", ""
    if sink["position"]:
        log_lsn = parse_position(sink["position"]).log_lsn
        # Positions of an earlier lineage have no LSN in this log.
        applied = (
            format_lsn(log_lsn - offset) if log_lsn >= offset else "before the gap"
        )
    if sink["lag_s"] is not None:
        lag_s = f", {sink['lag_s']:,.1f} s behind"
    return Text(
        f"{sink['sink']}  applied {applied}{lag_s}, "
        f"{sink['tombstones']:,} tombstones, {sink['retries']:,} retries"
    )


def _batch(sink: Mapping[str, Any]) -> str:
    stages = ", ".join(f"{name} {ms}" for name, ms in sink["last_stages_ms"].items())
    return f"{sink['last_batch_ms']} ms" + (f" ({stages})" if stages else "")


def _state(state: str) -> Text:
    return Text(state, _COLORS.get(state, ""))
