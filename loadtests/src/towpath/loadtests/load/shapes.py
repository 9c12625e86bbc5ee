"""
Rates over time: the shapes of a load, and the due times of its arrivals.

A shape is a table of points with straight lines between them. Each point is a second
and a factor of ``--load-rate``::

    meaning = "Ten minutes at the rate, with one minute at fourteen times that."
    points = [[0, 1], [300, 1], [300, 14], [360, 14], [360, 1], [600, 1]]

The streams share the arrivals equally: with n streams, a stream's next arrival is due
when the shape has produced n more arrivals. So the due times follow from the shape
alone, never from a response, and a late arrival does not delay later ones. The run ends
at the last point.
"""

import math
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from towpath.loadtests.errors import LoadOptionError

# A greenlet scheduler is a few milliseconds late at best.
TOLERATED_S: Final = 0.05

Point = tuple[float, float]

_FOLDER: Final = "shapes"
_SUFFIX: Final = ".toml"
_PACKAGE: Final = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Shape:
    """
    A rate over time.

    Attributes:
        points: Pairs of the seconds since the start, ascending from 0, and the factor
            of the rate at that time. Between two points the factor changes linearly.
    """

    points: tuple[Point, ...]

    @property
    def duration_s(self) -> float:
        """The time of the last point."""
        return self.points[-1][0]

    @property
    def highest(self) -> float:
        """The largest factor."""
        return max(factor for _, factor in self.points)

    def factor(self, at_s: float) -> float:
        """Return the factor at a time; after the last point, the last factor."""
        for (from_s, low), (to_s, high) in pairwise(self.points):
            if at_s < to_s:
                share = (at_s - from_s) / (to_s - from_s)
                return low + (high - low) * share
        return self.points[-1][1]

    def after(self, at_s: float, amount: float) -> float:
        """
        Return the time at which the area under the shape has grown by an amount.

        Args:
            at_s: The time from which the area is measured.
            amount: The area, in factor times seconds: arrivals divided by the rate.

        Returns:
            Seconds since the start; infinity if there are no more arrivals.
        """
        for (_, _), (to_s, high) in pairwise(self.points):
            if to_s <= at_s:
                continue
            low = self.factor(at_s)
            area = (low + high) / 2 * (to_s - at_s)
            if area >= amount:
                return at_s + _reached(low, (high - low) / (to_s - at_s), amount)
            at_s, amount = to_s, amount - area
        last = self.points[-1][1]
        return at_s + amount / last if last else math.inf


def _reached(level: float, slope: float, amount: float) -> float:
    """Return the ``t`` at which ``level * t + slope * t * t / 2`` reaches an amount."""
    root = math.sqrt(max(0.0, level * level + 2 * slope * amount))
    # This form does not subtract almost equal numbers when the line is nearly flat.
    return 2 * amount / (level + root) if amount else 0.0


STEADY: Final = Shape(((0.0, 1.0),))


class Schedule:
    """The due times of one stream of arrivals."""

    def __init__(self, first_due_s: float) -> None:
        self.due_s = first_due_s

    def lateness_s(self, now_s: float) -> float:
        """Return how late the current arrival is; 0 within the tolerance."""
        late_s = now_s - self.due_s
        return late_s if late_s > TOLERATED_S else 0.0

    def next_in_s(self, now_s: float, interval_s: float) -> float:
        """Advance to the next arrival; return the seconds until then."""
        self.due_s += interval_s
        return max(0.0, self.due_s - now_s)


def shape_files() -> dict[str, Path]:
    """Return the files of the included shapes by name, from a clone or the package."""
    in_clone = _PACKAGE.parents[2] / _FOLDER
    folder = in_clone if in_clone.is_dir() else _PACKAGE / _FOLDER
    return {path.stem: path for path in sorted(folder.glob(f"*{_SUFFIX}"))}


def read_shape(named: str) -> Shape:
    """
    Read an included shape by its name, or a shape from a file.

    Raises:
        LoadOptionError: There is no such shape or file, or it is malformed.
    """
    known = shape_files()
    path = known.get(named) or Path(named)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        message = (
            f"--load-shape: {named!r} is neither a file nor one of {', '.join(known)}"
        )
        raise LoadOptionError(message) from error
    except (OSError, ValueError) as error:
        message = f"--load-shape: {path}: {error}"
        raise LoadOptionError(message) from error
    return Shape(points_of(document.get("points"), path))


def points_of(found: object, path: Path) -> tuple[Point, ...]:
    """
    Check the points of a shape, and return them.

    Raises:
        LoadOptionError: The points do not describe a shape.
    """
    points = found if isinstance(found, list) else []
    if not all(map(_is_point, points)) or not _is_line(points):
        message = (
            f"--load-shape: {path}: points must be pairs of a second and a factor of 0 "
            "or more, in ascending order from second 0; the last second and at least "
            "one factor must be above 0"
        )
        raise LoadOptionError(message)
    return tuple((float(at_s), float(factor)) for at_s, factor in points)


def _is_point(found: object) -> bool:
    match found:
        case [at_s, factor]:
            return _is_amount(at_s) and _is_amount(factor)
        case _:
            return False


def _is_amount(found: object) -> bool:
    if isinstance(found, bool) or not isinstance(found, int | float):
        return False
    # A whole number may be too large for a float.
    return 0 <= found <= sys.float_info.max


def _is_line(points: Sequence[Any]) -> bool:
    times = [at_s for at_s, _ in points]
    is_in_order = len(times) > 1 and times[0] == 0 and times == sorted(times)
    return is_in_order and times[-1] > 0 and any(factor for _, factor in points)
