"""
The topology as a picture: boxes for parts, and lines with rate and lag between them.

Pure functions compute it from a status document. It is drawn twice: wide, from left to
right, for a large screen, and tall, from top to bottom, for a phone.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from towpath.deploy.console import Document, Samples
from towpath.deploy.status import is_late

# Sizes in the picture's own units, which are pixels on a wide screen.
_WIDTH, _HEIGHT, _GAP, _ROW = 168, 76, 104, 104
_TALL_WIDTH, _TALL_HEIGHT, _TALL_GAP = 330, 74, 58
# The lag of a sink is the longest text on a flow.
_SINK_GAP: Final = 90
_MARGIN: Final = 10
_KILO: Final = 1000.0


class PlatformPart(NamedTuple):
    """
    A part of the platform.

    Attributes:
        id: The part's name in links and tests.
        kind: ``source``, ``slot``, ``relay``, ``topics`` or the kind of a sink.
        title: The name that the picture shows.
        text: One line about the part.
        state: ``good``, ``warning`` or ``bad``.
        page: The page that shows more.
    """

    id: str
    kind: str
    title: str
    text: str
    state: str
    page: str


class Flow(NamedTuple):
    """The path between two parts, with its rate and its lag; red if ``is_bad``."""

    begin: str
    end: str
    rate: str
    lag: str
    is_bad: bool


class Topology(NamedTuple):
    """The parts in order, and the flows between them."""

    parts: Sequence[PlatformPart]
    flows: Sequence[Flow]

    def document(self) -> Document:
        """Return the topology in JSON types."""
        return {
            "parts": [part._asdict() for part in self.parts],
            "flows": [flow._asdict() for flow in self.flows],
        }


class Drawing(NamedTuple):
    """A picture: its size, its boxes with their positions, its lines with texts."""

    kind: str
    width: int
    height: int
    boxes: Sequence[dict[str, Any]]
    lines: Sequence[dict[str, Any]]


def topology_of(document: Document, samples: Samples) -> Topology:
    """Return the topology of a status document, with rates from the samples."""
    relay = document["relay"] or {}
    sinks = document["sinks"]
    parts = [*_fixed_parts(document, relay), *map(_sink_part, sinks)]
    return Topology(parts, [*_fixed_flows(document, samples), *_flows(sinks, samples)])


def _fixed_parts(document: Document, relay: Document) -> Iterator[PlatformPart]:
    source = document["source"]
    is_reached = "confirmed_lsn" in relay
    count = len(source["tables"])
    text = "1 table" if count == 1 else f"{count} tables"
    state = "good" if is_reached else "bad"
    yield PlatformPart("source", "source", source["address"], text, state, "source")
    retained = relay.get("retained_bytes")
    yield PlatformPart(
        *("slot", "slot", relay.get("slot", "")),
        "unknown" if retained is None else f"{size_text(retained)} kept",
        _slot_state(source, relay),
        "source",
    )
    is_running = relay.get("active", False)
    text = "running" if is_running else relay.get("halted") or "not running"
    state = "good" if is_running else "bad"
    yield PlatformPart("relay", "relay", "relay", shortened(text), state, "source")
    is_known = any(sink["lag_records"] is not None for sink in document["sinks"])
    state = "good" if is_known or not document["sinks"] else "bad"
    text = "reachable" if is_known else "unknown"
    yield PlatformPart("topics", "topics", "Kafka", text, state, "messages")


def _slot_state(source: Document, relay: Document) -> str:
    retained = relay.get("retained_bytes")
    if retained is None or relay.get("wal_status") in {"unreserved", "lost"}:
        return "bad"
    if retained >= source["critical_bytes"]:
        return "bad"
    return "warning" if retained >= source["warning_bytes"] else "good"


def _sink_part(sink: Document) -> PlatformPart:
    state = "good"
    if sink["parked"] or sink["open_letters"] or sink["refused"] or sink["unfilled"]:
        state = "warning"
    if sink["error"] or not sink["is_alive"] or is_late(sink):
        state = "bad"
    text = sink["error"] or f"{sink['kind']}, {sink['running_state']}"
    name = sink["sink"]
    return PlatformPart(
        f"sink-{name}", sink["kind"], name, shortened(text), state, "sinks"
    )


def _fixed_flows(document: Document, samples: Samples) -> Iterator[Flow]:
    relay, source = document["relay"] or {}, document["source"]
    written = rate_text(samples.rate("source.written_bytes"), size_text)
    is_full = _slot_state(source, relay) == "bad"
    retained = relay.get("retained_bytes")
    kept = "" if retained is None else f"{size_text(retained)} kept"
    yield Flow("source", "slot", written, kept, is_full)
    confirmed = rate_text(samples.rate("slot.confirmed_bytes"), size_text)
    lag = relay.get("lag_bytes")
    behind = "" if lag is None else f"{size_text(lag)} behind"
    yield Flow("slot", "relay", confirmed, behind, not relay.get("active", False))
    published = rate_text(samples.rate("topics.records"), records_text)
    yield Flow("relay", "topics", published, "", not relay.get("active", False))


def _flows(sinks: Sequence[Document], samples: Samples) -> Iterator[Flow]:
    for sink in sinks:
        name = sink["sink"]
        rate = rate_text(samples.rate(f"sink.{name}.records"), records_text)
        is_bad = is_late(sink) or not sink["is_alive"] or bool(sink["error"])
        yield Flow("topics", f"sink-{name}", rate, lag_text(sink), is_bad)


def lag_text(sink: Document) -> str:
    """Return a sink's lag as text."""
    if sink["lag_s"] is None:
        return "lag unknown"
    if not sink["lag_records"]:
        return "up to date"
    return f"{sink['lag_records']:,} behind, {seconds_text(sink['lag_s'])}"


def seconds_text(time_s: float) -> str:
    """Return a duration in its natural unit."""
    if time_s < 1:
        return f"{time_s * _KILO:.0f} ms"
    if time_s < 120:  # noqa: PLR2004 - shorter times are in seconds
        return f"{time_s:.1f}".removesuffix(".0") + " s"
    return f"{time_s / 60:.0f} min"


def size_text(size: float) -> str:
    """Return a number of bytes in its natural unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < _KILO:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _KILO
    return f"{size:.1f} TB"


def records_text(count: float) -> str:
    """Return a number of records as text."""
    return f"{count:,.0f} rec"


def rate_text(rate: float | None, text: Callable[[float], str]) -> str:
    """Return a rate as text, its quantity formatted by ``text``; empty if unknown."""
    return "" if rate is None else f"{text(rate)}/s"


def shortened(text: str, limit: int = 24) -> str:
    """Return a string, shortened to fit into a box."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def wide(topology: Topology) -> Drawing:
    """Lay out the topology from left to right, with the sinks stacked."""
    fixed, sinks = topology.parts[:4], topology.parts[4:]
    rows = max(1, len(sinks))
    height = 2 * _MARGIN + rows * _ROW
    middle = height // 2 - _HEIGHT // 2
    positions = {
        part.id: (_MARGIN + column * (_WIDTH + _GAP), middle)
        for column, part in enumerate(fixed)
    }
    left = _MARGIN + len(fixed) * (_WIDTH + _GAP)
    for row, part in enumerate(sinks):
        top = _MARGIN + row * _ROW + (_ROW - _HEIGHT) // 2
        positions[part.id] = (left + _SINK_GAP, top)
    boxes = [
        part._asdict()
        | {
            "x": positions[part.id][0],
            "y": positions[part.id][1],
            "w": _WIDTH,
            "h": _HEIGHT,
        }
        for part in topology.parts
    ]
    lines = [_across(flow, positions) for flow in topology.flows]
    return Drawing("wide", left + _SINK_GAP + _WIDTH + _MARGIN, height, boxes, lines)


def _across(flow: Flow, positions: dict[str, tuple[int, int]]) -> dict[str, Any]:
    (x1, y1), (x2, y2) = positions[flow.begin], positions[flow.end]
    x1, y1, y2 = x1 + _WIDTH, y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
    bend = x1 + 30
    path = f"M{x1} {y1}H{x2}" if y1 == y2 else f"M{x1} {y1}H{bend}V{y2}H{x2}"
    at = (x1 + x2) // 2 if flow.begin != "topics" else (bend + x2) // 2
    geometry = {"path": path, "x": at, "y": y2, "anchor": "middle"}
    return flow._asdict() | geometry


def tall(topology: Topology) -> Drawing:
    """Lay out the topology from top to bottom, for a narrow screen."""
    step = _TALL_HEIGHT + _TALL_GAP
    positions = {
        part.id: (_MARGIN + (22 if row > 3 else 0), _MARGIN + row * step)  # noqa: PLR2004 - sinks
        for row, part in enumerate(topology.parts)
    }
    boxes = [
        part._asdict()
        | {"x": positions[part.id][0], "y": positions[part.id][1]}
        | {"w": _TALL_WIDTH + _MARGIN - positions[part.id][0], "h": _TALL_HEIGHT}
        for part in topology.parts
    ]
    lines = [_down(flow, positions) for flow in topology.flows]
    height = _MARGIN + len(topology.parts) * step - _TALL_GAP + _MARGIN
    return Drawing("tall", _TALL_WIDTH + 2 * _MARGIN, height, boxes, lines)


def _down(flow: Flow, positions: dict[str, tuple[int, int]]) -> dict[str, Any]:
    (x1, y1), (x2, y2) = positions[flow.begin], positions[flow.end]
    if flow.begin == "topics":
        begin, middle = y1 + _TALL_HEIGHT, y2 + _TALL_HEIGHT // 2
        path = f"M{x1 + 10} {begin}V{middle}H{x2}"
    else:
        path = f"M{x1 + 40} {y1 + _TALL_HEIGHT}V{y2}"
    geometry = {"path": path, "x": x1 + 54, "y": y2 - _TALL_GAP // 2, "anchor": "start"}
    return flow._asdict() | geometry
