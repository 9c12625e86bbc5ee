"""
Transforms in Python: functions of installed packages, found by their entry points.

An entry point of the group ``towpath.transforms`` is a pure function of a row::

    def score(row: dict[str, Value]) -> dict[str, Value] | None

It gets a dictionary of its own, whose values have the form of records, and returns the
columns that it writes, or ``None`` if the sink must not have the row. The route
declares which columns it reads and writes. It must always return the same for the same
row, in the sink's driver, on executors and in the verifier.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from towpath.settings.transforms import parse_value_type
from towpath.sinks.change import Row, Value, refuse
from towpath.sinks.changes.casts import cast_to
from towpath.sinks.errors import TransformBrokenError

TRANSFORMS_GROUP: Final = "towpath.transforms"

RowFunction = Callable[[dict[str, Value]], Any]

_LONGEST_ERROR: Final = 200


def installed_transforms() -> list[str]:
    """List the names of the functions that installed packages provide."""
    return sorted({point.name for point in entry_points(group=TRANSFORMS_GROUP)})


def load_function(name: str) -> RowFunction:
    """
    Import a function by the name of its entry point.

    Raises:
        TransformBrokenError: No package provides it, or it cannot be imported.
    """
    found = [*entry_points(group=TRANSFORMS_GROUP, name=name)]
    if not found:
        message = f"no installed package provides the transform {name}"
        raise TransformBrokenError(message)
    point = found[0]
    try:
        function = point.load()
    except Exception as error:
        message = f"the transform {name} ({point.value}) cannot be imported: {error}"
        raise TransformBrokenError(message) from error
    if not callable(function):
        message = f"the transform {name} ({point.value}) is not a function"
        raise TransformBrokenError(message)
    return function  # type: ignore[no-any-return]  # of another package


class PythonTransform:
    """One function with the columns that its route declares."""

    def __init__(
        self, name: str, reads: tuple[str, ...], writes: Mapping[str, str]
    ) -> None:
        """
        Import the function.

        Args:
            name: Its entry point.
            reads: The columns that it sees; none named: all.
            writes: The columns that it writes, with their types.

        Raises:
            TransformBrokenError: No package provides it, or it cannot be imported.
        """
        self._name = name
        self._reads = reads
        self._function = load_function(name)
        self._casts = {
            column: cast_to(parse_value_type(kind)) for column, kind in writes.items()
        }

    def call(self, row: Row) -> dict[str, Value] | None:
        """
        Return the values of the written columns; ``None`` drops the row.

        Raises:
            UnreadableError: The function fails, or returns what it may not.
        """
        given = {n: row.get(n) for n in self._reads} if self._reads else dict(row)
        try:
            found = self._function(dict(given))
        except Exception as error:  # noqa: BLE001 - of another package
            text = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
            refuse(f"the transform {self._name} failed: {text}")
        if found is None:
            return None
        if not isinstance(found, Mapping):
            refuse(f"the transform {self._name} returned a {type(found).__name__}")
        for column, value in found.items():
            if column not in self._casts and not _is_same(given, column, value):
                refuse(
                    f"the transform {self._name} changed {column}, which is not one of "
                    "its writes"
                )
        return {
            column: self._written(column, found.get(column)) for column in self._casts
        }

    def _written(self, column: str, value: object) -> Value:
        if value is None:
            return None
        if not isinstance(value, str | bool | int | float):
            kind = type(value).__name__
            refuse(f"the transform {self._name} returned a {kind} for {column}")
        return self._casts[column](value, column)


def _is_same(row: Row, column: str, value: object) -> bool:
    return column in row and (row[column] is value or row[column] == value)
