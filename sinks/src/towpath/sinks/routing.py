"""
What a route makes of rows: columns left out, renamed, added, and the row's id.

One rule for all who need it: ``decode`` applies it to records, sinks see tables as it
leaves them, the verifier applies it to the source's own rows. Rows commute with it:
folding and then routing gives what routing and then folding gives. Columns are named as
in the source, except where it says otherwise. Pure.

Hot path, once per record of a route that asks for it: one plan per set of columns.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from towpath.settings import Route, RouteKind
from towpath.settings.key_template import Part, parse_template
from towpath.sinks.change import Row, Value
from towpath.sinks.record import RESERVED_COLUMNS, refuse
from towpath.sinks.relations import Column, RelationShape
from towpath.sinks.values import text_of

_TYPE_OF_CONSTANT: Final[Mapping[type, str]] = {
    str: "text",
    bool: "boolean",
    int: "bigint",
    float: "double precision",
}
# Rows differ in their columns by what they leave out: a few sets of them recur.
_MOST_PLANS: Final = 1000


class Routing:
    """What one route makes of rows."""

    def __init__(self, route: Route) -> None:
        self._include = frozenset(route.include)
        self._exclude = frozenset(route.exclude)
        self._rename: Mapping[str, str] = dict(route.rename)
        self._constants: dict[str, Value] = dict(route.constants)
        self._fields: Mapping[str, str] = route.fields
        self._parts = parse_template(route.key) if route.key else ()
        self._template_columns = tuple(p.column for p in self._parts if p.column)
        self._plans: dict[tuple[str, ...], list[tuple[str, str]]] = {}

    @property
    def constants(self) -> Mapping[str, Value]:
        """The columns that every row has beside its own."""
        return self._constants

    def name(self, column: str) -> str | None:
        """Return a column's name in the sink; ``None`` if it is left out."""
        if column in self._exclude or (self._include and column not in self._include):
            return None
        return self._rename.get(column, column)

    def names(self, columns: Iterable[str]) -> frozenset[str]:
        """Return the names of those columns that are not left out."""
        found = (self.name(column) for column in columns)
        return frozenset(name for name in found if name is not None)

    def row(self, row: Row) -> dict[str, Value]:
        """
        Return a row as the sink has it.

        Raises:
            UnreadableError: Two columns come to one name, or to one of the sink's own.
        """
        columns = tuple(row)
        plan = self._plans.get(columns)
        if plan is None:
            plan = self._plan(columns)
        routed = {new: row[old] for old, new in plan}
        routed.update(self._constants)
        return routed

    def key(
        self, columns: tuple[str, ...], values: tuple[Value, ...]
    ) -> tuple[tuple[str, ...], tuple[Value, ...]]:
        """
        Return the names and values of a row's key as the sink has them.

        The key that a template makes is none of columns: it has no names.

        Raises:
            UnreadableError: The template names other columns than the key has.
        """
        if not self._parts:
            return tuple([self._rename.get(c, c) for c in columns]), values
        if columns != self._template_columns:
            listed = ", ".join(columns)
            refuse(f"the route's key names other columns than the row's key: {listed}")
        left = iter(values)
        return (), tuple([_written(part, left) for part in self._parts])

    def source_key(self, key: tuple[Value, ...]) -> tuple[Value, ...]:
        """
        Return the key in the source, in key order, of a key as the sink has it.

        A template has made texts of its values.
        """
        if not self._parts:
            return key
        return tuple(
            text_of(value)[len(part.before) : -len(part.after) or None]
            for part, value in zip(self._parts, key, strict=True)
            if part.column
        )

    def shape(self, shape: RelationShape) -> RelationShape:
        """Return a table's shape as the sink has it."""
        named = ((column, self.name(column.name)) for column in shape.columns)
        columns = [
            Column(
                name,
                self._fields.get(name, column.type),
                -1 if name in self._fields else column.typmod,
                column.nullable,
                column.is_object,
            )
            for column, name in named
            if name is not None
        ]
        columns += [
            Column(name, _TYPE_OF_CONSTANT[type(value)], nullable=False)
            for name, value in self._constants.items()
        ]
        key = tuple(self._rename.get(name, name) for name in shape.key)
        return RelationShape(
            shape.schema, shape.table, tuple(columns), key, shape.position
        )

    def _plan(self, columns: tuple[str, ...]) -> list[tuple[str, str]]:
        named = ((column, self.name(column)) for column in columns)
        plan = [(column, name) for column, name in named if name is not None]
        names = {name for _, name in plan}
        if len(names) < len(plan) or not names.isdisjoint(self._constants):
            refuse("two columns come to one name by the route's renames and constants")
        if not names.isdisjoint(RESERVED_COLUMNS):
            refuse("a column has a name that sinks keep for themselves")
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        self._plans[columns] = plan
        return plan


def routing_of(route: Route) -> Routing | None:
    """Return what a route makes of rows; ``None`` if it leaves them as they are."""
    changes = (
        *(route.include, route.exclude, route.rename, route.constants),
        *(route.key, route.fields),
    )
    return Routing(route) if route.kind is RouteKind.TABLE and any(changes) else None


def _written(part: Part, values: Iterator[Value]) -> str:
    """Write a part of an id; a column takes the next value."""
    if not part.column:
        return part.before
    return part.before + text_of(next(values)) + part.after
