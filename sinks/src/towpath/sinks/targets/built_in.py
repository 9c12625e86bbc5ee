"""
The built-in kinds of sink, defined like those of other packages.

A target's driver is imported when its first sink is created: a process that only checks
a configuration, or verifies one sink, imports no drivers that it does not need.
"""

from collections.abc import Iterable, Mapping
from typing import cast

from towpath.schemas.clock import Clock
from towpath.schemas.events import EventSchema
from towpath.schemas.findings import CheckFinding
from towpath.settings import RouteKind
from towpath.settings import Sink as SinkSettings
from towpath.sinks.kinds import ExecutorParts, Kind, SinkParts
from towpath.sinks.ports import Sink, SinkReader


def _cache(sink: SinkSettings, parts: SinkParts) -> Sink:
    from towpath.sinks.targets.cache.losses import CacheWatch  # noqa: PLC0415 - see above
    from towpath.sinks.targets.cache.sink import CacheSink  # noqa: PLC0415

    names = tuple(route.name for route in sink.route)
    watch = CacheWatch(sink.name, parts.folder / "cache.json", names, parts.repairs)
    return CacheSink(sink.url, parts.prefix, parts.replay_window_s, watch)


def _cache_on_executor(sink: SinkSettings, parts: ExecutorParts) -> Sink:
    from towpath.sinks.targets.cache.sink import CacheSink  # noqa: PLC0415 - see above

    # The driver's sink detects losses, after all executors have written.
    return CacheSink(sink.url, parts.prefix, parts.replay_window_s)


def _erase_cache(sink: SinkSettings, prefix: str) -> None:
    from towpath.sinks.targets.cache.upkeep import erase  # noqa: PLC0415 - see above

    erase(sink, prefix)


def _rights_in_cache(sink: SinkSettings, prefix: str) -> Iterable[str]:
    from towpath.sinks.targets.cache.upkeep import missing_rights  # noqa: PLC0415 - see above

    return missing_rights(sink, prefix)


def _cache_health(sink: SinkSettings, clock: Clock) -> Iterable[CheckFinding]:
    from towpath.sinks.targets.cache.upkeep import health  # noqa: PLC0415 - see above

    return health(sink, clock)


def _cache_reader(sink: SinkSettings, prefix: str) -> SinkReader:
    from towpath.sinks.targets.cache.read import CacheReader  # noqa: PLC0415 - see above

    return CacheReader(sink.url, prefix)


def _search(sink: SinkSettings, parts: SinkParts) -> Sink:
    from towpath.sinks.targets.search.indexes import IndexWatch  # noqa: PLC0415 - see above
    from towpath.sinks.targets.search.sink import SearchSink  # noqa: PLC0415

    return SearchSink(
        *(sink.url, sink.route, parts.relations, parts.clock),
        options=sink.search,
        watch=IndexWatch(parts.folder / "search.json", parts.repairs),
    )


def _search_on_executor(sink: SinkSettings, parts: ExecutorParts) -> Sink:
    from towpath.sinks.targets.search.sink import (  # noqa: PLC0415 - see above
        ExecutorSearchSink,
    )

    return ExecutorSearchSink(
        *(sink.url, sink.route, parts.relations, parts.clock),
        options=sink.search,
        schemas=cast("Mapping[str, EventSchema]", parts.shared),
    )


def _schemas_of_events(sink: SinkSettings) -> object:
    from towpath.sinks.targets.search.schema import event_schemas  # noqa: PLC0415 - see above

    return dict(event_schemas(sink.search, sink.route))


def _erase_search(sink: SinkSettings, prefix: str) -> None:
    from towpath.sinks.targets.search.upkeep import erase  # noqa: PLC0415 - see above

    erase(sink, prefix)


def _rights_in_search(sink: SinkSettings, prefix: str) -> Iterable[str]:
    from towpath.sinks.targets.search.rights import missing_rights  # noqa: PLC0415 - see above

    return missing_rights(sink, prefix)


def _search_health(sink: SinkSettings, clock: Clock) -> Iterable[CheckFinding]:
    from towpath.sinks.targets.search.upkeep import health  # noqa: PLC0415 - see above

    return health(sink, clock)


def _search_reader(sink: SinkSettings, _: str) -> SinkReader:
    from towpath.sinks.targets.search.read import SearchReader  # noqa: PLC0415 - see above

    return SearchReader(sink.url)


def _warehouse(sink: SinkSettings, parts: SinkParts) -> Sink:
    from towpath.sinks.targets.warehouse.append import LakeAppender  # noqa: PLC0415
    from towpath.sinks.targets.warehouse.sink import WarehouseSink  # noqa: PLC0415
    from towpath.sinks.targets.warehouse.write import Engines  # noqa: PLC0415

    return WarehouseSink(
        *(sink, parts.relations, Engines(parts.sql, LakeAppender(sink))),
        repairs=parts.repairs,
        clock=parts.clock,
        known=parts.folder / "warehouse.json",
    )


def _erase_warehouse(sink: SinkSettings, prefix: str) -> None:
    from towpath.sinks.targets.warehouse.upkeep import erase  # noqa: PLC0415 - see above

    erase(sink, prefix)


def _warehouse_health(sink: SinkSettings, clock: Clock) -> Iterable[CheckFinding]:
    from towpath.sinks.targets.warehouse.upkeep import health  # noqa: PLC0415 - see above

    return health(sink, clock)


def _warehouse_reader(sink: SinkSettings, _: str) -> SinkReader:
    from towpath.sinks.targets.warehouse.read import WarehouseReader  # noqa: PLC0415 - see above

    return WarehouseReader(sink)


def _warehouse_engine(sink: SinkSettings) -> dict[str, str]:
    from towpath.sinks.targets.warehouse.client import catalog_conf  # noqa: PLC0415 - see above

    return catalog_conf(sink)


def _webhook(sink: SinkSettings, parts: SinkParts) -> Sink:
    from towpath.sinks.targets.webhook.sink import WebhookSink  # noqa: PLC0415 - see above

    proof = parts.folder / "webhook.json"
    return WebhookSink(sink.url, sink.webhook, parts.clock, proof)


def _postgres(sink: SinkSettings, parts: SinkParts) -> Sink:
    from towpath.sinks.targets.postgres.sink import PostgresSink  # noqa: PLC0415 - see above

    known = parts.folder / "postgres.json"
    return PostgresSink(sink, parts.relations, known=known, repairs=parts.repairs)


def _postgres_on_executor(sink: SinkSettings, parts: ExecutorParts) -> Sink:
    from towpath.sinks.targets.postgres.sink import PostgresSink  # noqa: PLC0415 - see above

    return PostgresSink(sink, parts.relations)


def _erase_postgres(sink: SinkSettings, prefix: str) -> None:
    from towpath.sinks.targets.postgres.upkeep import erase  # noqa: PLC0415 - see above

    erase(sink, prefix)


def _rights_in_postgres(sink: SinkSettings, prefix: str) -> Iterable[str]:
    from towpath.sinks.targets.postgres.upkeep import missing_rights  # noqa: PLC0415 - see above

    return missing_rights(sink, prefix)


def _postgres_health(sink: SinkSettings, clock: Clock) -> Iterable[CheckFinding]:
    from towpath.sinks.targets.postgres.upkeep import health  # noqa: PLC0415 - see above

    return health(sink, clock)


def _postgres_reader(sink: SinkSettings, _: str) -> SinkReader:
    from towpath.sinks.targets.postgres.read import PostgresReader  # noqa: PLC0415 - see above

    return PostgresReader(sink)


def _unfit_in_postgres(column: str) -> str:
    from towpath.sinks.targets.postgres.schema import unfit_name  # noqa: PLC0415 - see above

    return unfit_name(column)


def _unfit_in_index(column: str) -> str:
    from towpath.sinks.targets.search.schema import unfit_name  # noqa: PLC0415 - see above

    return unfit_name(column)


CACHE = Kind(
    make=_cache,
    read=_cache_reader,
    erase=_erase_cache,
    health=_cache_health,
    rights=_rights_in_cache,
    spread=_cache_on_executor,
    # This many records are encoded in about 30 ms. The server waits for the first call,
    # so a larger call would delay the server.
    pipelined_records=5_000,
)
SEARCH = Kind(
    make=_search,
    read=_search_reader,
    erase=_erase_search,
    health=_search_health,
    rights=_rights_in_search,
    spread=_search_on_executor,
    shared=_schemas_of_events,
    has_types=True,
    unfit_name=_unfit_in_index,
    routes=frozenset({RouteKind.TABLE, RouteKind.AGGREGATE}),
)
# A MERGE needs memory for sorting, and for the files that it rewrites.
WAREHOUSE = Kind(
    make=_warehouse,
    read=_warehouse_reader,
    erase=_erase_warehouse,
    health=_warehouse_health,
    engine=_warehouse_engine,
    is_engine_written=True,
    memory="2g",
    has_types=True,
    routes=frozenset({RouteKind.TABLE, RouteKind.EVENT_LOG}),
)
WEBHOOK = Kind(make=_webhook, routes=frozenset(RouteKind))
POSTGRES = Kind(
    make=_postgres,
    read=_postgres_reader,
    erase=_erase_postgres,
    health=_postgres_health,
    rights=_rights_in_postgres,
    spread=_postgres_on_executor,
    has_types=True,
    unfit_name=_unfit_in_postgres,
    routes=frozenset(RouteKind),
)
