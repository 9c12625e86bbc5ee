"""
Routing: from topics to routes, and from a route's rows to the rows in the sink.

A routing drops, renames and adds columns, and builds the id. The same code is used
everywhere: ``decode`` applies it to records, sinks see the shapes of tables through it,
and the verifier applies it to the source's rows. Folding and routing commute. The rows
of a route with transforms are routed after they are folded and transformed, because
transforms need the values that a fold merges. Columns have their source names unless
stated otherwise. No I/O.

The route of a table or an aggregate reads its topic, and the topic with the snapshots
for this sink only. The topic of an event log's route may end in ``*``: it matches every
topic with that prefix except backfills, including topics created later. Several
routes may read one topic, each for a different destination in the sink. A topic that a
route names is read by no route whose topic ends in ``*``.

Hot path, once per record of a route with a routing: one plan per set of columns.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final, NamedTuple

from towpath.schemas.topics import BACKFILL, backfill_topic, is_backfill
from towpath.settings import Route, RouteKind, Sink
from towpath.settings.routes import KeyPart, parse_template
from towpath.sinks.change import RESERVED_COLUMNS, Row, Value, refuse
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.changes.transformed_columns import (
    TYPE_OF_CONSTANT,
    TransformedColumns,
    transformed_columns,
)
from towpath.sinks.changes.transforms import RowTransforms
from towpath.sinks.key_text import text_of

# Rows have few distinct sets of columns: they differ only in their unchanged columns.
_MOST_PLANS: Final = 1000


class Routing:
    """The mapping of one route's rows."""

    def __init__(self, route: Route) -> None:
        self._include = frozenset(route.include)
        self._exclude = frozenset(route.exclude)
        self._rename: Mapping[str, str] = dict(route.rename)
        self._constants: dict[str, Value] = dict(route.constants)
        self._fields: Mapping[str, str] = route.fields
        self._transforms = route.transforms
        self._parts = parse_template(route.key) if route.key else ()
        self._template_columns = tuple(p.column for p in self._parts if p.column)
        self._plans: dict[tuple[str, ...], list[tuple[str, str]]] = {}

    @property
    def constants(self) -> Mapping[str, Value]:
        """The constant columns that the route adds to every row."""
        return self._constants

    @property
    def is_after_transforms(self) -> bool:
        """Whether it applies to rows that transforms have changed."""
        return bool(self._transforms)

    def transformed(
        self, columns: Iterable[Column], key: tuple[str, ...] = ()
    ) -> TransformedColumns:
        """Return the columns of a table after the route's transforms."""
        return transformed_columns(self._transforms, columns, key)

    def is_used(self, column: str, columns: Iterable[Column]) -> bool:
        """Return whether a published column affects the rows in the sink."""
        transformed = self.transformed(columns)
        return column in transformed.deciding or any(
            column in one.inputs and self.name(one.name) is not None
            for one in transformed.columns
        )

    def name(self, column: str) -> str | None:
        """Return a column's name in the sink; ``None`` if it is left out."""
        if column in self._exclude or (self._include and column not in self._include):
            return None
        return self._rename.get(column, column)

    def names(self, columns: Iterable[str]) -> frozenset[str]:
        """Return the names in the sink of those columns that are not left out."""
        found = (self.name(column) for column in columns)
        return frozenset(name for name in found if name is not None)

    def row(self, row: Row) -> dict[str, Value]:
        """
        Return a row as the sink has it.

        Raises:
            UnreadableError: Two columns map to one name, or one to a reserved name.
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

        A key built from a template has no column names.

        Raises:
            UnreadableError: The template does not name the key's columns in key order.
        """
        if not self._parts:
            return tuple([self._rename.get(c, c) for c in columns]), values
        if columns != self._template_columns:
            listed = ", ".join(columns)
            refuse(
                f"the route's key must name the row's key columns in order: {listed}"
            )
        left = iter(values)
        return (), tuple([_format_part(part, left) for part in self._parts])

    def source_key(self, key: tuple[Value, ...]) -> tuple[Value, ...]:
        """
        Return the source's key values for a key in the sink, in key order.

        The values of a key built from a template are text.

        Raises:
            ValueError: The key does not have as many parts as the template.
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
        columns = [
            Column(
                name,
                self._fields.get(name, each.column.type),
                -1 if name in self._fields else each.column.typmod,
                each.column.nullable,
                each.column.is_object,
            )
            for each in self.transformed(shape.columns).columns
            if (name := self.name(each.name)) is not None
        ]
        columns += [
            Column(name, TYPE_OF_CONSTANT[type(value)], nullable=False)
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
            refuse("the route's renames and constants give two columns one name")
        if not names.isdisjoint(RESERVED_COLUMNS):
            refuse("a column has a name that sinks reserve")
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        self._plans[columns] = plan
        return plan


def routing_of(route: Route) -> Routing | None:
    """Return a route's routing; ``None`` if it leaves rows as they are."""
    changes = (
        *(route.include, route.exclude, route.rename, route.constants),
        *(route.key, route.fields, route.transforms),
    )
    return Routing(route) if route.kind is RouteKind.TABLE and any(changes) else None


def _format_part(part: KeyPart, values: Iterator[Value]) -> str:
    """Format a part of an id; a column takes the next value."""
    if not part.column:
        return part.before
    return part.before + text_of(next(values)) + part.after


_ANY: Final = "*"


class Reading(NamedTuple):
    """A route that reads a topic; ``routing`` is ``None`` if rows are not mapped."""

    route: Route
    routing: Routing | None


class Routes:
    """The routes of one sink, found by topic."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._by_topic: dict[str, tuple[Reading, ...]] = {}
        self.has_transforms = any(route.transforms for route in sink.route)
        self._routings = {route.name: routing_of(route) for route in sink.route}
        for route in sink.route:
            reading = Reading(route, self._routings[route.name])
            for topic in _exact_topics(route, sink.name):
                self._by_topic[topic] = (*self._by_topic.get(topic, ()), reading)
        self._open_ended = [r for r in sink.route if r.topic.endswith(_ANY)]

    @property
    def sink_name(self) -> str:
        """The name of the sink."""
        return self._sink.name

    @cached_property
    def transforms(self) -> Mapping[str, RowTransforms]:
        """The transforms of the routes that have any, by the route's name."""
        return {
            route.name: RowTransforms(route, self._sink.hash_salts)
            for route in self._sink.route
            if route.transforms
        }

    def routing(self, name: str) -> Routing | None:
        """Return the routing of a route, given its name."""
        return self._routings[name]

    @property
    def pattern(self) -> str:
        """
        A regular expression that matches exactly the topics of the sink.

        Java and Python interpret it in the same way. The engine searches for it
        anywhere in a name, so it is anchored: other sinks' backfill topics begin with
        the table topic's name.
        """
        exact = [re.escape(topic) for topic in sorted(self._by_topic)]
        open_ended = [
            f"(?!.*{re.escape(BACKFILL)}){re.escape(r.topic.removesuffix(_ANY))}.*"
            for r in self._open_ended
        ]
        return f"^(?:{'|'.join([*exact, *open_ended])})$"

    @property
    def exact(self) -> tuple[str, ...]:
        """The topics that routes name without ``*``, and their backfill topics."""
        return tuple(self._by_topic)

    def reading(self, topic: str) -> tuple[Reading, ...]:
        """Return the routes that read a topic."""
        try:
            return self._by_topic[topic]
        except KeyError:
            return self._search(topic)

    def of(self, topic: str) -> Route | None:
        """Return the first route that reads a topic."""
        found = self.reading(topic)
        return found[0].route if found else None

    def matching(self, topics: Iterable[str]) -> list[str]:
        """Return the topics that the sink reads, sorted."""
        return sorted(topic for topic in topics if self.reading(topic))

    def _search(self, topic: str) -> tuple[Reading, ...]:
        if is_backfill(topic):
            return ()
        return tuple(
            Reading(route, None)
            for route in self._open_ended
            if topic.startswith(route.topic.removesuffix(_ANY))
        )


def _exact_topics(route: Route, sink: str) -> list[str]:
    if route.topic.endswith(_ANY):
        return []
    if route.kind is RouteKind.EVENT_LOG:
        return [route.topic]
    return [route.topic, backfill_topic(route.topic, sink)]
