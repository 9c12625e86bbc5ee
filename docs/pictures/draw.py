"""
Draws the pictures of the documentation: each source here becomes ``NAME.svg``.

``make docs`` runs this; ``tests/unit/docs/test_pictures.py`` compares the committed
pictures with their sources. ``NAME.toml`` lists boxes (id, kind, x, y, width, height,
lines of text) and arrows (from ``id.side``, to ``id.side``, label). Numbers are pixels.
The colors follow the reader's scheme, light or dark. ``NAME.json`` becomes the plot
that a command's ``--plot`` draws: it is a document that ``towpath demo compare --json``
printed, or it contains the lines of the table of ``towpath bench all``.
"""

import html
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from towpath.loadtests.bench import summary
from towpath.loadtests.capture.result import plot

FOLDER: Final = Path(__file__).parent
KINDS: Final = ("service", "process", "store", "topic", "target", "step", "group")
# Widths of letters differ between fonts; these exceed the averages of common fonts.
_NAME_LETTER_PX: Final = 8.0
_LETTER_PX: Final = 6.4
_CORNER: Final = 8

_STYLE: Final = """\
svg { color-scheme: light dark; font-family: system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; }
.page { fill: #ffffff; stroke: #d8dee4; }
.box { stroke-width: 1.4; }
.service { fill: #eaf1ff; stroke: #5b7fc7; }
.process { fill: #e6f6ec; stroke: #3f9561; }
.store { fill: #fff3dc; stroke: #c28a26; }
.topic { fill: #f1ebfc; stroke: #8563c4; }
.target { fill: #ffe9e4; stroke: #c96a50; }
.step { fill: #f4f6f8; stroke: #8793a0; }
.group { fill: none; stroke: #8793a0; stroke-dasharray: 5 4; }
.name { fill: #1f2937; font-size: 14px; font-weight: 600; }
.text { fill: #46525f; font-size: 12px; }
.line { fill: none; stroke: #66727f; stroke-width: 1.5; }
.head { fill: #66727f; }
.label { fill: #46525f; font-size: 12px; stroke: #ffffff; stroke-width: 5px;
  stroke-linejoin: round; paint-order: stroke; }
@media (prefers-color-scheme: dark) {
  .page { fill: #0f151c; stroke: #2b3440; }
  .service { fill: #16243f; stroke: #7ea2ec; }
  .process { fill: #12301f; stroke: #5fbd84; }
  .store { fill: #36280c; stroke: #dcab52; }
  .topic { fill: #271c3f; stroke: #a98ae6; }
  .target { fill: #3d1d15; stroke: #e68d74; }
  .step { fill: #1b232d; stroke: #748190; }
  .group { stroke: #748190; }
  .name { fill: #f0f4f8; }
  .text { fill: #b7c2ce; }
  .line { stroke: #93a0ad; }
  .head { fill: #93a0ad; }
  .label { fill: #c5d0db; stroke: #0f151c; }
}"""

Point = tuple[float, float]


class PictureError(Exception):
    """A source cannot be drawn; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with text, whose first line is the name."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]

    def anchor(self, side: str) -> Point:
        """Return the middle of a side; ``left+12`` is 12 pixels further along it."""
        name, _, shift = side.partition("+") if "+" in side else side.partition("-")
        along = float(shift or 0) * (-1 if "-" in side else 1)
        middle_x, middle_y = self.x + self.width / 2, self.y + self.height / 2
        points = {
            "left": (self.x, middle_y + along),
            "right": (self.x + self.width, middle_y + along),
            "top": (middle_x + along, self.y),
            "bottom": (middle_x + along, self.y + self.height),
        }
        return points[name]


def draw(source: str) -> str:
    """
    Make the SVG of a picture's source.

    Raises:
        PictureError: A kind is unknown, or text is wider than its box.
    """
    picture = tomllib.loads(source)
    boxes = {row[0]: _box(row) for row in picture["boxes"]}
    width, height = picture["size"]
    title = html.escape(picture["title"])
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" role="img" aria-label="{title}">'
    )
    page = f'width="{width - 1}" height="{height - 1}" rx="10"'
    parts = [
        opening,
        f"<title>{title}</title>",
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="page" x="0.5" y="0.5" {page}/>',
        *(part for box in boxes.values() for part in _drawn_box(box)),
        *(part for row in picture["arrows"] for part in _drawn_arrow(row, boxes)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def sources() -> list[Path]:
    """List the sources of all pictures."""
    return sorted([*FOLDER.glob("*.toml"), *FOLDER.glob("*.json")])


def drawn(source: Path) -> str:
    """
    Make the SVG of a source according to its kind.

    Raises:
        PictureError: The source cannot be drawn.
    """
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".toml":
        return draw(text)
    document = json.loads(text)
    if "lines" in document:
        return summary.plot([summary.Line(**line) for line in document["lines"]])
    return plot(document)


def _box(row: list[Any]) -> Box:
    identifier, kind, x, y, width, height, *lines = row
    if kind not in KINDS:
        message = f"{identifier}: unknown kind {kind}; known: {', '.join(KINDS)}"
        raise PictureError(message)
    for number, line in enumerate(lines):
        letter = _LETTER_PX if number else _NAME_LETTER_PX
        if len(line) * letter > width - 6:
            message = f"{identifier}: too wide for {width} pixels: {line}"
            raise PictureError(message)
    return Box(kind, x, y, width, height, tuple(lines))


def _drawn_box(box: Box) -> Iterator[str]:
    yield (
        f'<rect class="box {box.kind}" x="{box.x:g}" y="{box.y:g}"'
        f' width="{box.width:g}" height="{box.height:g}" rx="{_CORNER}"/>'
    )
    is_group = box.kind == "group"
    text_height = 18 * len(box.lines)
    first = box.y + (22 if is_group else (box.height - text_height) / 2 + 14)
    x = box.x + (12 if is_group else box.width / 2)
    anchor = "start" if is_group else "middle"
    for number, line in enumerate(box.lines):
        style = "text" if number else "name"
        yield (
            f'<text class="{style}" x="{x:g}" y="{first + 18 * number:g}"'
            f' text-anchor="{anchor}">{html.escape(line)}</text>'
        )


def _drawn_arrow(row: list[str], boxes: dict[str, Box]) -> Iterator[str]:
    start, end, *label = row
    points = _path(start, end, boxes)
    yield f'<path class="line" d="{_rounded(points)}"/>'
    yield f'<path class="head" d="{_head(points[-2], points[-1])}"/>'
    if label:
        yield from _label(points, label[0])


def _path(start: str, end: str, boxes: dict[str, Box]) -> list[Point]:
    """Return the points of a path from side to side, with right angles only."""
    (first, side), (last, other) = start.split("."), end.split(".")
    (x1, y1), (x2, y2) = boxes[first].anchor(side), boxes[last].anchor(other)
    if x1 == x2 or y1 == y2:
        return [(x1, y1), (x2, y2)]
    leaves_sideways = side.startswith(("left", "right"))
    arrives_sideways = other.startswith(("left", "right"))
    if leaves_sideways and arrives_sideways:
        middle = (x1 + x2) / 2
        return [(x1, y1), (middle, y1), (middle, y2), (x2, y2)]
    if leaves_sideways:
        return [(x1, y1), (x2, y1), (x2, y2)]
    if arrives_sideways:
        return [(x1, y1), (x1, y2), (x2, y2)]
    middle = (y1 + y2) / 2
    return [(x1, y1), (x1, middle), (x2, middle), (x2, y2)]


def _rounded(points: list[Point]) -> str:
    """Write a path whose inner corners are rounded; it ends inside the arrowhead."""
    parts = [f"M{points[0][0]:g} {points[0][1]:g}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        radius = min(
            _CORNER, _distance(before, corner) / 2, _distance(corner, after) / 2
        )
        (x1, y1), (x2, y2) = (
            _towards(corner, before, radius),
            _towards(corner, after, radius),
        )
        parts.append(f"L{x1:g} {y1:g}Q{corner[0]:g} {corner[1]:g} {x2:g} {y2:g}")
    x, y = _towards(points[-1], points[-2], 6)
    return "".join([*parts, f"L{x:g} {y:g}"])


def _head(before: Point, tip: Point) -> str:
    x, y = _towards(tip, before, 9)
    is_level = before[1] == tip[1]
    across = (0.0, 4.5) if is_level else (4.5, 0.0)
    return (
        f"M{tip[0]:g} {tip[1]:g}L{x + across[0]:g} {y + across[1]:g}"
        f"L{x - across[0]:g} {y - across[1]:g}Z"
    )


def _label(points: list[Point], text: str) -> Iterator[str]:
    """Write the label over the middle of the longest segment; ``|`` breaks the line."""
    segments = list(pairwise(points))
    (x1, y1), (x2, y2) = max(segments, key=lambda ends: _distance(*ends))
    lines = text.split("|")
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    is_level = y1 == y2
    first = (
        y - 7 - 15 * (len(lines) - 1) if is_level else y + 4 - 7.5 * (len(lines) - 1)
    )
    for number, line in enumerate(lines):
        yield (
            f'<text class="label" x="{x:g}" y="{first + 15 * number:g}"'
            f' text-anchor="middle">{html.escape(line)}</text>'
        )


def _distance(one: Point, other: Point) -> float:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def _towards(point: Point, other: Point, by: float) -> Point:
    """Move a point some pixels toward another point in its row or column."""
    whole = _distance(point, other) or 1
    return (
        point[0] + (other[0] - point[0]) / whole * by,
        point[1] + (other[1] - point[1]) / whole * by,
    )


def main() -> None:
    """Draw every picture."""
    for source in sources():
        source.with_suffix(".svg").write_text(drawn(source), encoding="utf-8")


if __name__ == "__main__":
    main()
