"""
Which routes of a sink lack rows that are being read anew.

A sink that lost rows, or could not read what its topics no longer had, asks for the
whole route. From then until the sweep that ends that snapshot was applied, the sink may
have applied every record and lack rows all the same. There is an empty file for each
such route and snapshot, ``<state>/sinks/<sink>/unfilled/<route>.<snapshot>``: made
before it is asked for, and gone once the sweep is durable. The name says it all, so
that whoever strikes one snapshot off cannot take the next one's file away.
"""

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

from towpath.sinks.state.progress import replace_file, sink_folder


def begin(state_folder: Path, sink: str, route: str, snapshot_id: str) -> None:
    """Take note of a route before its rows are asked for, in place of earlier notes."""
    earlier = noted(state_folder, sink, [route])
    note(state_folder, sink, route, snapshot_id)
    for one, before in earlier:
        if before != snapshot_id:
            end(state_folder, sink, one, before)


def note(state_folder: Path, sink: str, route: str, snapshot_id: str) -> None:
    """Take note of a route beside earlier notes: the snapshot may come to nothing."""
    replace_file(_path(state_folder, sink, route, snapshot_id), b"")


def end(state_folder: Path, sink: str, route: str, snapshot_id: str) -> None:
    """Strike off what was noted of a route with this snapshot, and nothing else."""
    _path(state_folder, sink, route, snapshot_id).unlink(missing_ok=True)


def forget(state_folder: Path, sink: str, route: str) -> None:
    """Strike off all that was noted of a route."""
    for one, snapshot_id in noted(state_folder, sink, [route]):
        end(state_folder, sink, one, snapshot_id)


def noted(
    state_folder: Path, sink: str, routes: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    """List what is noted of some routes: route and snapshot."""
    chosen = frozenset(routes)
    return tuple(one for one in _all(state_folder, sink) if one[0] in chosen)


def routes(state_folder: Path, sink: str) -> tuple[str, ...]:
    """List the routes that lack rows."""
    return tuple(sorted({route for route, _ in _all(state_folder, sink)}))


def _all(state_folder: Path, sink: str) -> list[tuple[str, str]]:
    found = sorted(path.name for path in _folder(state_folder, sink).glob("[!.]*"))
    parted = (name.partition(".") for name in found)
    return [(unquote(route), unquote(snapshot_id)) for route, _, snapshot_id in parted]


def _folder(state_folder: Path, sink: str) -> Path:
    return sink_folder(state_folder, sink) / "unfilled"


def _path(state_folder: Path, sink: str, route: str, snapshot_id: str) -> Path:
    name = f"{_quoted(route)}.{_quoted(snapshot_id)}"
    return _folder(state_folder, sink) / name


def _quoted(text: str) -> str:
    # A route may be named with dots, and nothing forbids that it begins with one.
    return quote(text, safe="").replace(".", "%2E")
