"""
Which routes of a sink lack rows that are being read anew.

A sink that lost rows, or could not read what its topics no longer had, asks for the
whole route. From then until the sweep that ends that snapshot was applied, the sink may
have applied every record and lack rows all the same. There is a small file for each
such route, ``<state>/sinks/<sink>/unfilled/<route>``, with the snapshot's id: written
before it is asked for, and gone once the sweep is durable.
"""

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

from towpath.sinks.progress import replace_file, sink_folder


def begin(state_folder: Path, sink: str, route: str, snapshot_id: str) -> None:
    """Take note of a route before its rows are asked for."""
    replace_file(_path(state_folder, sink, route), snapshot_id.encode())


def end(state_folder: Path, sink: str, route: str, snapshot_id: str) -> None:
    """Strike a route off, if this is the snapshot that was asked for last."""
    path = _path(state_folder, sink, route)
    if path.exists() and path.read_text() == snapshot_id:
        path.unlink()


def forget(state_folder: Path, sink: str, filled: Iterable[str]) -> None:
    """Strike routes off that somebody has filled since."""
    for route in filled:
        _path(state_folder, sink, route).unlink(missing_ok=True)


def routes(state_folder: Path, sink: str) -> tuple[str, ...]:
    """List the routes that lack rows."""
    found = _folder(state_folder, sink).glob("[!.]*")
    return tuple(sorted(unquote(path.name) for path in found))


def _folder(state_folder: Path, sink: str) -> Path:
    return sink_folder(state_folder, sink) / "unfilled"


def _path(state_folder: Path, sink: str, route: str) -> Path:
    # A route may be named with dots, and nothing forbids that it begins with one.
    return _folder(state_folder, sink) / quote(route, safe="").replace(".", "%2E")
