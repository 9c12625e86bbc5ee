"""
``[[sink]]``: a target, its driver and its routes, and the options of each kind.

- ``[spark]``: the engine that runs the sinks, on this machine or on a cluster.
- ``[sinks]``: settings that all drivers share.
- ``[sink.search]``: the indexes of a search sink and its bulk calls.
- ``[sink.webhook]``: requests to another server.
- ``[sink.warehouse]``: catalog, files, partitions and upkeep of a warehouse.

A package adds a kind of sink through an entry point of the group ``towpath.sinks``,
whose name is the kind. Only names are read here: nothing from the package is imported.

A partition field has Iceberg's own syntax: ``bucket(8, id)``,
``truncate(4, name)``, ``years(at)``, ``months(at)``, ``days(at)``, ``hours(at)``, or a
column's bare name.
"""

import enum
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from towpath.schemas.webhooks import secret_bytes
from towpath.settings.routes import Route, RouteKind
from towpath.settings.section import NAME, NO_BOOLEAN, Section
from towpath.settings.syntax import not_one_of, parsed_by
from towpath.settings.transforms import HashSalt, SaltName

KINDS_GROUP: Final = "towpath.sinks"


class SinkKind(enum.StrEnum):
    """The kinds that come with the platform."""

    CACHE = "cache"
    POSTGRES = "postgres"
    SEARCH = "search"
    WAREHOUSE = "warehouse"
    WEBHOOK = "webhook"


_BUILT_IN: Final = frozenset(SinkKind)


def installed_kinds() -> tuple[str, ...]:
    """List the kinds that other packages add."""
    found = {point.name for point in entry_points(group=KINDS_GROUP)}
    return tuple(sorted(found - _BUILT_IN))


def is_built_in(kind: str) -> bool:
    """Return whether a kind comes with the platform."""
    return kind in _BUILT_IN


def _check_kind(kind: str) -> str:
    """Refuse an unknown kind, and list the known ones."""
    if is_built_in(kind):
        return SinkKind(kind)
    installed = installed_kinds()
    if kind in installed:
        return kind
    kinds = ", ".join(f"'{one}'" for one in (*SinkKind, *installed))
    # The type of error that an enum raises, so that its message has the same form.
    choice = "enum"
    raise PydanticCustomError(choice, "Input should be {expected}", {"expected": kinds})


KindName = Annotated[str, AfterValidator(_check_kind)]

_SPARK_PREFIX: Final = "spark."
# Settings that would change what sinks write. A speculative copy of a task may outlive
# its batch, and write below a floor that has been applied since.
_OWN_SETTINGS: Final = frozenset(
    {"spark.app.name", "spark.sql.session.timeZone", "spark.speculation"}
)


class WriteFrom(enum.StrEnum):
    """
    The processes that write a sink's target.

    ``driver``: the driver's process. ``executors``: all executors of the cluster write
    large batches in parallel. ``auto``: as ``executors`` on a cluster, if executors can
    write to sinks of the kind, else as ``driver``.
    """

    AUTO = "auto"
    DRIVER = "driver"
    EXECUTORS = "executors"


def _check_setting(name: str) -> str:
    if not name.startswith(_SPARK_PREFIX):
        message = f"{name!r} is not a Spark setting: it must begin with {_SPARK_PREFIX}"
        raise ValueError(message)
    if name == "spark.master":
        message = "'spark.master' has a key of its own: set master in [spark]"
        raise ValueError(message)
    return name


SparkSetting = Annotated[
    str, AfterValidator(_check_setting), not_one_of(_OWN_SETTINGS, "driver")
]


class Spark(Section):
    """
    ``[spark]``.

    ``master`` is the master's URL. ``settings`` are further settings under Spark's
    names; they override those that a driver sets itself, and options of
    ``spark-submit`` override both.
    """

    master: str = Field(default="local[2]", min_length=1)
    settings: dict[SparkSetting, str] = Field(default_factory=dict)


Port = Annotated[int, Field(ge=0, le=65535), NO_BOOLEAN]


class Sinks(Section):
    """
    ``[sinks]``: settings of all drivers.

    ``metrics_ports`` maps a driver's name to the port of its ``/metrics`` page on
    ``metrics_host``. A driver that is not listed takes a free port and logs it.

    With ``state_copies`` each sink's state is copied to the topic
    ``<prefix>-sink-<sink>`` after each batch: a driver on another machine, with an
    empty state folder, continues from there.
    """

    metrics_host: str = "127.0.0.1"
    metrics_ports: dict[str, Port] = Field(default_factory=dict)
    state_copies: bool = False


_MEBIBYTE = 1024 * 1024


class SearchOptions(Section):
    """
    ``[sink.search]``.

    ``shards`` and ``replicas`` apply to each index; -1 replicas means one if there is a
    second node. A document is searchable at most ``refresh_ms`` after it was written,
    or ten seconds while a backlog is applied. Replicas and refresh are changed in
    place, shards by a rebuild.

    Bulk calls have at most ``call_documents`` and ``call_bytes``, and
    ``calls_in_flight`` of them run at a time. Each batch purges at most
    ``purged_at_once`` documents of deleted rows that no replay can need.

    ``event_schemas`` are folders of an application's event schemas, which give the
    documents of aggregates their fields. Installed packages may declare theirs through
    the entry-point group ``towpath.events``; these folders are read in addition.
    """

    event_schemas: tuple[Path, ...] = ()
    shards: int = Field(default=1, ge=1, le=1024)
    replicas: int = Field(default=-1, ge=-1)
    refresh_ms: int = Field(default=500, ge=100)
    call_documents: int = Field(default=2_000, ge=1)
    call_bytes: int = Field(default=5 * _MEBIBYTE, ge=1024)
    calls_in_flight: int = Field(default=2, ge=1, le=32)
    purged_at_once: int = Field(default=2_000, ge=1)


Secret = Annotated[str, parsed_by(secret_bytes, optional=False)]


class WebhookOptions(Section):
    """
    ``[sink.webhook]``.

    ``secrets`` sign every request; during a rotation there are two, and the request has
    a signature with each. A request carries at most ``changes_per_request`` changes,
    ``concurrency`` requests are open at a time, and one without a response within
    ``timeout_s`` is sent again. A change becomes a dead letter after
    ``give_up_attempts`` failed attempts over ``give_up_after_s``, if the receiver
    accepts other changes.
    """

    secrets: tuple[Secret, ...] = Field(default=(), max_length=2)
    changes_per_request: int = Field(default=1, ge=1, le=1000)
    concurrency: int = Field(default=8, ge=1, le=64)
    timeout_s: float = Field(default=10.0, gt=0, le=300)
    # The pauses of a failing key grow to a minute: ten attempts take about two minutes.
    # A receiver that is being redeployed or waits for a lock is back by then.
    give_up_attempts: int = Field(default=10, ge=2)
    give_up_after_s: float = Field(default=120.0, gt=0)


# Iceberg refuses to remove orphan files younger than a day: they may be in use.
_DAY_S: Final = 86_400

_FIELD: Final = re.compile(
    r"(?P<plain>[^(),`\s]+)"
    r"|(?P<sized>bucket|truncate)\(\s*(?P<width>[1-9]\d{0,8})\s*,\s*(?P<c>[^(),`\s]+)\s*\)"
    r"|(?P<timed>years|months|days|hours)\(\s*(?P<t>[^(),`\s]+)\s*\)"
)

# Properties that the sink itself sets for writer and reader.
_OWN_PROPERTIES: Final = frozenset(
    {"type", "uri", "warehouse", "catalog-impl", "cache-enabled", "jdbc.schema-version"}
)


class CatalogKind(enum.StrEnum):
    """
    The kind of Iceberg catalog.

    ``jdbc``: a Postgres database. ``rest``: a server of Iceberg's REST catalog API.
    """

    JDBC = "jdbc"
    REST = "rest"


class Unfit(enum.StrEnum):
    """
    The treatment of a Postgres value that the warehouse's type cannot hold.

    ``reject``: its row becomes a dead letter. ``null``: the value becomes null.
    """

    REJECT = "reject"
    NULL = "null"


class PartitionField(NamedTuple):
    """One partition field; ``width`` is a number of buckets or a truncated length."""

    transform: str
    column: str
    width: int | None = None


def parse_partition(text: str) -> PartitionField:
    """
    Parse one partition field.

    Raises:
        ValueError: The text is not a partition field.
    """
    match = _FIELD.fullmatch(text.strip())
    if match is None:
        message = (
            f"{text!r} is not a partition field, such as 'bucket(8, order_id)', "
            "'days(placed_at)' or a column's name"
        )
        raise ValueError(message)
    if match["plain"]:
        return PartitionField("identity", match["plain"])
    if match["timed"]:
        return PartitionField(match["timed"], match["t"])
    return PartitionField(match["sized"], match["c"], int(match["width"]))


PartitionText = Annotated[str, parsed_by(parse_partition, optional=False)]
CatalogProperty = Annotated[str, not_one_of(_OWN_PROPERTIES, "sink")]


class WarehouseOptions(Section):
    """
    ``[sink.warehouse]``.

    ``catalog`` is the kind of server at the sink's ``url``. ``location`` is the URI of
    the files (``s3://bucket/lake``), instead of the sink's ``folder``. ``properties``
    are further properties of the catalog and its files, under Iceberg's names
    (``s3.endpoint``, ``credential``), for writer and reader.

    ``partition`` lists partition fields by the route's name. With
    ``fill_added_columns``, the rows of a table that gains a column are read again: the
    stream does not carry the values that a default or a rename puts into old rows.
    ``unfit`` is the treatment of infinite times, years before 1 or above 9999, and
    ``NaN`` in a ``numeric(p, s)``; it does not apply to key columns.

    A table is compacted after ``compact_after_files`` more files, or after
    ``compact_after_s`` if it has grown at all or has tombstones to purge. Old versions
    remain readable for ``history_s``, and at least ``history_versions`` of them;
    ``metadata_versions`` metadata files are kept. Files that no version references are
    removed after ``orphans_after_s``. One statement merges at most ``statement_bytes``
    of rows. The writer keeps the hashes of a table's keys in memory, up to
    ``known_keys``; while it has all of them, it appends new keys without a lookup.
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
    statement_bytes: int = Field(default=64 * _MEBIBYTE, ge=1024)
    known_keys: int = Field(default=4_000_000, ge=0)


# A built-in kind has a section of its own name; other kinds have ``options``.
_INSTALLED_SECTION: Final = "options"
_EVENT_LOGS: Final = frozenset(
    {SinkKind.POSTGRES, SinkKind.WAREHOUSE, SinkKind.WEBHOOK}
)
_DOCUMENTS: Final = frozenset({SinkKind.POSTGRES, SinkKind.SEARCH, SinkKind.WEBHOOK})
# ``<prefix>.dead.relay`` is the relay's own topic of dead letters.
_RELAY: Final = "relay"
_RECORDS: Final = 50_000
# Regardless of its size, a batch costs the engine a tenth of a second, and a commit to
# the warehouse takes a second.
_MANY_RECORDS: Final[Mapping[str, int]] = {
    SinkKind.CACHE: 100_000,
    SinkKind.WAREHOUSE: 200_000,
}
# Webhooks of one key must be sent in order across batches.
_SPREAD: Final = frozenset(SinkKind) - {SinkKind.WEBHOOK}


class Sink(Section):
    """
    ``[[sink]]``: one target and its routes.

    ``kind`` selects the module that writes to the target; ``options`` are for kinds of
    other packages. ``driver`` names the Spark driver that runs the sink. ``url`` is the
    target's address: Redis, OpenSearch, the DSN of the warehouse's catalog or of
    another Postgres, or the receiver of webhooks. ``folder`` is for the files of a
    warehouse. On a cluster, executors write batches of at least ``spread_from_records``
    (see ``WriteFrom``). ``budget_s`` is the accepted lag; each kind has a default.
    ``hash_salts`` are the secrets of the routes' hashes, by name.
    """

    name: str = Field(pattern=NAME)
    kind: KindName
    driver: str = Field(default="sinks", pattern=NAME)
    url: str
    folder: Path | None = None
    trigger_ms: int = Field(default=200, ge=0)
    max_batch_records: int | None = Field(default=None, ge=1)
    write_from: WriteFrom = WriteFrom.AUTO
    spread_from_records: int = Field(default=20_000, ge=1)
    budget_s: float | None = Field(default=None, gt=0)
    hash_salts: dict[SaltName, HashSalt] = Field(default_factory=dict)
    search: SearchOptions = SearchOptions()
    warehouse: WarehouseOptions = WarehouseOptions()
    webhook: WebhookOptions = WebhookOptions()
    options: dict[str, Any] = Field(default_factory=dict)
    route: tuple[Route, ...] = Field(min_length=1)

    @property
    def batch_records(self) -> int:
        """The largest number of records in a batch."""
        if self.max_batch_records is not None:
            return self.max_batch_records
        return _MANY_RECORDS.get(self.kind, _RECORDS)

    @property
    def target(self) -> tuple[str, str, Path | str | None]:
        """
        The identity of the target: equal for sinks whose routes share one namespace.

        A JDBC catalog has one table per name, whatever the folder; a REST server keeps
        warehouses apart by their location.
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
        yield from self._sections_of_other_kinds()
        is_spread = self.write_from is WriteFrom.EXECUTORS
        if is_spread and is_built_in(self.kind) and self.kind not in _SPREAD:
            yield f"write_from: only the driver can write to a {self.kind} sink"
        if self.kind == SinkKind.WEBHOOK:
            yield from self._webhook_mistakes()
        kinds = {r.kind for r in self.route} if is_built_in(self.kind) else set()
        if RouteKind.EVENT_LOG in kinds and self.kind not in _EVENT_LOGS:
            allowed = "postgres, warehouse or webhook"
            yield f"route: an event log needs a sink of the kind {allowed}"
        if RouteKind.AGGREGATE in kinds and self.kind not in _DOCUMENTS:
            allowed = "postgres, search or webhook"
            yield f"route: aggregates need a sink of the kind {allowed}"
        names = [r.name for r in self.route]
        if len(set(names)) != len(names):
            yield "route: two routes have the same name"

    def _sections_of_other_kinds(self) -> Iterator[str]:
        own = self.kind if is_built_in(self.kind) else _INSTALLED_SECTION
        sections = {_INSTALLED_SECTION, *SinkKind} - {own}
        for name in sorted(sections & self.model_fields_set):
            yield f"{name}: a sink of the kind {self.kind} has no such section"

    def _webhook_mistakes(self) -> Iterator[str]:
        if not self.url.startswith(("http://", "https://")):
            yield "url: must begin with http:// or https://"
        if not self.webhook.secrets:
            yield "webhook.secrets: webhooks are signed: name at least one secret"
