"""
The tables of one warehouse, by route: made to exist and to fit, or held back.

A table follows its source: it gains columns and width, and keeps what the source drops.
What a default or a rename has put into old rows is read by the sink's driver
(``jobs/reshaping.py``).

A change that no table can follow holds back its own route, and no other: its changes
are refused, with the cure, until the table fits; each batch of it looks again.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import structlog

from towpath.schemas.failure import TowpathError
from towpath.settings import PartitionField, Route, RouteKind, Sink
from towpath.settings.sink import parse_partition
from towpath.sinks.errors import KeylessTableError
from towpath.sinks.ports import RelationSource, SqlSession
from towpath.sinks.warehouse.ddl import live_view
from towpath.sinks.warehouse.errors import (
    ForeignTableError,
    PartitionFieldError,
    ReservedColumnError,
)
from towpath.sinks.warehouse.losses import Losses
from towpath.sinks.warehouse.opening import Found, ensure
from towpath.sinks.warehouse.tables import LakeTable, current_state, event_log

# What the source's shape, or a table that is there, makes impossible.
UNFIT: Final = (ForeignTableError, KeylessTableError, ReservedColumnError)

_log = structlog.get_logger("towpath.sinks.warehouse")


class Shelves:
    """The open tables of one warehouse."""

    def __init__(
        self,
        sink: Sink,
        relations: RelationSource,
        session: SqlSession,
        losses: Losses,
        branch: str,
    ) -> None:
        self._losses = losses
        self._branch = branch
        self._options = sink.warehouse
        self._routes = {route.name: route for route in sink.route}
        self._relations = relations
        self._session = session
        self._tables: dict[str, LakeTable] = {}
        self._wishes: dict[str, LakeTable] = {}
        self._held: dict[str, str] = {}

    def check(self) -> None:
        """
        See that every table that is to be split has a route.

        Raises:
            PartitionFieldError: One has none.
        """
        unknown = sorted(self._options.partition.keys() - self._routes.keys())
        if unknown:
            message = f"warehouse.partition: no route is named {unknown[0]}"
            raise PartitionFieldError(message)

    def open(self, name: str) -> tuple[LakeTable, Found | None]:
        """
        Return a route's table, and what was found if it was opened just now.

        Raises:
            ForeignTableError: It is there and cannot follow; ``UNFIT`` has the others.
            ShapeUnknownError: Its source is not announced yet.
            PartitionFieldError: It cannot be split as it is configured.
        """
        known = self._tables.get(name)
        if known is not None:
            return known, None
        wanted = self._wanted(self._routes[name])
        table, found = self._ensure(self._routes[name], wanted)
        self._tables[name], self._wishes[name] = table, wanted
        if self._held.pop(name, None) is not None:
            _log.info("route goes on: its table fits again", route=name)
        return table, found

    def hold(self, name: str, error: TowpathError) -> None:
        """Hold a route back, and say so once."""
        reason = f"{error}. {error.remedy}"
        if self._held.get(name) != reason:
            _log.error("route held back", route=name, reason=reason)
        self._held[name] = reason

    def reason(self, name: str) -> str:
        """Tell why a route is held back, and what cures it."""
        return self._held[name]

    def follow(self, names: Iterable[str]) -> None:
        """Let go of tables whose source was announced with another shape."""
        mine = [n for n in names if self._routes[n].kind is not RouteKind.EVENT_LOG]
        if not mine:
            return
        self._relations.refresh()
        for name in mine:
            if name in self._tables and self._is_outdated(name):
                del self._tables[name]

    def _is_outdated(self, name: str) -> bool:
        try:
            return self._wanted(self._routes[name]) != self._wishes[name]
        except UNFIT:
            return True

    def _ensure(self, route: Route, table: LakeTable) -> tuple[LakeTable, Found]:
        opened = ensure(self._session, table, self._options)
        self._losses.look(route.name, opened[1].id)
        if route.kind is not RouteKind.EVENT_LOG:
            self._session.sql(live_view(table))
        return opened

    def _wanted(self, route: Route) -> LakeTable:
        split = self._partition(route.name)
        if route.kind is RouteKind.EVENT_LOG:
            table = event_log(route.name, split)
        else:
            shape = self._relations.shape(route.topic)
            table = current_state(route.name, shape, split)
        return replace(table, branch=self._branch)

    def _partition(self, name: str) -> tuple[PartitionField, ...]:
        texts = self._options.partition.get(name, ())
        return tuple(parse_partition(text) for text in texts)
