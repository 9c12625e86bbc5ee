"""
Checks of the doctor, made to fail on servers with a history or an old release.

They find old transactions and slots, spilled transactions, outdated releases, a
read-only registry, and a full disk.

Two checks have no test here. A broker older than 2.5 needs ZooKeeper, which no other
test needs; OpenSearch 1 needs an older Java than the other servers. Their logic is
tested in test_preflight.py and test_target_health.py.
"""

import json
from pathlib import Path

import psycopg
import pytest
import requests
from opensearchpy import OpenSearch

from support import old_servers
from support.examined_source import (
    TABLES,
    Source,
    examined,
    health,
    health_of_postgres,
    prepared,
)
from support.own_postgres import OwnPostgres
from support.waiting import until
from towpath.deploy.doctor.servers import registry_findings
from towpath.deploy.local import postgres
from towpath.relay.__main__ import init
from towpath.relay.errors import NotPreparedError

# Long enough for servers to start on a busy machine.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PREPARED = "create table held (id int); begin; insert into held values (1);"
HOUR_S = 3600.0
# The first transaction of a new pg_xact file, which the server then creates.
LATE_TRANSACTION = 128 * 2**20
LARGE_TRANSACTION = """
select pg_logical_emit_message(true, 'x', repeat('x', 1000000))
from generate_series(1, 64)
"""
PEEK = """
select count(*) from pg_logical_slot_peek_binary_changes('{name}', null, null,
    'proto_version', '1', 'publication_names', 'towpath')
"""
WATERMARK = "cluster.routing.allocation.disk.watermark"


@pytest.fixture(scope="session")
def stack(worker_stack):
    """Provide the worker's own stack: tests configure its servers."""
    return worker_stack


def test_a_transaction_that_has_been_prepared_for_an_hour_is_found(
    stack, server: OwnPostgres, unique: str, tmp_path: Path
):
    """
    The prepared transaction survives a restart.
    """
    source = prepared(stack, server.start(), unique, tmp_path)
    with psycopg.connect(source.dsn, autocommit=True) as connection:
        connection.execute(PREPARED)
        connection.execute("prepare transaction 'forgotten'")
    before = examined(source)
    server.stop()
    server.backdate_prepared(HOUR_S)
    server.start()

    assert {"warning transaction-old"} == examined(source) - before


def test_a_slot_that_keeps_an_old_catalog_is_found(
    stack, server: OwnPostgres, unique: str, tmp_path: Path
):
    """
    134 million transactions pass while the slot does not advance.
    """
    source = prepared(stack, server.start(), unique, tmp_path)
    before = examined(source)
    server.stop()
    server.advance_transactions(LATE_TRANSACTION)
    server.start()

    assert {"warning slot-old-catalog"} == examined(source) - before


def test_a_slot_that_spills_transactions_is_found(source: Source):
    """
    A large transaction is decoded repeatedly with little memory.
    """
    source.execute(LARGE_TRANSACTION)
    before = examined(source)
    source.execute("set logical_decoding_work_mem = '64kB'", *[PEEK] * 17)

    assert {"warning slot-spilled"} == examined(source) - before


def test_wal_that_cannot_be_archived_is_found(
    stack, server: OwnPostgres, unique: str, tmp_path: Path
):
    """
    The archive command fails for the first file; once corrected, it succeeds.
    """
    dsn = server.start(archive_mode="on", archive_command="false")
    source = prepared(stack, dsn, unique, tmp_path)
    before = examined(source)
    source.execute("select pg_switch_wal()")
    failing = "warning postgres-archive-failing"
    until(lambda: failing in examined(source), "archiving has failed")
    found = examined(source) - before
    server.stop()
    server.start(archive_mode="on", archive_command="true")
    until(lambda: failing not in examined(source), "the file is archived")

    assert {failing} == found


def test_a_source_and_a_target_that_are_too_old_are_found(
    stack, unique: str, tmp_path: Path
):
    """
    Only the version is reported, as other checks need a newer catalog; init is refused.
    """
    with old_servers.old_postgres() as addresses:
        postgres.create_database(addresses.dsn("postgres"), unique)
        source = Source(stack, addresses.dsn(unique), unique, tmp_path)
        source.execute(TABLES)
        found, target = examined(source), health_of_postgres(source.dsn)
        with pytest.raises(NotPreparedError, match="upgrade the server to 15 or later"):
            init(source.config, dry_run=False)

    assert ({"error postgres-version"}, {"error target-version"}) == (found, target)


@pytest.mark.soak
def test_a_cache_that_is_too_old_is_found(tmp_path: Path):
    """
    Redis 6.2 has no functions.
    """
    with old_servers.old_cache(tmp_path) as server:
        assert {"error cache-version"} == health("cache", server.url, "r")


def test_a_read_only_registry_is_found(stack, bare: Source):
    """
    The request that the finding suggests makes the registry writable again.
    """
    avro = '[relay.rows]\nformat = "avro"'
    settings = bare.configure(avro, registry=stack.registry_url)
    before = registry_findings(settings)
    mode = f"{stack.registry_url}/mode"
    try:
        requests.put(mode, json={"mode": "READONLY"}, timeout=20).raise_for_status()
        (found,) = registry_findings(settings)
        method, url, body = str(found.cure).split(" ", 2)
        requests.request(method, url, json=json.loads(body), timeout=20)
        after = registry_findings(settings)
    finally:
        requests.put(mode, json={"mode": "READWRITE"}, timeout=20)

    assert ([], "registry-read-only", []) == (before, found.id, after)


def test_a_disk_beyond_the_watermark_of_its_index_is_found(stack, unique: str):
    """
    The check uses the cluster's own watermark, which the test lowers.
    """
    client = OpenSearch(hosts=[stack.opensearch_url])

    def examine(*bounds: str | None) -> set[str]:
        names = (f"{WATERMARK}.{name}" for name in ("low", "high", "flood_stage"))
        settings = dict(zip(names, bounds, strict=True))
        client.cluster.put_settings(body={"transient": settings})
        return health("search", stack.opensearch_url, unique)

    try:
        before = examine("99.7%", "99.8%", "99.9%")
        found = examine("0.001%", "99.8%", "99.9%")
    finally:
        examine(None, None, None)
        client.close()

    assert {"warning search-disk"} == found - before
