"""
The columns of a table after a route's transforms, and mistakes in the transforms.

A route that does not fit its table is found before the sink starts: unknown columns,
columns of the key that would change, and values that no cast can convert. No I/O.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from towpath.settings.mistakes import did_you_mean
from towpath.settings.transforms import (
    Condition,
    Transform,
    parse_condition,
    parse_value_type,
)
from towpath.sinks.changes.casts import FLOATS, INTEGERS
from towpath.sinks.changes.relations import Column

TYPE_OF_CONSTANT: Final[Mapping[type, str]] = MappingProxyType(
    {str: "text", bool: "boolean", int: "bigint", float: "double precision"}
)

_NUMBERS: Final = frozenset({*INTEGERS, *FLOATS, "numeric", "oid"})
_TIMES: Final = frozenset(
    {"date", "timestamp with time zone", "timestamp without time zone"}
)
# For each type, the source types that no route may cast to it: no value can be cast, or
# only by guessing, for example the time zone of a date.
_IMPOSSIBLE: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        **dict.fromkeys(INTEGERS, frozenset({*_TIMES, "uuid", "bytea"})),
        **dict.fromkeys(
            ("numeric", "double precision"),
            frozenset({*_TIMES, "uuid", "bytea", "boolean"}),
        ),
        "boolean": frozenset({*_TIMES, *FLOATS, "numeric", "uuid", "bytea"}),
        "date": frozenset({*_NUMBERS, "boolean", "uuid", "bytea"}),
        "timestamp with time zone": frozenset(
            {*_NUMBERS, "boolean", "uuid", "bytea", "date"}
        ),
        "uuid": frozenset({*_NUMBERS, *_TIMES, "boolean", "bytea"}),
    }
)
_KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {"text": "text in quotes", "number": "a number", "boolean": "true or false"}
)
_TYPMOD_OFFSET: Final = 4


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """
    A column after the transforms.

    Attributes:
        column: Its name and type.
        source: The published column whose values it has; empty if it is computed.
        inputs: The published columns that determine its values.
    """

    column: Column
    source: str
    inputs: frozenset[str]

    @property
    def name(self) -> str:
        """The column's name."""
        return self.column.name


@dataclass(frozen=True, slots=True)
class TransformedColumns:
    """
    The columns of a table after a route's transforms.

    Attributes:
        deciding: The published columns that decide whether the sink has a row.
        mistakes: Sentences about entries that do not fit the table.
    """

    columns: tuple[OutputColumn, ...]
    deciding: frozenset[str]
    mistakes: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [one.name for one in self.columns]


def transformed_columns(
    transforms: Sequence[Transform], columns: Iterable[Column], key: Sequence[str] = ()
) -> TransformedColumns:
    """
    Follow the columns of a table through transforms.

    Args:
        transforms: The entries of the route.
        columns: The published columns.
        key: The columns of the key, which must not change.
    """
    found = {
        column.name: OutputColumn(column, column.name, frozenset({column.name}))
        for column in columns
    }
    deciding: frozenset[str] = frozenset()
    mistakes = []
    for number, entry in enumerate(transforms):
        wrong = [*_mistakes(entry, found, key)]
        mistakes += [f"transforms.{number}: {entry.verb}: {one}" for one in wrong]
        names = entry.inputs or (found if entry.python is not None else ())
        read = [found[name] for name in names if name in found]
        inputs = frozenset[str]().union(*(one.inputs for one in read))
        if entry.drop_if is not None or entry.python is not None:
            deciding |= inputs
        if entry.rename is None:
            for made in _computed(entry):
                found[made.name] = OutputColumn(made, "", inputs)
        elif entry.rename in found:
            moved = found.pop(entry.rename)
            column = replace(moved.column, name=entry.output)
            found[entry.output] = replace(moved, column=column)
    return TransformedColumns(tuple(found.values()), deciding, tuple(mistakes))


def _computed(entry: Transform) -> Iterator[Column]:
    """Yield the columns that an entry computes."""
    if entry.constant is not None:
        kind = TYPE_OF_CONSTANT[type(entry.constant)]
        yield Column(entry.output, kind, nullable=False)
        return
    types = entry.writes or dict.fromkeys(entry.outputs, entry.type or "text")
    for name, text in types.items():
        kind, precision, scale = parse_value_type(text)
        typmod = (precision << 16 | scale) + _TYPMOD_OFFSET
        yield Column(name, kind, typmod if precision else -1)


def _mistakes(
    entry: Transform, columns: Mapping[str, OutputColumn], key: Sequence[str]
) -> Iterator[str]:
    for name in entry.inputs:
        if name not in columns:
            yield f"no column {name}{did_you_mean(name, columns)}"
    for name in key:
        if name in {entry.rename, *entry.outputs}:
            yield (
                f"{name} is a column of the key, by which the sink finds rows: leave "
                "it as it is, and write to a different column"
            )
    if entry.rename is not None and entry.output in columns:
        yield f"there is already a column {entry.output}"
    for column in (columns[n].column for n in entry.inputs if n in columns):
        yield from _input_mistakes(entry, column)


def _input_mistakes(entry: Transform, column: Column) -> Iterator[str]:
    """Yield the reasons why an entry cannot read a column."""
    if entry.drop_if is not None:
        yield from _condition_mistakes(column, entry.drop_if[column.name])
    elif entry.rename is None and entry.python is None and _is_nested(column):
        yield f"{column.name} is {column.type}, which is not a single value"
    elif entry.type is not None:
        kind = parse_value_type(entry.type).name
        if column.type in _IMPOSSIBLE.get(kind, ()):
            yield f"{column.name} is {column.type}, which cannot be cast to {kind}"


def _condition_mistakes(column: Column, value: object) -> Iterator[str]:
    condition = parse_condition(value)
    kind = _kind(column)
    if condition.kind and condition.kind != kind:
        yield f"{column.name} is {column.type}: {_remedy(condition, kind)}"


def _remedy(condition: Condition, kind: str) -> str:
    if condition.operator in {"below", "at_least", "matches"}:
        return f"{condition.operator} needs a column of {condition.kind}s"
    if kind not in _KINDS:
        return "only is_null can be applied to it"
    return f"compare it with {_KINDS[kind]}"


def _kind(column: Column) -> str:
    """Return the kind of value with which a column is compared."""
    if _is_nested(column):
        return "nested"
    if column.type in _NUMBERS:
        return "number"
    return "boolean" if column.type == "boolean" else "text"


def _is_nested(column: Column) -> bool:
    return column.is_object or column.type.endswith("[]")
