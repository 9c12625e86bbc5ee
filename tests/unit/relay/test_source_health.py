"""Each risk of a running source server, provoked by facts alone, without a server."""

from typing import Any

import pytest

from support.copying import replace
from towpath.relay.postgres.source_facts import (
    OWN_TABLES,
    MemberFacts,
    PublicationFacts,
    PublishedTable,
    ServerFacts,
    SourceFacts,
    TableFacts,
)
from towpath.relay.postgres.source_health import (
    OutboxSize,
    Slot,
    SourceHealth,
    health_findings,
)
from towpath.schemas.findings import SqlFix
from towpath.settings import Kafka, Relay, Settings, Source

GIB = 1024**3
SETTINGS = Settings(
    version=1,
    source=(Source(dsn="x", tables=("shop.orders",)),),
    kafka=Kafka(bootstrap_servers="x"),
)
KEYED = MemberFacts("shop.orders", "p", "d", frozenset({"id"}))
TABLE = TableFacts(
    "r", has_row_security=False, key=("id",), unstable_key=(), members=(KEYED,)
)
ROWS = PublicationFacts(
    is_for_all=False,
    operations=(True,) * 4,
    via_root=True,
    tables={"shop.orders": PublishedTable(), "towpath.signal": PublishedTable()},
)
EVENTS = replace(
    ROWS,
    operations=(True, False, False, False),
    tables={"towpath.outbox": PublishedTable()},
)
FACTS = SourceFacts(
    server=ServerFacts(180006, "logical", "UTF8"),
    own_tables=frozenset(OWN_TABLES),
    tables={"shop.orders": TABLE},
    publications={"towpath": ROWS, "towpath_outbox": EVENTS},
    slot=None,
)
SLOT = Slot("towpath", is_logical=True, is_here=True, is_active=True, has_failover=True)
STANDBY = Slot("standby", is_logical=False, is_here=False, is_active=True)
HEALTHY = SourceHealth(
    {
        "fsync": "on",
        "wal_sender_timeout": "60000",
        "max_slot_wal_keep_size": "51200",
        "idle_replication_slot_timeout": "0",
    },
    slots=(SLOT,),
)


def ids(health: SourceHealth = HEALTHY, facts: SourceFacts = FACTS) -> set[str]:
    """Return ids and levels of the findings."""
    found = health_findings(health, facts, SETTINGS)
    return {f"{each.level} {each.id}" for each in found}


def with_setting(name: str, value: str) -> SourceHealth:
    """Return a healthy server with one changed setting."""
    return replace(HEALTHY, settings={**HEALTHY.settings, name: value})


def with_slot(**fields: Any) -> SourceHealth:
    """Return a healthy server with a changed slot."""
    return replace(HEALTHY, slots=(SLOT._replace(**fields),))


def test_a_healthy_source_has_no_findings():
    """
    Nothing is reported without a reason.
    """
    assert ids() == set()


@pytest.mark.parametrize(
    ("name", "value", "finding"),
    [
        ("fsync", "off", "error postgres-fsync"),
        ("full_page_writes", "off", "warning postgres-full-page-writes"),
        ("data_checksums", "off", "info postgres-checksums"),
        ("autovacuum", "off", "warning postgres-autovacuum"),
        ("wal_sender_timeout", "0", "warning postgres-sender-timeout"),
        ("wal_sender_timeout", "19999", "warning postgres-sender-timeout"),
        ("max_slot_wal_keep_size", "20480", "warning postgres-wal-bound-low"),
        ("idle_replication_slot_timeout", "3600", "warning postgres-idle-slot-timeout"),
    ],
)
def test_a_harmful_setting_is_found(name: str, value: str, finding: str):
    """
    B10, B11, B77: each setting that endangers data, slot or stream has one finding.
    """
    assert ids(with_setting(name, value)) == {finding}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wal_sender_timeout", "20000"),
        ("max_slot_wal_keep_size", "20481"),
        ("max_slot_wal_keep_size", "-1"),
        ("idle_replication_slot_timeout", "259200"),
    ],
)
def test_a_setting_at_its_limit_is_not_a_finding(name: str, value: str):
    """
    The limits themselves are safe; preflight reports an unlimited slot.
    """
    assert ids(with_setting(name, value)) == set()


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"retained_bytes": 10 * GIB}, "warning slot-retained-log"),
        ({"retained_bytes": 20 * GIB}, "error slot-retained-log"),
        ({"is_active": False}, "info slot-inactive"),
        ({"is_active": False, "inactive_s": 1799.0}, "info slot-inactive"),
        ({"is_active": False, "inactive_s": 1800.0}, "error slot-inactive"),
        ({"catalog_age": 100_000_000}, "warning slot-old-catalog"),
        ({"safe_wal_bytes": 5 * GIB - 1}, "warning slot-near-limit"),
        ({"wal_status": "unreserved"}, "error slot-near-limit"),
    ],
)
def test_an_endangered_slot_is_found(fields: dict[str, Any], finding: str):
    """
    B4, B10, W-15, B77: retained WAL, no reader, an old catalog xmin, or little space.
    """
    assert ids(with_slot(**fields)) == {finding}


def test_a_slot_beyond_its_limit_has_no_space_left():
    """
    The server's figure is then below zero.
    """
    slot = with_slot(wal_status="unreserved", safe_wal_bytes=-3 * GIB)
    (found,) = health_findings(slot, FACTS, SETTINGS)

    assert "may be invalidated after 0 bytes more of log" in found.what


def test_figures_have_units():
    """
    The report shows amounts in human-readable units.
    """
    found = health_findings(with_slot(retained_bytes=15 * GIB), FACTS, SETTINGS)

    assert [each.what for each in found] == ["slot towpath retains 15.0 GB of log"]


def test_a_spilling_slot_is_found_by_its_share_of_transactions():
    """
    B76: spilling is found if over 5% of the transactions spill a gigabyte in total.
    """
    many = replace(HEALTHY, spilled=(100, 6, GIB))
    one = replace(HEALTHY, spilled=(100, 5, 90 * GIB))

    assert (ids(many), ids(one)) == ({"warning slot-spilled"}, set())


def test_a_changed_collation_version_is_found():
    """
    B21: an upgraded system library may sort text keys differently than the index does.
    """
    other = replace(HEALTHY, collation=("2.28", "2.36"))
    same = replace(HEALTHY, collation=("2.36", "2.36"))
    without = replace(HEALTHY, collation=(None, "2.36"))

    assert ids(other) == {"warning postgres-collation-version"}
    assert ids(same) | ids(without) == set()


def test_wal_that_cannot_be_archived_is_found():
    """
    Such WAL fills the same disk as the slot, and no limit of the slot prevents that.
    """
    name = "000000010000000000000007"
    (found,) = health_findings(replace(HEALTHY, unarchived=name), FACTS, SETTINGS)

    assert ("postgres-archive-failing", True) == (found.id, name in found.what)


def test_a_second_slot_without_a_reader_is_found():
    """
    B9, W-20: a forgotten slot fills the same disk; a standby's copy of one does not.
    """
    other = Slot(
        *("other", True, False, False),
        retained_bytes=10 * GIB,
    )
    forgotten = replace(HEALTHY, slots=(SLOT, other))
    copied = replace(HEALTHY, slots=(SLOT, other._replace(is_synced=True)))
    read = replace(HEALTHY, slots=(SLOT, other._replace(is_active=True)))

    assert [ids(forgotten), ids(copied), ids(read)] == [
        {"warning slot-unread"},
        set(),
        set(),
    ]


def test_a_slot_that_a_promotion_would_lose_is_found():
    """
    B73, B74: standbys lack the slot or lag; before version 17, the level is only info.
    """
    two = replace(HEALTHY, slots=(SLOT._replace(has_failover=False), STANDBY))
    connected = replace(HEALTHY, standbys=("replica",))
    safe = replace(
        with_setting("synchronized_standby_slots", "standby"), slots=(SLOT, STANDBY)
    )
    older = replace(FACTS, server=ServerFacts(160000, "logical", "UTF8"))

    assert ids(two) == {"warning slot-no-failover", "warning postgres-standby-behind"}
    assert ids(connected) == {"warning postgres-standby-behind"}
    assert ids(safe) == set()
    assert ids(two, older) == {"info slot-failover-unsupported"}


@pytest.mark.parametrize(
    ("rows", "events", "finding"),
    [
        ({"is_for_all": True}, {}, "error publication-for-all"),
        (
            {},
            {"operations": (True, False, True, False)},
            "warning publication-outbox-deletes",
        ),
        (
            {"tables": {**ROWS.tables, "shop.other": PublishedTable()}},
            {},
            "warning publication-table-foreign",
        ),
    ],
)
def test_a_publication_that_sends_too_much_is_found(
    rows: dict[str, Any], events: dict[str, Any], finding: str
):
    """
    B81: all tables, foreign tables, and deletes of cleaned events.
    """
    publications = {
        "towpath": replace(ROWS, **rows),
        "towpath_outbox": replace(EVENTS, **events),
    }

    assert ids(facts=replace(FACTS, publications=publications)) == {finding}


def test_a_partitioned_table_must_be_published_via_its_root():
    """
    B32: chunks read the root, but changes would name partitions; --fix corrects that.
    """
    facts = replace(
        FACTS,
        tables={"shop.orders": TABLE._replace(kind="p")},
        publications={**FACTS.publications, "towpath": replace(ROWS, via_root=False)},
    )
    [found] = health_findings(HEALTHY, facts, SETTINGS)
    by_root = replace(facts, publications=FACTS.publications)

    assert ids(facts=by_root) == set()
    assert found.id == "publication-via-root"
    assert found.fix == SqlFix(
        'ALTER PUBLICATION "towpath" SET (publish_via_partition_root = true)'
    )


def test_a_full_identity_despite_a_key_is_reported():
    """
    B61: this identity is allowed, but doubles the WAL.
    """
    member = KEYED._replace(identity="f", identity_columns=frozenset())
    full = {"shop.orders": TABLE._replace(members=(member,))}
    keyless = {"shop.orders": TABLE._replace(members=(member,), key=())}

    assert ids(facts=replace(FACTS, tables=full)) == {"info table-identity-full"}
    assert ids(facts=replace(FACTS, tables=keyless)) == set()


@pytest.mark.parametrize(
    ("size", "finding"),
    [
        (OutboxSize(bytes=10 * GIB), "warning outbox-large"),
        (OutboxSize(rows=10, dead_rows=100_000), "warning outbox-dead-rows"),
        (OutboxSize(detaching=["o_1"]), "warning outbox-partition-detaching"),
    ],
)
def test_an_outbox_that_is_not_cleaned_is_found(size: OutboxSize, finding: str):
    """
    B81: it is too large, or has too many dead rows or a half-detached partition.
    """
    assert ids(replace(HEALTHY, outbox=size)) == {finding}
    assert (
        ids(replace(HEALTHY, outbox=size), replace(FACTS, own_tables=frozenset()))
        == set()
    )


def test_the_configured_alarm_limits_apply_to_the_slot():
    """
    Lower alarm limits in [relay] produce a finding for less retained WAL.
    """
    lower = SETTINGS.model_copy(
        update={"relay": Relay(retained_warning_bytes=1, retained_critical_bytes=2)}
    )
    found = health_findings(with_slot(retained_bytes=1), FACTS, lower)

    assert [(each.level, each.id) for each in found] == [
        ("warning", "slot-retained-log")
    ]
