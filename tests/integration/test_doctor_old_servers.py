"""
Checks of the doctor that need a server with a past, made to fail on such servers.

Old transactions and slots, transactions that were spilled, releases that are too old, a
registry that somebody closed, and a disk that filled.

Two checks have no server here. A broker that speaks a version before 2.5 needs
ZooKeeper, which no other test needs; OpenSearch 1 needs a Java older than the others'.
Their facts are tested in test_preflight.py and test_target_health.py.
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

# Servers that start on a machine that others keep busy.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PREPARED = "create table held (id int); begin; insert into held values (1);"
HOUR_S = 3600.0
# The first transaction of a file of their states, which the server creates then.
LATE_TRANSACTION = 128 * 2**20
LARGE_TRANSACTION = """
select pg_logical_emit_message(true, 'x', repeat('x', 1000000))
from generate_series(1, 64)
"""
READ_IN_VAIN = """
select count(*) from pg_logical_slot_peek_binary_changes('{name}', null, null,
    'proto_version', '1', 'publication_names', 'towpath')
"""
WATERMARK = "cluster.routing.allocation.disk.watermark"


def test_a_transaction_that_is_prepared_for_an_hour_is_found(
    stack, server: OwnPostgres, unique: str, tmp_path: Path
):
    """
    It outlived a restart, and holds back what its slot already waits for.
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
    Transactions went on for 134 millions, and the slot did not.
    """
    source = prepared(stack, server.start(), unique, tmp_path)
    before = examined(source)
    server.stop()
    server.advance_transactions(LATE_TRANSACTION)
    server.start()

    assert {"warning slot-old-catalog"} == examined(source) - before


def test_a_slot_that_spills_transactions_is_found(source: Source):
    """
    A large transaction is decoded again and again, within little memory.
    """
    source.execute(LARGE_TRANSACTION)
    before = examined(source)
    source.execute("set logical_decoding_work_mem = '64kB'", *[READ_IN_VAIN] * 17)

    assert {"warning slot-spilled"} == examined(source) - before


def test_a_log_that_cannot_be_archived_is_found(
    stack, server: OwnPostgres, unique: str, tmp_path: Path
):
    """
    The command fails for the first file, and is corrected.
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
    The catalog of Postgres 14 lacks what other checks read, and ``init`` says so too.
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


def test_a_registry_that_is_only_read_is_found(stack, bare: Source):
    """
    The cure, sent as it is written, ends it.
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
    The cluster's own watermark counts, which an administrator lowered.
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
