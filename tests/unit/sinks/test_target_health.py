"""The risks of each target, derived from given facts alone."""

from typing import Any

import pytest

from towpath.settings import Route, Sink
from towpath.sinks.targets.health import (
    CacheHealth,
    Disk,
    IndexHealth,
    LakeHealth,
    SearchHealth,
    TargetHealth,
    cache_findings,
    lake_findings,
    search_findings,
    target_findings,
)

SINK = Sink(
    name="s", kind="cache", url="redis://x", route=(Route(topic="t", name="r"),)
)
CACHE = CacheHealth("x:1", "7.4.0")
SEARCH = SearchHealth("3.1.0", status="green", node_count=1)
LAKE = LakeHealth("lake.a.b")
TARGET = TargetHealth(170000)


def ids(found) -> list[str]:
    """Return level and id of each finding."""
    return [f"{each.level} {each.id}" for each in found]


def test_healthy_targets_have_no_finding():
    """
    Nothing is reported without a reason; a hidden fact is not a reason.
    """
    assert [] == ids(
        [
            *cache_findings(SINK, [CACHE, CACHE._replace(version="valkey")]),
            *search_findings(SINK, SEARCH),
            *search_findings(SINK, SearchHealth("2.0", indexes=[IndexHealth("i", 9)])),
            *lake_findings(SINK, [LAKE]),
            *target_findings(SINK, TARGET),
        ]
    )


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"version": "6.2.14"}, "error cache-version"),
        ({"policy": "allkeys-lru"}, "error cache-eviction"),
        ({"used_bytes": 80, "bound_bytes": 100}, "warning cache-memory"),
        ({"keeps_file": False}, "warning cache-no-file"),
        ({"file_failed": True}, "error cache-file-failed"),
    ],
)
def test_a_cache_that_loses_rows_is_found(fields: dict[str, Any], finding: str):
    """
    It may evict rows, be full, be too old, or have no persistence file or a failed one.
    """
    assert [finding] == ids(cache_findings(SINK, [CACHE._replace(**fields)]))


def test_the_memory_of_a_full_cache_is_named_in_its_unit():
    """
    A MiB has 1024 KiB.
    """
    full = CACHE._replace(used_bytes=90 * 1024**2, bound_bytes=100 * 1024**2)
    (found,) = cache_findings(SINK, [full])

    assert "x:1 uses 90 MiB of 100 MiB" == found.what


def test_the_loss_of_a_cache_without_a_file_depends_on_its_snapshots():
    """
    The effect names the rows that a restart loses.
    """
    none, some = (
        next(cache_findings(SINK, [CACHE._replace(keeps_file=False, saves=saves)])).why
        for saves in (False, True)
    )

    assert none.startswith("a restart loses all rows")
    assert some.startswith("a restart loses the rows written after the last snapshot")


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"version": "1.3.2"}, "error search-version"),
        ({"status": "red"}, "error search-red"),
        ({"disks": {"n": Disk(100, 15)}}, "warning search-disk"),
        ({"indexes": [IndexHealth("i", blocks=["write"])]}, "error search-blocked"),
        ({"indexes": [IndexHealth("i", replicas=1)]}, "warning search-replicas"),
        ({"indexes": [IndexHealth("i", refresh="-1")]}, "warning search-refresh"),
        (
            {"indexes": [IndexHealth("i", dynamic="true")]},
            "warning search-dynamic-mapping",
        ),
    ],
)
def test_a_search_index_that_refuses_rows_is_found(
    fields: dict[str, Any], finding: str
):
    """
    It lacks a shard, disk space or a replica's server, is blocked, or maps dynamically.

    It may also never be refreshed, or its cluster may be too old.
    """
    assert [finding] == ids(search_findings(SINK, SEARCH._replace(**fields)))


@pytest.mark.parametrize(
    ("watermark", "free_bytes", "is_found"),
    [
        ("85%", 1501, False),
        ("85%", 1500, True),
        ("0.9", 1001, False),
        ("0.9", 1000, True),
        ("1kb", 1024, False),
        ("1kb", 1023, True),
        ("1KB", 1024, False),
        ("1KB", 1023, True),
        ("1k", 1023, True),
        ("1024b", 1023, True),
    ],
)
def test_a_disk_is_full_by_the_watermark_of_its_cluster(
    watermark: str, free_bytes: int, is_found: bool
):
    """
    A percentage or a ratio is a share of used space; a size is an amount of free space.
    """
    health = SEARCH._replace(
        disks={"n": Disk(10_000, free_bytes)}, low_watermark=watermark
    )

    assert is_found == bool(ids(search_findings(SINK, health)))


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"format_version": 1}, "error warehouse-format"),
        ({"files": 5_001}, "warning warehouse-files"),
        ({"versions": 1_001}, "warning warehouse-versions"),
        ({"has_identifiers": False}, "info warehouse-identifiers"),
    ],
)
def test_a_warehouse_that_grows_is_found(fields: dict[str, Any], finding: str):
    """
    The table's metadata shows its format, files, versions and identifier fields.
    """
    assert [finding] == ids(lake_findings(SINK, [LAKE._replace(**fields)]))


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"version": 140000}, "error target-version"),
        ({"is_standby": True}, "error target-standby"),
        ({"has_fsync": False}, "warning target-fsync"),
        ({"connections": 80}, "info target-connections"),
    ],
)
def test_a_target_that_cannot_be_written_is_found(fields: dict[str, Any], finding: str):
    """
    It may be too old or a standby, have fsync off, or have few connections left.
    """
    assert [finding] == ids(target_findings(SINK, TARGET._replace(**fields)))


def test_the_version_of_an_old_target_is_shown_in_its_common_form():
    """
    Postgres reports 14.5 as 140005.
    """
    (found,) = target_findings(SINK, TARGET._replace(version=140005))

    assert "the target's version is 14" == found.what
