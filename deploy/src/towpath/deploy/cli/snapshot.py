"""``towpath snapshot start | list | show``."""

import json as json_text
import os
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from towpath.deploy import signals
from towpath.deploy.cli.places import ConfigOption, config_file
from towpath.deploy.signals import Progress
from towpath.schemas.failure import UsageError
from towpath.settings import Settings, load

app = App(name="snapshot", help="Fill sinks from existing rows.")
JsonOption = Annotated[
    bool, Parameter(name="--json", negative="", help="Print one JSON document.")
]


@app.command
def start(
    *collections: str,
    target: str | None = None,
    max_rows_per_second: int | None = None,
    config: ConfigOption = None,
) -> int:
    """
    Ask the relay to read tables into the stream; print the signal's id.

    Args:
        collections: Tables as schema.table; left out, all that are configured.
        target: The one sink that gets the rows; left out, all sinks.
        max_rows_per_second: Bound of the reading speed.
        config: Configuration file.
    """
    settings = _settings(config)
    if target is not None and settings.sink_named(target) is None:
        known = ", ".join(s.name for s in settings.sink)
        message = f"no sink is named {target!r}; there are: {known}"
        raise UsageError(message)
    chosen = signals.ask(
        settings.database.dsn,
        collections or settings.database.tables,
        target=target,
        max_rows_per_second=max_rows_per_second,
    )
    print(chosen)
    return 0


@app.command(name="list")
def list_snapshots(*, json: JsonOption = False, config: ConfigOption = None) -> int:
    """List all snapshots, table by table."""
    return _show(signals.progress(_settings(config).database.dsn), as_json=json)


@app.command
def show(
    snapshot_id: str, /, *, json: JsonOption = False, config: ConfigOption = None
) -> int:
    """
    Show one snapshot; exit 1 if it failed or was rejected.

    Args:
        snapshot_id: The id that start printed.
        json: Print one JSON document.
        config: Configuration file.
    """
    dsn = _settings(config).database.dsn
    rows = signals.progress(dsn, snapshot_id)
    if not rows:
        return _show_signal(dsn, snapshot_id)
    return _show(rows, as_json=json)


def _show_signal(dsn: str, signal_id: str) -> int:
    """Tell about a signal that has not become a snapshot."""
    found = signals.state(dsn, signal_id)
    if found is None:
        message = f"there is no snapshot {signal_id}"
        raise UsageError(message)
    status, detail = found
    print(f"{signal_id}: {status or 'not seen by the relay yet'}", detail or "")
    return 1 if status in {"rejected", "failed"} else 0


def _show(rows: list[Progress], *, as_json: bool) -> int:
    if as_json:
        print(json_text.dumps([row._asdict() for row in rows], indent=1, default=str))
    else:
        Console().print(_table(rows))
    return 1 if any(row.state == "failed" for row in rows) else 0


def _table(rows: list[Progress]) -> Table:
    table = Table(box=None)
    for title in ("snapshot", "table"):
        # Both are needed whole for the next command.
        table.add_column(title, overflow="fold")
    for title in ("target", "state", "rows", "dropped", "%", "rows/s", "error"):
        table.add_column(title)
    for row in rows:
        speed = f"{row.rows / row.elapsed_s:,.0f}" if row.elapsed_s else ""
        table.add_row(
            *(row.snapshot_id, row.collection, row.target or "all", row.state),
            *(f"{row.rows:,}", f"{row.dropped:,}"),
            "" if row.percent is None else f"{row.percent:.0f}",
            *(speed, row.error or ""),
        )
    return table


def _settings(config: ConfigOption) -> Settings:
    return load(config_file(config), os.environ)  # noqa: TID251 - a root
