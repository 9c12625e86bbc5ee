"""Each check of the doctor, made to fail on a real server."""

import json
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema
from opensearchpy import OpenSearch
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as LakeSchema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from support.examined_source import Source, examined, ids
from support.registry import registry_client
from support.valkey import valkey
from support.waiting import until
from towpath.cli.app import run
from towpath.deploy.doctor.servers import (
    broker_findings,
    registry_findings,
    source_findings,
)
from towpath.schemas import topics
from towpath.schemas.clock import SystemClock
from towpath.schemas.table_name import TableName
from towpath.settings import Route, Sink
from towpath.sinks.kinds import kind_of
from towpath.sinks.targets.warehouse.client import open_catalog

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

SLOT = "select pg_drop_replication_slot('{name}');"
CREATE_SLOT = SLOT + "select pg_create_logical_replication_slot('{name}', '{plugin}')"

JSON_SCHEMA = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
KEYLESS = """
alter table note drop constraint note_pkey;
alter table note replica identity full;
"""
FILTERED = (
    "alter publication towpath set table note where (id > 1), day, towpath.signal"
)


class SlowClock(SystemClock):
    """A clock that is an hour slow."""

    def now(self) -> datetime:
        return super().now() - timedelta(hours=1)


@pytest.mark.parametrize(
    ("statements", "finding"),
    [
        (
            "alter publication towpath set (publish = 'insert')",
            "warning publication-operations",
        ),
        (
            "alter publication towpath set (publish_via_partition_root = false)",
            "error publication-via-root",
        ),
        (
            "alter publication towpath add table other",
            "warning publication-table-foreign",
        ),
        (
            "drop publication towpath; create publication towpath for all tables",
            "error publication-for-all",
        ),
        (
            "alter publication towpath_outbox set (publish = 'insert, delete')",
            "warning publication-outbox-deletes",
        ),
        (
            FILTERED,
            "warning publication-row-filter",
        ),
        (
            "alter publication towpath set table note (body), day, towpath.signal",
            "error publication-columns-lack-key",
        ),
        (
            "alter publication towpath drop table towpath.signal",
            "error publication-table-missing",
        ),
        (
            "alter publication towpath add tables in schema public",
            "warning publication-schema",
        ),
        ("drop publication towpath_outbox", "error publication-missing"),
        (
            "alter publication towpath drop table note; alter table note set unlogged",
            "error table-unlogged",
        ),
        ("alter table note replica identity nothing", "error table-identity-none"),
        ("alter table note replica identity full", "info table-identity-full"),
        (
            KEYLESS,
            "warning table-no-primary-key",
        ),
        ("alter table note enable row level security", "warning table-row-security"),
        ("drop table day", "error table-missing"),
        ("drop table note; create view note as select 1 as id", "error table-kind"),
        ("drop table towpath.heartbeat", "error own-table-missing"),
        ("delete from towpath.relay", "error relay-unregistered"),
        ("alter table towpath.outbox rename payload to body", "error outbox-columns"),
        (
            CREATE_SLOT.replace("{plugin}", "test_decoding"),
            "error slot-foreign",
        ),
        (
            CREATE_SLOT.replace("{plugin}", "pgoutput")
            + ";select pg_create_physical_replication_slot('{name}_standby')",
            "warning slot-no-failover",
        ),
        (
            "select pg_create_physical_replication_slot('{name}_standby')",
            "warning postgres-standby-behind",
        ),
    ],
)
def test_an_altered_source_is_found(source: Source, statements: str, finding: str):
    """
    Each finding is absent until the source is altered (B32, B61, B73, B74, B81).
    """
    before = examined(source)
    source.execute(statements)

    assert finding not in before
    assert finding in examined(source)


def test_a_missing_outbox_gives_one_finding(source: Source):
    """Two checks detect it, but it is reported only once."""
    source.execute("drop table towpath.outbox")

    found = source_findings(source.configure(), SystemClock())

    missing = [each.what for each in found if each.id == "own-table-missing"]
    assert missing == ["table towpath.outbox is missing, or from an earlier release"]


@pytest.mark.parametrize(
    ("statements", "more", "finding"),
    [
        (
            "select pg_switch_wal()",
            "[relay]\nretained_warning_bytes = 1",
            "warning slot-retained-log",
        ),
        (
            "select pg_create_logical_replication_slot('{name}_other', 'pgoutput')",
            "[relay]\nretained_warning_bytes = 1",
            "warning slot-unread",
        ),
        ("select 1", "[relay]\ninactive_critical_s = 1e-6", "error slot-inactive"),
        (
            "alter database {name} set wal_sender_timeout = 0",
            "",
            "warning postgres-sender-timeout",
        ),
    ],
)
def test_risks_for_the_slot_are_found(
    source: Source, statements: str, more: str, finding: str
):
    """
    The doctor finds retained WAL, idle slots and a disabled timeout (B4, B10, B11).
    """
    before = examined(source)
    source.execute(statements, "select pg_logical_emit_message(true, 'x', 'y')")

    assert finding not in before
    assert finding in examined(source, more)


def test_dangerous_server_settings_are_found(source: Source):
    """
    The settings are changed with ALTER SYSTEM while the server runs (B10, B77).
    """
    dangerous = {
        "fsync": "off",
        "full_page_writes": "off",
        "autovacuum": "off",
        "max_slot_wal_keep_size": "'1GB'",
        "idle_replication_slot_timeout": "'1h'",
    }
    loaded_at = "select pg_conf_load_time()"
    with psycopg.connect(source.dsn, autocommit=True) as connection:
        before = connection.execute(loaded_at).fetchone()
        try:
            for name, value in dangerous.items():
                connection.execute(f"alter system set {name} = {value}")
            connection.execute("select pg_reload_conf()")
            until(
                lambda: connection.execute(loaded_at).fetchone() != before,
                "the settings are loaded",
            )
            found = examined(source)
        finally:
            for name in dangerous:
                connection.execute(f"alter system reset {name}")
            connection.execute("select pg_reload_conf()")

    assert {
        "error postgres-fsync",
        "warning postgres-full-page-writes",
        "warning postgres-autovacuum",
        "warning postgres-wal-bound-low",
        "warning postgres-idle-slot-timeout",
    } <= found


def test_topics_that_lose_records_are_found(bare: Source):
    """
    Each wrong setting of topics that were created by hand is found.
    """
    name = bare.name
    dead = topics.dead_letter_topic(name, "relay")
    note = topics.table_topic(name, TableName("public", "note"))
    bare.topic(topics.state_topic(name), cleanup_policy="delete", partitions="2")
    bare.topic(dead, retention_ms="3600000", max_message_bytes="5000")
    bare.topic(
        note,
        retention_ms="7200000",
        retention_bytes="1000",
        min_insync_replicas="2",
        max_message_bytes="6000",
    )
    bare.topic(f"{name}.events", cleanup_policy="compact")
    sink = f"""
[[sink]]
name = "lake"
kind = "warehouse"
url = "postgresql://x@x/x"
folder = "/tmp/lake"
[[sink.route]]
topic = "{name}.events"
name = "a.b"
kind = "event_log"
"""
    found = broker_findings(bare.configure(sink))

    assert ids(found) >= {
        "error topic-not-compacted",
        "error topic-state-partitions",
        "error topic-dead-letters-expire",
        "warning topic-dead-letters-size",
        "warning topic-retention-time",
        "warning topic-retention-bytes",
        "error topic-min-insync",
        "warning topic-message-bytes",
        "warning topic-events-compacted",
    }


def test_a_cluster_that_cannot_hold_the_topics_is_found(bare: Source):
    """
    With too high a replication factor, no topic could be created.
    """
    found = broker_findings(bare.configure("[topics]\nreplication_factor = 3"))

    assert "error kafka-replication-impossible" in ids(found)


def test_fixes_are_printed_applied_and_checked_again(source: Source, capsys):
    """
    Publication, identity and topic are fixed; other findings are left to the operator.
    """
    note = topics.table_topic(source.name, TableName("public", "note"))
    source.topic(note, retention_ms="7200000")
    source.execute(
        "alter publication towpath set (publish = 'insert, update')",
        "alter publication towpath set (publish_via_partition_root = false)",
        "alter table note replica identity nothing",
        "alter publication towpath add table other",
    )
    fixed = {
        *("publication-operations", "publication-via-root", "table-identity-none"),
        "topic-retention-time",
    }

    def report(*options: str) -> tuple[set[str], str]:
        capsys.readouterr()
        run(["doctor", "--json", "--config", str(source.config), *options])
        shown = capsys.readouterr()
        return {row["id"] for row in json.loads(shown.out)}, shown.err

    before, silent = report()
    after, printed = report("--fix")

    assert fixed | {"publication-table-foreign"} <= before
    assert "fix:" not in silent
    assert fixed & after == set()
    assert "publication-table-foreign" in after
    assert 'fix: ALTER TABLE "public"."note" REPLICA IDENTITY DEFAULT\n' in printed
    assert f"--entity-name {note} --add-config retention.ms=604800000\n" in printed


def test_a_refused_fix_does_not_prevent_the_others(source: Source, capsys):
    """
    A role that does not own the publication cannot alter it; the topic is still fixed.
    """
    note = topics.table_topic(source.name, TableName("public", "note"))
    source.topic(note, retention_ms="7200000")
    role = f"{source.name}_r"
    grants = "grant all on all tables in schema public, towpath to {}"
    source.execute(
        "alter publication towpath set (publish = 'insert')",
        f"create role {role} login replication",
        f"grant usage on schema towpath to {role}",
        grants.format(role),
    )
    own = source.dsn
    source.dsn = own.replace("postgres@", f"{role}@")
    source.configure()
    try:
        capsys.readouterr()
        run(["doctor", "--json", "--fix", "--config", str(source.config)])
        shown = capsys.readouterr()
    finally:
        source.dsn = own
        source.execute(f"drop owned by {role}", f"drop role {role}")
    left = {row["id"] for row in json.loads(shown.out)}

    assert "not fixed: ALTER PUBLICATION" in shown.err
    assert ("publication-operations" in left, "topic-retention-time" in left) == (
        True,
        False,
    )


def test_a_registry_that_would_refuse_a_schema_is_found(stack, bare: Source):
    """
    The subject has a schema of a different type, and no compatibility check (B72).
    """
    settings = bare.configure(
        '[relay.rows]\nformat = "avro"', registry=stack.registry_url
    )
    before = registry_findings(settings)
    topic = topics.table_topic(bare.name, TableName("public", "note"))
    with closing(registry_client(stack.registry_url)) as client:
        client.register_schema(f"{topic}-value", Schema(JSON_SCHEMA, "JSON"))
        client.set_compatibility(f"{topic}-value", "NONE")

    assert (before, ids(registry_findings(settings))) == (
        [],
        {"error registry-subject-foreign", "info registry-compatibility"},
    )


def sink_of(kind: str, url: str, route: str, **more: object) -> Sink:
    """Return a sink with one route."""
    return Sink(
        name="s", kind=kind, url=url, route=(Route(topic="t", name=route),), **more
    )


def health(sink: Sink, clock: SystemClock | None = None) -> set[str]:
    """Check the target of a sink, and return the ids of the findings."""
    check = kind_of(sink).health
    assert check is not None
    return ids(list(check(sink, clock or SystemClock())))


def test_a_cache_that_may_lose_rows_is_found(tmp_path: Path):
    """
    The server has eviction, hardly any memory left, and no persistence.
    """
    with valkey(tmp_path / "safe", "--appendonly", "yes") as safe:
        none = health(sink_of("cache", safe.url, "r"))
        late = health(sink_of("cache", safe.url, "r"), SlowClock())
    weak = ("--maxmemory-policy", "allkeys-lru", "--maxmemory", "1mb")
    with valkey(tmp_path / "weak", "--appendonly", "no", *weak) as server:
        found = health(sink_of("cache", server.url, "r"))
        rules = ("reset", "on", ">p", "-@all", "+info")
        server.client.execute_command("ACL", "SETUSER", "least", *rules)
        least = server.url.replace("redis://", "redis://least:p@")
        denied = health(sink_of("cache", least, "r"), SlowClock())

    assert none == set()
    assert late == {"warning clock-skew"}
    assert found == {
        "error cache-eviction",
        "warning cache-memory",
        "warning cache-no-file",
    }
    # A user who may not read the server's clock gets no finding about it.
    assert denied == found


def test_an_index_that_refuses_or_hides_rows_is_found(stack, unique: str):
    """
    The index has a write block, no refresh, a missing replica and a dynamic mapping.
    """
    client = OpenSearch(hosts=[stack.opensearch_url])
    sink = sink_of("search", stack.opensearch_url, unique)
    none = health(sink)
    settings = {"number_of_replicas": 1, "refresh_interval": "-1"}
    client.indices.create(index=unique, body={"settings": {"index": settings}})
    client.indices.put_settings(index=unique, body={"index.blocks.write": True})
    try:
        found = health(sink)
        late = health(sink, SlowClock())
    finally:
        client.indices.delete(index=unique)
        client.close()

    assert found - none == {
        "error search-blocked",
        "warning search-refresh",
        "warning search-replicas",
        "warning search-dynamic-mapping",
    }
    assert late - found == {"warning clock-skew"}


def test_a_warehouse_table_in_an_old_format_is_found(database: str, tmp_path: Path):
    """
    The table's metadata has format version 1 and no identifier fields.
    """
    sink = sink_of("warehouse", database, "lake.notes", folder=tmp_path)
    absent = health(sink)
    catalog = open_catalog(sink)
    catalog.create_tables()
    catalog.create_namespace("lake")
    fields = NestedField(1, "id", LongType(), required=True)
    catalog.create_table(
        "lake.notes", LakeSchema(fields), properties={"format-version": "1"}
    )
    catalog.close()

    assert (absent, health(sink)) == (
        set(),
        {"error warehouse-format", "info warehouse-identifiers"},
    )


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_warehouse_table_without_maintenance_is_found(database: str, tmp_path: Path):
    """
    A real table gets more than 5,000 files, and then more than 1,000 versions.
    """
    sink = sink_of("warehouse", database, "lake.notes", folder=tmp_path)
    catalog = open_catalog(sink)
    catalog.create_tables()
    catalog.create_namespace("lake")
    fields = NestedField(1, "id", LongType(), required=True)
    by_id = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    table = catalog.create_table(
        "lake.notes", LakeSchema(fields, identifier_field_ids=[1]), partition_spec=by_id
    )
    form = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    found = []
    for ids_of_files in (range(5_000), range(5_000, 5_001)):
        table.append(pa.table({"id": list(ids_of_files)}, form))
        found.append(health(sink))
    for versions in (1_000, 1_001):
        lengthen_history(catalog, table, versions)
        found.append(health(sink))
    catalog.close()

    files, versions = "warning warehouse-files", "warning warehouse-versions"
    assert [set(), {files}, {files}, {files, versions}] == found


def lengthen_history(catalog: Catalog, table: Table, versions: int) -> None:
    """Add copies of a table's last version; committing each would take minutes."""
    file = Path(urlsplit(table.metadata_location).path)
    metadata = json.loads(file.read_text(encoding="utf-8"))
    *_, last = metadata["snapshots"]
    metadata["snapshots"] += [
        {**last, "snapshot-id": number}
        for number in range(versions - len(metadata["snapshots"]))
    ]
    longer = file.with_name(f"{versions}.metadata.json")
    longer.write_text(json.dumps(metadata), encoding="utf-8")
    catalog.drop_table("lake.notes")
    catalog.register_table("lake.notes", longer.as_uri())


def test_the_clocks_of_source_and_target_are_compared(source: Source):
    """
    A slow local clock has the same effect as a fast server clock (B82).
    """
    settings = source.configure()
    target = sink_of("postgres", source.dsn, "public.copy")

    assert "warning clock-skew" not in ids(source_findings(settings, SystemClock()))
    assert "warning clock-skew" in ids(source_findings(settings, SlowClock()))
    assert health(target) == set()
    assert health(target, SlowClock()) == {"warning clock-skew"}
