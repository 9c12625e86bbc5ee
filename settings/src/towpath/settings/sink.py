"""
``[[sink]]``: a target, its driver and its routes, and the options of each kind.

- ``[sinks]``: settings that all drivers of sinks share.
- ``[sink.search]``: how the indexes of a search sink are made and written.
- ``[sink.webhook]``: how changes are posted to another server.
- ``[sink.warehouse]``: catalog, files, partitions and upkeep of a warehouse.

A partition field is written as the format's own engines write it: ``bucket(8, id)``,
``truncate(4, name)``, ``years(at)``, ``months(at)``, ``days(at)``, ``hours(at)``, or a
column's bare name.
"""

import enum
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from towpath.schemas.webhooks import secret_bytes
from towpath.settings.engine import WriteFrom
from towpath.settings.kinds import KindName, SinkKind, is_built_in
from towpath.settings.routes import Route, RouteKind
from towpath.settings.section import NAME, Section

Port = Annotated[int, Field(ge=0, le=65535)]


class Sinks(Section):
    """
    ``[sinks]``: where each driver tells how its sinks are.

    ``metrics_ports`` gives a driver, by its name, the port of ``/metrics`` on
    ``metrics_host``; a driver that is not named takes a free one and says so in its
    log.
    """

    metrics_host: str = "127.0.0.1"
    metrics_ports: dict[str, Port] = Field(default_factory=dict)


_MEBIBYTE = 1024 * 1024


class SearchOptions(Section):
    """
    ``[sink.search]``.

    ``shards`` and ``replicas`` are of each index; replicas of -1 are one where there
    is a second node. A document is found at most ``refresh_ms`` after it was written;
    while a backlog is worked off, ten seconds. Replicas and refresh are changed in
    place, shards by a rebuild.

    Documents go in calls of at most ``call_documents`` and ``call_bytes``, of which
    ``calls_in_flight`` are under way at a time. With each batch at most
    ``purged_at_once`` documents of deleted rows that nothing needs any more are taken
    away.
    """

    shards: int = Field(default=1, ge=1, le=1024)
    replicas: int = Field(default=-1, ge=-1)
    refresh_ms: int = Field(default=500, ge=100)
    call_documents: int = Field(default=2_000, ge=1)
    call_bytes: int = Field(default=5 * _MEBIBYTE, ge=1024)
    calls_in_flight: int = Field(default=2, ge=1, le=32)
    purged_at_once: int = Field(default=2_000, ge=1)


def _check_secret(secret: str) -> str:
    secret_bytes(secret)
    return secret


Secret = Annotated[str, AfterValidator(_check_secret)]


class WebhookOptions(Section):
    """
    ``[sink.webhook]``.

    ``secrets`` sign every request; while a secret is being changed there are two, and
    the request has a signature of each. A request carries ``changes_per_request``
    changes at most, ``concurrency`` requests are open at once, and one that is not
    answered within ``timeout_s`` is sent again. A change that the receiver fails at
    ``give_up_attempts`` times over ``give_up_after_s`` is set aside, if the receiver is
    well otherwise.
    """

    secrets: tuple[Secret, ...] = Field(default=(), max_length=2)
    changes_per_request: int = Field(default=1, ge=1, le=1000)
    concurrency: int = Field(default=8, ge=1, le=64)
    timeout_s: float = Field(default=10.0, gt=0, le=300)
    # At the driver's back-off two minutes are some twenty attempts: a receiver that is
    # deployed anew, or waits for a lock, is back by then, and others wait no longer.
    give_up_attempts: int = Field(default=10, ge=2)
    give_up_after_s: float = Field(default=120.0, gt=0)


_FILE_MEBIBYTE: Final = 1024 * 1024
# The engine refuses to look for stray files younger than a day: they may be in use.
_DAY_S: Final = 86_400

_FIELD: Final = re.compile(
    r"(?P<plain>[^(),`\s]+)"
    r"|(?P<sized>bucket|truncate)\(\s*(?P<width>[1-9]\d{0,8})\s*,\s*(?P<c>[^(),`\s]+)\s*\)"
    r"|(?P<timed>years|months|days|hours)\(\s*(?P<t>[^(),`\s]+)\s*\)"
)

# What the writer and the reader are told by the sink itself.
_OWN_PROPERTIES: Final = frozenset(
    {"type", "uri", "warehouse", "catalog-impl", "cache-enabled", "jdbc.schema-version"}
)


class CatalogKind(enum.StrEnum):
    """
    Who keeps the list of tables.

    ``jdbc``: a Postgres database. ``rest``: a server of Iceberg's REST catalog API.
    """

    JDBC = "jdbc"
    REST = "rest"


class Unfit(enum.StrEnum):
    """
    What becomes of a value that Postgres has and the warehouse's type has not.

    ``reject``: its row is set aside. ``null``: the row is written with null there.
    """

    REJECT = "reject"
    NULL = "null"


class PartitionField(NamedTuple):
    """One partition field; ``width`` is the number of buckets, or the length kept."""

    transform: str
    column: str
    width: int | None = None


def parse_partition(text: str) -> PartitionField:
    """
    Read one partition field.

    Raises:
        ValueError: The text is none.
    """
    match = _FIELD.fullmatch(text.strip())
    if match is None:
        message = (
            f"{text!r} is no partition field, such as 'bucket(8, order_id)', "
            "'days(placed_at)' or a column's name"
        )
        raise ValueError(message)
    if match["plain"]:
        return PartitionField("identity", match["plain"])
    if match["timed"]:
        return PartitionField(match["timed"], match["t"])
    return PartitionField(match["sized"], match["c"], int(match["width"]))


def _check_partition(text: str) -> str:
    parse_partition(text)
    return text


def _check_property(name: str) -> str:
    if name in _OWN_PROPERTIES:
        message = f"{name!r} is set by the sink itself: leave it out"
        raise ValueError(message)
    return name


PartitionText = Annotated[str, AfterValidator(_check_partition)]
CatalogProperty = Annotated[str, AfterValidator(_check_property)]


class WarehouseOptions(Section):
    """
    ``[sink.warehouse]``.

    ``catalog`` says what the sink's ``url`` is. ``location`` is where the files go, as
    a URI (``s3://bucket/lake``), instead of the sink's ``folder``; ``properties`` are
    further ones of the catalog and its files, by Iceberg's names (``s3.endpoint``,
    ``credential``), told to the writer and to the reader alike.

    ``partition`` lists the partition fields of routes, by the route's name.
    ``fill_added_columns`` has rows of a table read again when it gains a column: the
    stream does not tell what a default, or the old name, has put into old rows.
    ``unfit`` says what becomes of infinite times, years before the first or above 9999,
    and ``NaN`` in a numeric of so many digits; never of a key's.

    A table is compacted after ``compact_after_files`` more files, or after
    ``compact_after_s`` if it has grown at all. Old versions are readable for
    ``history_s``, at least ``history_versions`` of them; of its metadata files
    ``metadata_versions`` are kept. Files that no version knows go after
    ``orphans_after_s``. One statement merges at most ``statement_bytes`` of rows.
    As long as all keys of a table are known, at most ``known_keys``, new ones are
    appended without a search.
    """

    catalog: CatalogKind = CatalogKind.JDBC
    location: str = ""
    properties: dict[CatalogProperty, str] = Field(default_factory=dict)
    partition: dict[str, tuple[PartitionText, ...]] = Field(default_factory=dict)
    fill_added_columns: bool = True
    unfit: Unfit = Unfit.REJECT
    compact_after_files: int = Field(default=48, ge=2)
    compact_after_s: int = Field(default=3600, ge=1)
    history_s: int = Field(default=3600, ge=1)
    history_versions: int = Field(default=5, ge=1)
    metadata_versions: int = Field(default=20, ge=1)
    orphans_after_s: int = Field(default=3 * _DAY_S, ge=_DAY_S)
    statement_bytes: int = Field(default=64 * _FILE_MEBIBYTE, ge=1024)
    known_keys: int = Field(default=4_000_000, ge=0)


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
