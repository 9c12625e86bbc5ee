"""
Transforms: a route's entries change the values of its rows, one entry after another.

The sink and the verifier use the same pure function of a row. It runs on the row as it
was published, merged with the earlier changes of its batch, before columns are left out
and renamed. A column that the row does not have is null. Null stays null: a mask, hash,
cast or template of null is null, and a condition on null is false unless it tests for
null.

A partial change lacks columns that only the target has. If it lacks all inputs of an
output, the output is unchanged. If it lacks only some of them, or lacks columns that
decide whether the row is dropped, nothing can be computed: the row must be read again
(``LacksColumnsError``).

A Python transform is an entry point of the group ``towpath.transforms``: a function
of a row. It gets a dictionary of its own, with the values in the form of the records,
and returns the columns that it writes, or ``None`` if the sink must not have the row.
It must always return the same result for the same row, in the sink's driver, on
executors and in the verifier.

Hot path, once per changed row of a route with transforms.
"""

import hmac
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from importlib.metadata import entry_points
from math import isfinite
from typing import Any, Final, NamedTuple

from towpath.settings import Route
from towpath.settings.syntax import compiled
from towpath.settings.transforms import (
    Condition,
    Transform,
    parse_condition,
    parse_value_template,
    parse_value_type,
)
from towpath.sinks.change import ALL_PRESENT, Row, Value, refuse
from towpath.sinks.changes.casts import cast_to, number_of, plain_text
from towpath.sinks.errors import TransformBrokenError

# The mask's length does not depend on that of the hidden text.
_MASK: Final = "****"


class LacksColumnsError(Exception):
    """A transform needs columns that a partial change does not have."""

    def __init__(self, columns: Iterable[str]) -> None:
        """List the columns in the message."""
        listed = ", ".join(columns)
        super().__init__(f"a transform needs columns that the change lacks: {listed}")


class TransformedRow(NamedTuple):
    """
    A row after its transforms.

    Attributes:
        unchanged: Columns that are unknown here: the target's values are kept.
    """

    row: dict[str, Value]
    unchanged: frozenset[str]


# Changes a row and the set of its unknown columns; returns whether the row is kept.
_Step = Callable[[dict[str, Value], set[str]], bool]
_Compute = Callable[[list[Value]], Value]


class RowTransforms:
    """The transforms of one route."""

    def __init__(self, route: Route, salts: Mapping[str, str]) -> None:
        """
        Compile the transforms.

        Args:
            route: The route.
            salts: The secrets of its hashes, by name.

        Raises:
            TransformBrokenError: A Python function cannot be imported.
        """
        self._steps = [_step(entry, salts) for entry in route.transforms]

    def apply(
        self, row: Row, unchanged: frozenset[str] = ALL_PRESENT
    ) -> TransformedRow | None:
        """
        Return a row after its transforms; ``None`` if the sink must not have it.

        Raises:
            LacksColumnsError: The row must be read again.
            UnreadableError: A value cannot be transformed.
        """
        values, unknown = dict(row), set(unchanged)
        for step in self._steps:
            if not step(values, unknown):
                return None
        return TransformedRow(values, frozenset(unknown))


def _step(entry: Transform, salts: Mapping[str, str]) -> _Step:
    match entry.verb:
        case "rename":
            return _rename(entry.inputs[0], entry.output)
        case "drop_if":
            return _drop_if(entry.drop_if or {})
        case "python":
            return _python(entry)
        case "constant":
            constant: Value = entry.constant
            return _computed((), entry.output, lambda _: constant)
        case "mask":
            compute = _mask(entry)
        case "hash":
            compute = _hash(entry.inputs[0], salts[entry.salt])
        case "cast":
            compute = _cast(entry)
        case _:
            compute = _template(entry)
    return _computed(entry.inputs, entry.output, compute)


def _rename(old: str, new: str) -> _Step:
    def step(row: dict[str, Value], unknown: set[str]) -> bool:
        if old in unknown:
            unknown.remove(old)
            unknown.add(new)
        elif old in row:
            row[new] = row.pop(old)
        return True

    return step


def _computed(inputs: tuple[str, ...], output: str, compute: _Compute) -> _Step:
    """Return a step that computes a column, which is null if any input is null."""

    def step(row: dict[str, Value], unknown: set[str]) -> bool:
        lacking = unknown and [name for name in inputs if name in unknown]
        if lacking:
            if len(lacking) < len(inputs):
                raise LacksColumnsError(lacking)
            row.pop(output, None)
            unknown.add(output)
            return True
        values = [row.get(name) for name in inputs]
        row[output] = None if None in values else compute(values)
        unknown.discard(output)
        return True

    return step


def _mask(entry: Transform) -> _Compute:
    (column,), first, last = entry.inputs, entry.keep_first, entry.keep_last

    def compute(values: list[Value]) -> Value:
        text = plain_text(values[0], column)
        if len(text) <= first + last:
            return _MASK
        return text[:first] + _MASK + text[len(text) - last :]

    return compute


def _hash(column: str, salt: str) -> _Compute:
    key = salt.encode()

    def compute(values: list[Value]) -> Value:
        text = plain_text(values[0], column)
        return hmac.digest(key, text.encode(), "sha256").hex()

    return compute


def _cast(entry: Transform) -> _Compute:
    cast, column = cast_to(parse_value_type(entry.type or "")), entry.inputs[0]
    return lambda values: cast(values[0], column)


def _template(entry: Transform) -> _Compute:
    parts = parse_value_template(entry.template or "")
    first, *following = parts.texts
    indexes = [entry.inputs.index(column) for column in parts.columns]
    pieces = list(zip(indexes, following, strict=True))
    names = entry.inputs

    def compute(values: list[Value]) -> Value:
        texts = list(map(plain_text, values, names))
        return first + "".join([texts[index] + after for index, after in pieces])

    return compute


def _drop_if(conditions: Mapping[str, object]) -> _Step:
    tests = [(c, _test(parse_condition(value))) for c, value in conditions.items()]

    def step(row: dict[str, Value], unknown: set[str]) -> bool:
        lacking = []
        for column, is_true in tests:
            if column in unknown:
                lacking.append(column)
            elif not is_true(row.get(column)):
                return True
        if lacking:
            raise LacksColumnsError(lacking)
        return False

    return step


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
        TransformBrokenError: No package provides the function, or it cannot be
            imported.
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
    """A Python function, and the columns that its route declares for it."""

    def __init__(
        self, name: str, reads: tuple[str, ...], writes: Mapping[str, str]
    ) -> None:
        """
        Import the function.

        Args:
            name: Its entry point.
            reads: The columns that it sees; if empty, all columns.
            writes: The columns that it writes, with their types.

        Raises:
            TransformBrokenError: No package provides the function, or it cannot be
                imported.
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
            UnreadableError: The function fails, or returns an invalid value.
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
                    f"the transform {self._name} changed {column}, which its route "
                    "does not list in writes"
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
        if isinstance(value, float) and not isfinite(value):
            refuse(f"the transform {self._name} returned {value} for {column}")
        if isinstance(value, str) and not _is_encodable(value):
            why = f"text that is not valid Unicode for {column}"
            refuse(f"the transform {self._name} returned {why}")
        return self._casts[column](value, column)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_same(row: Row, column: str, value: object) -> bool:
    return column in row and (row[column] is value or row[column] == value)


def _python(entry: Transform) -> _Step:
    """Return a step that calls a function, which needs all columns that it reads."""
    function = PythonTransform(entry.python or "", entry.reads, entry.writes)
    reads = frozenset(entry.reads)

    def step(row: dict[str, Value], unknown: set[str]) -> bool:
        lacking = sorted(unknown & reads if reads else unknown)
        if lacking:
            raise LacksColumnsError(lacking)
        found = function.call(row)
        if found is None:
            return False
        row.update(found)
        unknown.difference_update(found)
        return True

    return step


def _test(condition: Condition) -> Callable[[Value], bool]:
    first = condition.values[0]
    match condition.operator:
        case "is_null":
            return lambda value: (value is None) is first
        case "below":
            limit = Decimal(repr(first))
            return lambda value: (n := number_of(value)) is not None and n < limit
        case "at_least":
            limit = Decimal(repr(first))
            return lambda value: (n := number_of(value)) is not None and n >= limit
        case "matches":
            pattern = compiled(first)
            return lambda value: (
                isinstance(value, str) and pattern.fullmatch(value) is not None
            )
        case "not":
            is_one = _is_one_of(condition)
            return lambda value: value is not None and not is_one(value)
        case _:
            return _is_one_of(condition)


def _is_one_of(condition: Condition) -> Callable[[Value], bool]:
    """Return a test for membership in a condition's values; numbers match by value."""
    match condition.kind:
        case "number":
            numbers = {number_of(one) for one in condition.values}
            return lambda value: (n := number_of(value)) is not None and n in numbers
        case "boolean":
            return lambda value: isinstance(value, bool) and value in condition.values
        case _:
            return lambda value: isinstance(value, str) and value in condition.values
