"""
Routes of a sink that lack rows until a snapshot has been applied.

A sink that lost rows, or missed records that its topics no longer have, requests a
snapshot of the whole route; a sink whose table was altered requests the rows that have
a value in an altered column. Until the end of the snapshot is applied, the sink may
have applied every record and still lack rows. Each such route and snapshot has an empty
file, ``<state>/sinks/<sink>/unfilled/<route>.<snapshot>``: created before the request,
deleted once everything up to the snapshot's end is durable. The file's name identifies
the snapshot, so the end of one snapshot never deletes the file of another.
"""

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from towpath.sinks.state.progress import replace_file, sink_folder


def begin(state_folder: Path, sink: str, route: str, snapshot_id: str) -> None:
    """Create the file of a route's next snapshot; delete the route's older files."""
    earlier = noted(state_folder, sink, [route])
    note(state_folder, sink, route, snapshot_id)
    for older_route, older_id in earlier:
        if older_id != snapshot_id:
            end(state_folder, sink, older_route, older_id)


def note(state_folder: Path, sink: str, route: str, snapshot_id: str) -> None:
    """Create the file of a route and snapshot; keep the route's other files."""
    replace_file(_path(state_folder, sink, route, snapshot_id), b"")


def end(state_folder: Path, sink: str, route: str, snapshot_id: str) -> None:
    """Delete the file of a route and snapshot, and no other."""
    for path, found in _all(state_folder, sink):
        if found == (route, snapshot_id):
            path.unlink(missing_ok=True)


def forget(state_folder: Path, sink: str, route: str) -> None:
    """Delete all files of a route."""
    for _, snapshot_id in noted(state_folder, sink, [route]):
        end(state_folder, sink, route, snapshot_id)


def noted(
    state_folder: Path, sink: str, routes: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    """Return the route and snapshot of each file that belongs to one of ``routes``."""
    chosen = frozenset(routes)
    return tuple(pair for _, pair in _all(state_folder, sink) if pair[0] in chosen)


def routes(state_folder: Path, sink: str) -> tuple[str, ...]:
    """Return the routes that lack rows."""
    return tuple(sorted({route for _, (route, _) in _all(state_folder, sink)}))


def _all(state_folder: Path, sink: str) -> list[tuple[Path, tuple[str, str]]]:
    """Return each file with its route and snapshot."""
    found = sorted(_folder(state_folder, sink).glob("[!.]*"))
    split_names = [(path, path.name.partition(".")) for path in found]
    return [
        (path, (unquote(route), unquote(snapshot_id)))
        for path, (route, _, snapshot_id) in split_names
    ]


def _folder(state_folder: Path, sink: str) -> Path:
    return sink_folder(state_folder, sink) / "unfilled"


def _path(state_folder: Path, sink: str, route: str, snapshot_id: str) -> Path:
    name = f"{_quoted(route)}.{_quoted(snapshot_id)}"
    return _folder(state_folder, sink) / name


def _quoted(text: str) -> str:
    """Percent-encode only what a part of the name cannot contain."""
    # A file name has at most 255 bytes, and a percent-encoded character takes up to
    # twelve.
    return "".join(f"%{ord(c):02X}" if c in "%./" or c < " " else c for c in text)
