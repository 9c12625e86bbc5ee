"""``[[sink]]``: a target, who runs it, and its routes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field, model_validator

from towpath.settings.engine import WriteFrom
from towpath.settings.kinds import KindName, SinkKind, is_built_in
from towpath.settings.routes import Route, RouteKind
from towpath.settings.search import SearchOptions
from towpath.settings.section import NAME, Section
from towpath.settings.warehouse import CatalogKind, WarehouseOptions
from towpath.settings.webhook import WebhookOptions

# The sections of kinds that come with the platform bear the kind's name; others have
# ``options``.
_OF_OTHERS: Final = "options"
_EVENT_LOGS: Final = frozenset({SinkKind.WAREHOUSE, SinkKind.WEBHOOK})
_DOCUMENTS: Final = frozenset({SinkKind.SEARCH, SinkKind.WEBHOOK})
# ``<prefix>.dead.<name>`` is a sink's, and it is the relay's too.
_RELAY: Final = "relay"
_RECORDS: Final = 50_000
# A batch costs the engine a tenth of a second, and a commit of a warehouse a second,
# whatever it holds.
_MANY_RECORDS: Final[Mapping[str, int]] = {
    SinkKind.CACHE: 100_000,
    SinkKind.WAREHOUSE: 200_000,
}
# Webhooks of one key wait for each other, across batches too; and the statements of a
# warehouse are carried out by the executors as it is.
_SPREAD: Final = frozenset({SinkKind.CACHE, SinkKind.SEARCH})


class Sink(Section):
    """
    ``[[sink]]``: one target and its routes.

    ``kind`` says which module writes it; ``options`` are those of a kind that another
    package adds. ``driver`` names the Spark driver that runs it beside its fellows.
    ``url`` is the target's address: Redis, OpenSearch, the DSN of the warehouse's
    catalog, or where webhooks are posted. ``folder`` is where a warehouse keeps its
    files. Batches of ``spread_from_records`` and more are written from the executors,
    if ``write_from`` says so. ``budget_s`` is how far it may be behind; left out, its
    kind's.
    """

    name: str = Field(pattern=NAME)
    kind: KindName
    driver: str = Field(default="sinks", pattern=NAME)
    url: str
    folder: Path | None = None
    trigger_ms: int = Field(default=200, ge=0)
    max_batch_records: int | None = Field(default=None, ge=1)
    write_from: WriteFrom = WriteFrom.DRIVER
    spread_from_records: int = Field(default=20_000, ge=1)
    budget_s: float | None = Field(default=None, gt=0)
    search: SearchOptions = SearchOptions()
    warehouse: WarehouseOptions = WarehouseOptions()
    webhook: WebhookOptions = WebhookOptions()
    options: dict[str, Any] = Field(default_factory=dict)
    route: tuple[Route, ...] = Field(min_length=1)

    @property
    def batch_records(self) -> int:
        """How many records a batch reads at most."""
        if self.max_batch_records is not None:
            return self.max_batch_records
        return _MANY_RECORDS.get(self.kind, _RECORDS)

    @property
    def target(self) -> tuple[str, str, Path | str | None]:
        """
        Where routes of one name are one place, whichever sinks they are of.

        A catalog has one table of a name, wherever its files would be; a server of
        catalogs tells them apart by their location.
        """
        if self.kind != SinkKind.WAREHOUSE:
            return self.kind, self.url, self.folder
        is_server = self.warehouse.catalog is CatalogKind.REST
        return self.kind, self.url, self.warehouse.location if is_server else None

    @model_validator(mode="after")
    def _check(self) -> Self:
        mistakes = "; ".join(self._mistakes())
        if mistakes:
            raise ValueError(mistakes)
        return self

    def _mistakes(self) -> Iterator[str]:
        is_placed = self.folder is not None or bool(self.warehouse.location)
        if is_built_in(self.kind) and is_placed != (self.kind == SinkKind.WAREHOUSE):
            yield (
                "folder: a warehouse needs one, or a warehouse.location; other kinds "
                "take none"
            )
        if self.name == _RELAY:
            yield "name: the relay's own dead letters have that name: choose another"
        yield from self._strange_sections()
        is_spread = self.write_from is WriteFrom.EXECUTORS
        if is_spread and is_built_in(self.kind) and self.kind not in _SPREAD:
            yield f"write_from: a {self.kind} is written from the driver only"
        if self.kind == SinkKind.WEBHOOK:
            yield from self._webhook_mistakes()
        kinds = {r.kind for r in self.route} if is_built_in(self.kind) else set()
        if RouteKind.EVENT_LOG in kinds and self.kind not in _EVENT_LOGS:
            yield "route: only a warehouse keeps an event log, and webhooks tell it"
        if RouteKind.AGGREGATE in kinds and self.kind not in _DOCUMENTS:
            yield "route: only a search index keeps aggregates, and webhooks tell them"
        names = [r.name for r in self.route]
        if len(set(names)) != len(names):
            yield "route: two routes write the same name"

    def _strange_sections(self) -> Iterator[str]:
        own = self.kind if is_built_in(self.kind) else _OF_OTHERS
        sections = {_OF_OTHERS, *SinkKind} - {own}
        for name in sorted(sections & self.model_fields_set):
            yield f"{name}: a sink of the kind {self.kind} has no such section"

    def _webhook_mistakes(self) -> Iterator[str]:
        if not self.url.startswith(("http://", "https://")):
            yield "url: must begin with http:// or https://"
        if not self.webhook.secrets:
            yield "webhook.secrets: webhooks are signed: name at least one secret"
