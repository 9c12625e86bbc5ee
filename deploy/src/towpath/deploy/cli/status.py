"""``towpath status``: everything on one screen."""

import json as json_text
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from towpath.deploy.cli.options import (
    ConfigOption,
    StateOption,
    config_file,
    state_folder,
)
from towpath.deploy.local.lifecycle import PartStatus, part_table
from towpath.deploy.local.stack import Stack
from towpath.deploy.status.overview import Document, is_late, overview
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.position import format_lsn, parse_position
from towpath.settings import Settings, load
from towpath.settings.logs import configure_logs

_LOOK_EVERY_S: Final = 2.0
_COLOURS: Final[Mapping[str, str]] = {
    "ready": "green",
    "running": "green",
    "starting": "yellow",
    "failed": "red",
    "stopped": "red",
}


def status(
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
    watch: Annotated[bool, Parameter(negative="")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
) -> int:
    """
    Show everything on one screen; exit 1 if something is wrong.

    The parts of the local stack, if there is one; the relay: whether the slot is
    followed, what it keeps; snapshots that run; each sink: how many records and seconds
    it is behind, against its budget (in red and with a ! above twice of it), how long
    its last batch took and by which stage, what it has counted, and the position that
    it has applied. What is wrong stands below, a sentence each.

    Args:
        json: Print one JSON document.
        watch: Look again every two seconds, until Ctrl-C.
        config: Configuration file.
        state: State folder.
    """
    configure_logs()
    clock = SystemClock()
    if json:
        told = _look(config, state, clock)
        print(json_text.dumps(told, indent=1))
        return int(bool(told["wrong"]))
    if watch:
        return _watch(config, state, clock)
    told = _look(config, state, clock)
    Console().print(screen(told))
    return int(bool(told["wrong"]))


def _watch(config: Path | None, state: Path | None, clock: Clock) -> int:
    told = _look(config, state, clock)
    try:
        with Live(screen(told), auto_refresh=False, screen=False) as live:
            while True:
                clock.wait(_LOOK_EVERY_S)
                told = _look(config, state, clock)
                live.update(screen(told), refresh=True)
    except KeyboardInterrupt:
        return int(bool(told["wrong"]))


def _look(config: Path | None, state: Path | None, clock: Clock) -> Document:
    settings = _settings(config)
    told = overview(_parts(state, settings), settings, clock)
    if settings is None:
        missing = (
            f"there is no configuration {config_file(config)}: relay and sinks are not "
            "known; name one by --config, or let towpath up write one"
        )
        told["wrong"] = [missing, *told["wrong"]]
    return told


def _settings(config: Path | None) -> Settings | None:
    """Read the configuration; before there is one, only the parts are told."""
    path = config_file(config)
    if config is None and not path.exists():
        return None
    return load(path, os.environ)  # noqa: TID251 - a root


def _parts(state: Path | None, settings: Settings | None) -> Sequence[PartStatus]:
    """Look at the local stack; a configuration may well be of no local stack."""
    parts = Stack(state_folder(state)).status()
    has_stack = any(part.port is not None for part in parts)
    return parts if has_stack or settings is None else ()


def screen(told: Document) -> RenderableType:
    """Write the document as tables, and below what is wrong."""
    pieces: list[RenderableType] = []
    if told["parts"]:
        pieces += [part_table(told["parts"]), ""]
    if told["relay"] is not None:
        pieces += [_relay_line(told["relay"])]
        notices = told["relay"].get("notices", [])
        pieces += [Text(f"~ {sentence}", "yellow") for sentence in notices]
        pieces += [_snapshot_line(each) for each in told["snapshots"]]
        pieces += [""]
    if told["sinks"]:
        pieces += [_sink_table(told["sinks"])]
        offset = (told["relay"] or {}).get("lineage_offset", 0)
        pieces += [_applied_line(sink, offset) for sink in told["sinks"]]
        pieces += [""]
    wrong = [Text(f"! {sentence}", "red") for sentence in told["wrong"]]
    return Group(*pieces, *(wrong or [Text("all is well", "green")]))


def _relay_line(relay: Mapping[str, Any]) -> Text:
    if relay["error"]:
        return Text(f"relay  {relay['error']}")
    follows = "streaming" if relay["active"] else "nobody follows the slot"
    facts = [
        f"{relay.get('lag_bytes', 0):,} bytes behind",
        f"{relay['retained_bytes']:,} bytes of log kept",
        f"confirmed {relay['confirmed_lsn']}",
    ]
    return Text(f"relay  {follows}, {', '.join(facts)}")


def _snapshot_line(row: Mapping[str, Any]) -> Text:
    percent = "" if row["percent"] is None else f", {row['percent']:.0f} %"
    target = f" for {row['target']}" if row["target"] else ""
    return Text(
        f"snapshot {row['snapshot']}  {row['table']}{target}: {row['state']}, "
        f"{row['rows']:,} rows{percent}"
    )


def _sink_table(sinks: Iterable[Document]) -> Table:
    titles = ("sink", "kind", "state", "behind", "seconds", "budget", "last batch")
    table = Table(*titles, "rows", "stale", "dead", "parked", "owed", box=None)
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
            *(
                "?" if sink[name] is None else f"{sink[name]:,}"
                for name in ("rows", "stale", "open_letters", "parked", "owed")
            ),
            style="bold red" if is_late(sink) else "",
        )
    return table


def _applied_line(sink: Mapping[str, Any], offset: int) -> Text:
    """
    Say how far a sink is, by the log's own addresses.

    Args:
        sink: Its document.
        offset: What the present lineage adds to the log's addresses.
    """
    applied, lag_s = "nothing yet", ""
    if sink["position"]:
        log_lsn = parse_position(sink["position"]).log_lsn
        # What an earlier lineage brought has no address in this log.
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


def _state(word: str) -> Text:
    return Text(word, _COLOURS.get(word, ""))
