"""``[[sink]]``: a target, who runs it, and its routes."""

import enum
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from towpath.settings.routes import Route, RouteKind
from towpath.settings.section import NAME, Section


class SinkKind(enum.StrEnum):
    """Which module writes the sink."""

    CACHE = "cache"
    SEARCH = "search"
    WAREHOUSE = "warehouse"


class Sink(Section):
    """
    ``[[sink]]``: one target and its routes.

    ``driver`` names the Spark driver that runs it beside its fellows. ``url`` is the
    target's address: Redis, OpenSearch, or the DSN of the warehouse's catalog.
    ``folder`` is where a warehouse keeps its files.
    """

    name: str = Field(pattern=NAME)
    kind: SinkKind
    driver: str = Field(default="sinks", pattern=NAME)
    url: str
    folder: Path | None = None
    trigger_ms: int = Field(default=500, ge=0)
    max_batch_records: int = Field(default=50_000, ge=1)
    route: tuple[Route, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kind is SinkKind.WAREHOUSE) != (self.folder is not None):
            message = "folder: a warehouse needs one, other kinds take none"
            raise ValueError(message)
        logs = [r for r in self.route if r.kind is RouteKind.EVENT_LOG]
        if logs and self.kind is not SinkKind.WAREHOUSE:
            message = "route: only a warehouse keeps an event log"
            raise ValueError(message)
        aggregates = [r for r in self.route if r.kind is RouteKind.AGGREGATE]
        if aggregates and self.kind is not SinkKind.SEARCH:
            message = "route: only a search index keeps aggregates, as documents"
            raise ValueError(message)
        names = [r.name for r in self.route]
        if len(set(names)) != len(names):
            message = "route: two routes write the same name"
            raise ValueError(message)
        return self
