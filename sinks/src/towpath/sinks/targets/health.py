"""
Health checks of the targets: risks of data loss, full disks, slow searches.

``towpath sink check`` answers whether a sink may write; these checks answer whether its
target keeps the written rows. Each target's ``upkeep`` reads the facts; this module
derives the findings from them, without any I/O. A fact that the target hides from the
sink's user is None, and leads to no finding.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from towpath.schemas.findings import (
    CheckFinding,
    error_finding,
    info_finding,
    warning_finding,
)
from towpath.settings import Sink

# The first version with functions, in which the guard compares positions.
_OLDEST_CACHE: Final = (7, 0)
_OLDEST_SEARCH: Final = (2, 0)
# Postgres reports 150004 for version 15.4.
_VERSION_STEP: Final = 10_000
_OLDEST_POSTGRES: Final = 15 * _VERSION_STEP
_FORMAT: Final = 2
_STRICT: Final = "strict"
_PERCENT: Final = 100.0
# While Redis rewrites its file, it copies the pages that change: a fifth of the memory
# is a usual margin.
_FULL_SHARE: Final = 0.8
# With more files, planning a read takes a second or longer.
_MANY_FILES: Final = 5_000
_MANY_VERSIONS: Final = 1_000
# The defaults of OpenSearch.
LOW_WATERMARK: Final = "85%"
FLOOD_STAGE: Final = "95%"
# A size in upper or lower case, also "10g" for "10gb", as OpenSearch accepts it.
_SIZE: Final = re.compile(r"([0-9.]+)\s*(?:b|([kmgtp])b?)", re.IGNORECASE)
_UNITS: Final = ("", "k", "m", "g", "t", "p")


class CacheHealth(NamedTuple):
    """
    One server of a cache.

    Attributes:
        address: Its address, without credentials.
        version: The version of Redis that it is compatible with.
        policy: Its eviction policy.
        used_bytes: The memory that it uses.
        bound_bytes: The memory that it may use; 0 if there is no limit.
        keeps_file: Whether each write is appended to a file.
        saves: Whether it stores snapshots; None if the setting cannot be read.
        file_failed: Whether its last snapshot or its last append to the file failed.
        now: The time on its clock.
    """

    address: str
    version: str
    policy: str = "noeviction"
    used_bytes: int = 0
    bound_bytes: int = 0
    keeps_file: bool = True
    saves: bool | None = None
    file_failed: bool = False
    now: datetime | None = None


class IndexHealth(NamedTuple):
    """One index of a sink; ``dynamic`` is its mapping's rule for unknown fields."""

    name: str
    replicas: int = 0
    blocks: Sequence[str] = ()
    refresh: str = "500ms"
    dynamic: str = _STRICT


class Disk(NamedTuple):
    """The disk of one server."""

    total_bytes: int
    free_bytes: int


class SearchHealth(NamedTuple):
    """
    A search index's servers.

    Attributes:
        version: The version of OpenSearch.
        status: The cluster's status: green, yellow or red.
        node_count: The number of servers with data.
        disks: The disk of each server, by the server's name.
        low_watermark: The disk usage at which a server gets no more shards: a
            percentage, a ratio, or the bytes that must be free.
        flood_stage: The disk usage at which its indexes become read-only.
        indexes: The sink's indexes.
        now: The time on a server's clock.
    """

    version: str
    status: str | None = None
    node_count: int | None = None
    disks: Mapping[str, Disk] = {}
    low_watermark: str = LOW_WATERMARK
    flood_stage: str = FLOOD_STAGE
    indexes: Sequence[IndexHealth] = ()
    now: datetime | None = None


class LakeHealth(NamedTuple):
    """One table of a warehouse."""

    name: str
    format_version: int = _FORMAT
    files: int = 0
    versions: int = 0
    has_identifiers: bool = True


class TargetHealth(NamedTuple):
    """A Postgres server that a sink writes to."""

    version: int
    is_standby: bool = False
    has_fsync: bool = True
    connections: int = 0
    max_connections: int = 100
    now: datetime | None = None


def cache_findings(
    sink: Sink, servers: Sequence[CacheHealth]
) -> Iterator[CheckFinding]:
    """Yield the findings about a cache's servers."""
    for server in servers:
        if _version(server.version) < _OLDEST_CACHE:
            yield error_finding(
                "cache-version",
                f"{server.address} has version {server.version}",
                "it lacks functions, with which the sink guards positions",
                "it must be Redis 7 or Valkey 7.2 or later: upgrade the server",
            )
        if server.policy != "noeviction":
            yield error_finding(
                "cache-eviction",
                f"{server.address} has maxmemory-policy {server.policy}",
                "evicted keys lose the positions that guard against older rows",
                "CONFIG SET maxmemory-policy noeviction; CONFIG REWRITE",
            )
        if server.bound_bytes and (
            server.used_bytes >= _FULL_SHARE * server.bound_bytes
        ):
            yield warning_finding(
                "cache-memory",
                f"{server.address} uses {_mebibytes(server.used_bytes)} of "
                f"{_mebibytes(server.bound_bytes)}",
                "once it is full, it refuses the sink's writes",
                f"CONFIG SET maxmemory {2 * server.bound_bytes}; CONFIG REWRITE",
            )
        yield from _persistence_findings(sink, server)


def _persistence_findings(sink: Sink, server: CacheHealth) -> Iterator[CheckFinding]:
    if server.file_failed:
        yield error_finding(
            "cache-file-failed",
            f"{server.address} failed to write its file on the last attempt",
            "it refuses writes, or loses them when it restarts",
            "free space on its disk, then read INFO persistence",
        )
    if not server.keeps_file:
        effect = "a restart loses all rows"
        if server.saves is None:
            effect = "a restart may lose all rows"
        elif server.saves:
            effect = "a restart loses the rows written after the last snapshot"
        yield warning_finding(
            "cache-no-file",
            f"{server.address} has appendonly no",
            f"{effect}; the sink then requests them from the source again",
            "CONFIG SET appendonly yes; CONFIG REWRITE; or leave it off, if towpath "
            f"sink refill {sink.name} is fast enough",
        )


def search_findings(sink: Sink, health: SearchHealth) -> Iterator[CheckFinding]:
    """Yield the findings about a search index's servers and the sink's indexes."""
    if _version(health.version) < _OLDEST_SEARCH:
        yield error_finding(
            "search-version",
            f"OpenSearch has version {health.version}",
            "the sink's calls need 2.0 or later",
            "upgrade the servers",
        )
    if health.status == "red":
        yield error_finding(
            "search-red",
            "the status of the search index is red",
            "a primary shard is missing: writes to it wait, and searches lack rows",
            "GET /_cluster/allocation/explain names the shard and the reason",
        )
    for name, disk in sorted(health.disks.items()):
        if _is_beyond(disk, health.low_watermark):
            used = _PERCENT * (1 - disk.free_bytes / disk.total_bytes)
            yield warning_finding(
                "search-disk",
                f"the disk of {name} is {used:.0f} % full, beyond its low watermark "
                f"({health.low_watermark})",
                "the server gets no more shards, and at the flood stage "
                f"({health.flood_stage}) its indexes become read-only",
                "add disk space, or delete indexes that nobody reads",
            )
    for index in health.indexes:
        yield from _index_findings(sink, index, health.node_count)


def _index_findings(
    sink: Sink, index: IndexHealth, node_count: int | None
) -> Iterator[CheckFinding]:
    if index.blocks:
        yield error_finding(
            "search-blocked",
            f"index {index.name} is blocked: {', '.join(index.blocks)}",
            "its rows are not written",
            f'free disk space, then PUT /{index.name}/_settings {{"index.blocks.'
            f'{index.blocks[0]}": null}}',
        )
    if node_count is not None and index.replicas >= node_count:
        most = node_count - 1
        yield warning_finding(
            "search-replicas",
            f"index {index.name} has number_of_replicas {index.replicas}, which needs "
            f"{index.replicas + 1} servers; the cluster has {node_count}",
            "some replicas cannot be assigned: the status stays yellow",
            f"set replicas = {most} in [sink.search] of {sink.name}, and PUT /"
            f'{index.name}/_settings {{"number_of_replicas": {most}}}',
        )
    if index.refresh == "-1":
        yield warning_finding(
            "search-refresh",
            f"index {index.name} is never refreshed",
            "searches do not find new rows",
            f'PUT /{index.name}/_settings {{"refresh_interval": null}}',
        )
    if index.dynamic != _STRICT:
        yield warning_finding(
            "search-dynamic-mapping",
            f"index {index.name} has a dynamic mapping ({index.dynamic})",
            "the first value of a new field decides its type, and later rows may be "
            "refused",
            f'PUT /{index.name}/_mapping {{"dynamic": "{_STRICT}"}}; towpath sink '
            f"rebuild {sink.name} creates the index with the sink's mapping",
        )


def lake_findings(sink: Sink, tables: Sequence[LakeHealth]) -> Iterator[CheckFinding]:
    """Yield the findings about a warehouse's tables."""
    limit = max(_MANY_FILES, 2 * sink.warehouse.compact_after_files)
    kept = max(_MANY_VERSIONS, 2 * sink.warehouse.history_versions)
    for table in tables:
        if table.format_version < _FORMAT:
            yield error_finding(
                "warehouse-format",
                f"table {table.name} has format version {table.format_version}",
                "rows cannot be deleted or replaced without rewriting their files",
                f"ALTER TABLE {table.name} SET TBLPROPERTIES ('format-version' = '2')",
            )
        if not table.has_identifiers:
            yield info_finding(
                "warehouse-identifiers",
                f"table {table.name} has no identifier fields",
                "engines that merge by identifiers treat every row as new",
                f"ALTER TABLE {table.name} SET IDENTIFIER FIELDS (the key's columns)",
            )
        if table.files > limit:
            yield warning_finding(
                "warehouse-files",
                f"table {table.name} has {table.files} files",
                "each read opens all of them",
                "run the driver, which compacts between batches; lower "
                f"[sink.warehouse] compact_after_files of {sink.name}",
            )
        if table.versions > kept:
            yield warning_finding(
                "warehouse-versions",
                f"table {table.name} keeps {table.versions} versions",
                "their files are kept, and each commit rewrites the list of versions",
                "run the driver, which expires them; lower [sink.warehouse] history_s "
                f"of {sink.name}",
            )


def target_findings(_sink: Sink, health: TargetHealth) -> Iterator[CheckFinding]:
    """Yield the findings about a Postgres server that a sink writes to."""
    if health.version < _OLDEST_POSTGRES:
        yield error_finding(
            "target-version",
            f"the target's version is {health.version // _VERSION_STEP}",
            "the sink's statements need version 15",
            "it must be 15 or later: upgrade the server",
        )
    if health.is_standby:
        yield error_finding(
            "target-standby",
            "the target is a standby",
            "a standby accepts no writes",
            "point the sink's url at the primary, or run pg_ctl promote",
        )
    if not health.has_fsync:
        yield warning_finding(
            "target-fsync",
            "the target has fsync off",
            "a crash of the machine loses rows that the sink counts as durable",
            "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()",
        )
    if health.connections >= _FULL_SHARE * health.max_connections:
        yield info_finding(
            "target-connections",
            f"the target has {health.connections} of {health.max_connections} "
            "connections in use",
            "the sink may not get a connection",
            "ALTER SYSTEM SET max_connections = "
            f"{2 * health.max_connections} and restart the server",
        )


def _version(text: str) -> tuple[int, ...]:
    """Parse a version; an unreadable one counts as new."""
    parts = text.split(".")[:2]
    if not all(part.isdigit() for part in parts):
        return (99,)
    return tuple(map(int, parts))


def _is_beyond(disk: Disk, watermark: str) -> bool:
    """Return whether a disk is beyond a watermark; a size means required free space."""
    if size := _SIZE.fullmatch(watermark):
        unit = (size[2] or "").lower()
        return disk.free_bytes < float(size[1]) * 1024.0 ** _UNITS.index(unit)
    text = watermark.removesuffix("%")
    share = float(text) / (1 if text == watermark else _PERCENT)
    return 1 - disk.free_bytes / disk.total_bytes >= share


def _mebibytes(count: int) -> str:
    return f"{count / 1024**2:.0f} MiB"
