"""
Requests rows whose columns were altered without a change in the stream.

A column that is added with a default, renamed or retyped alters every row, and the
stream carries none of these rows. The relay announces a table's new shape before its
next row. So each batch first compares the announced shapes with the stored ones, and
requests the rows that have a value in an altered column. Until they are applied, the
route counts as lacking rows (``incomplete``).

The request is sent before the new shape is stored and before the batch is written:
after a crash in between, it is repeated, and no partial change is merged with a row
that lacks a column unless that row has been requested.

A column without a value in any old row, such as one added without a default, costs one
query of the table and delivers nothing. A target with typed columns cannot accept
values of a different type: no rows are requested, and a log record names the command to
run.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

import structlog

from towpath.schemas.clock import Clock
from towpath.settings import Route, RouteKind
from towpath.sinks.apply.batch import BatchResult
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.changes.routing import routing_of
from towpath.sinks.engine.query import BatchRows, QueryPlan
from towpath.sinks.engine.recovery import append_recovery
from towpath.sinks.kinds import kind_of
from towpath.sinks.ports import Repairs
from towpath.sinks.state import incomplete
from towpath.sinks.state.files import JsonFile
from towpath.sinks.state.progress import sink_folder

SHAPES_FILE: Final = "shapes.json"
COLUMNS_ALTERED: Final = "columns_altered"

# Retyping between these does not rewrite a table, and values keep their text.
_TEXTS: Final = frozenset({"text", "character varying"})

_log = structlog.get_logger("towpath.sinks")


class AnnouncedShapes(Protocol):
    """The shapes that the relay has announced so far."""

    def refresh(self) -> None:
        """
        Read new announcements.

        Raises:
            UnavailableError: The broker cannot be reached now.
        """

    def known(self, topic: str) -> RelationShape | None:
        """Return the newest shape of a topic's table, if one was announced."""

    def close(self) -> None:
        """Close the connection."""


class NoAnnouncedShapes:
    """Shapes for a supervisor without a broker."""

    def refresh(self) -> None:
        """Do nothing."""

    def known(self, _topic: str) -> None:
        """Return None: no shape is known."""

    def close(self) -> None:
        """Do nothing: there is no connection."""


class ColumnChanges:
    """The stored shapes of one sink's rows, route by route."""

    def __init__(
        self,
        plan: QueryPlan,
        announced: AnnouncedShapes,
        repairs: Repairs,
        clock: Clock,
    ) -> None:
        """Load the stored shapes; nothing is requested yet."""
        self._sink = plan.sink
        self._state_folder = plan.state_folder
        self._folder = sink_folder(plan.state_folder, plan.sink.name)
        self._routes = [r for r in plan.sink.route if r.kind is RouteKind.TABLE]
        self._announced = announced
        self._repairs = repairs
        self._clock = clock
        self._file = JsonFile[Mapping[str, Any]](self._folder / SHAPES_FILE)
        names = {route.name for route in self._routes}
        self._known = {n: kept for n, kept in self._file.read().items() if n in names}
        self._seen: dict[str, RelationShape] = {}

    def check(self) -> None:
        """
        Request the rows of each altered table; called before each batch.

        Raises:
            UnavailableError: The broker does not answer; the new shapes are not stored.
        """
        self._announced.refresh()
        for route in self._routes:
            shape = self._announced.known(route.topic)
            if shape is not None and shape is not self._seen.get(route.name):
                self._compare(route, shape)
                self._seen[route.name] = shape

    def _compare(self, route: Route, shape: RelationShape) -> None:
        """Request the rows with altered columns; a first shape is only stored."""
        now = {column.name: _form(column) for column in shape.columns}
        kept = self._known.get(route.name, {"columns": now, "filling": {}})
        before: Mapping[str, str] = kept["columns"]
        filling, again = self._still_filling(route.name, kept["filling"], now)
        altered = [c for c in shape.columns if before.get(c.name) != now[c.name]]
        requested = [
            column
            for column in shape.columns
            if column.name in again
            or (column in altered and self._can_fill(route, column, shape, before))
        ]
        if requested:
            filling |= self._request(route, requested)
        for snapshot_id in kept["filling"].keys() - filling.keys():
            incomplete.end(self._state_folder, self._sink.name, route.name, snapshot_id)
        self._known[route.name] = {"columns": now, "filling": filling}
        self._file.keep(self._known)

    def _still_filling(
        self, route: str, filling: Mapping[str, list[str]], now: Mapping[str, str]
    ) -> tuple[dict[str, list[str]], set[str]]:
        """
        Return the running snapshots, and the columns to be read again.

        A snapshot fails if a column that it reads is dropped meanwhile.
        """
        noted = incomplete.noted(self._state_folder, self._sink.name, [route])
        running = {s: filling[s] for _, s in noted if s in filling}
        failed = {s for s, names in running.items() if not now.keys() >= set(names)}
        again = {name for s in failed for name in running[s]}
        return {s: n for s, n in running.items() if s not in failed}, again

    def _can_fill(
        self,
        route: Route,
        column: Column,
        shape: RelationShape,
        before: Mapping[str, str],
    ) -> bool:
        """Return whether older rows can get the new values of an altered column."""
        routing = routing_of(route)
        if routing is not None and not routing.is_used(column.name, shape.columns):
            return False
        if column.name not in before or not kind_of(self._sink).has_types:
            return True
        _log.warning(
            "sink column retyped: older rows keep their values",
            sink=self._sink.name,
            route=route.name,
            column=column.name,
            remedy=self._remedy(route.name),
        )
        return False

    def _request(self, route: Route, columns: list[Column]) -> dict[str, list[str]]:
        """
        Request the rows with a value in one of the columns.

        If that is not possible or not wanted, log the command that fills them.
        """
        name, names = self._sink.name, [column.name for column in columns]
        why = f"columns were added, renamed or retyped: {', '.join(names)}"
        snapshot_id = None
        if self._sink.warehouse.fill_added_columns:
            sources = [column.source_name or column.name for column in columns]
            snapshot_id = self._repairs.request_columns(route.name, sources, why)
        append_recovery(
            self._folder,
            self._clock,
            [{"outcome": COLUMNS_ALTERED, "route": route.name}],
        )
        if snapshot_id is not None:
            return {snapshot_id: names}
        _log.error(
            "sink columns not filled in older rows: the rows are not requested",
            sink=name,
            route=route.name,
            columns=names,
            remedy=f"Fill them: towpath sink refill {name} --route {route.name}",
        )
        return {}

    def _remedy(self, route: str) -> str:
        name = self._sink.name
        if self._sink.kind == "search":
            return f"Rebuild the index: towpath sink rebuild {name}"
        return f"Fill it: towpath sink refill {name} --route {route}"


class WriteStrategy(Protocol):
    """Writes batches."""

    def write(self, rows: BatchRows, batch_id: int) -> BatchResult:
        """
        Write one batch; all of it is durable when this returns.

        Raises:
            UnavailableError: A system does not answer; write the batch again.
            HaltError: The sink refuses to continue.
        """


class ShapeCheckedWriter:
    """Writes each batch after checking the shapes of its tables."""

    def __init__(self, changes: ColumnChanges, writer: WriteStrategy) -> None:
        self._changes = changes
        self._writer = writer

    def write(self, rows: BatchRows, batch_id: int) -> BatchResult:
        """
        Request rows with altered columns, then write the batch.

        Raises:
            UnavailableError: A system does not answer; write the batch again.
            HaltError: The sink refuses to continue.
        """
        self._changes.check()
        return self._writer.write(rows, batch_id)


def _form(column: Column) -> str:
    """Return the part of a column's type that decides how its values are written."""
    if column.type in _TEXTS:
        return "text"
    digits = column.precision_and_scale
    if digits is not None:
        return f"{column.type} {digits[1]}"
    return f"{column.type} {column.typmod}"
