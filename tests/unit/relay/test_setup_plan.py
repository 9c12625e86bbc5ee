"""The plan of ``relay init``, and its refusals, computed from facts alone."""

import pytest

from support.copying import replace
from towpath.relay.errors import NotPreparedError
from towpath.relay.postgres.relays import RelayFacts
from towpath.relay.postgres.setup import check_source, plan_setup, source_warnings
from towpath.relay.postgres.source_facts import (
    OWN_TABLES,
    MemberFacts,
    PublicationFacts,
    PublishedTable,
    ServerFacts,
    SourceFacts,
    TableFacts,
)
from towpath.relay.recovery.lineage import SlotHistory
from towpath.settings import Kafka, OnUpdate, Outbox, Registry, Relay, Settings, Source

SETTINGS = Settings(
    version=1,
    source=(Source(dsn="x", tables=("shop.orders",)),),
    kafka=Kafka(bootstrap_servers="x"),
    registry=Registry(url="http://x"),
)
MEMBER = MemberFacts("shop.orders", "p", "d", frozenset({"id"}))
TABLE = TableFacts("r", False, ("id",), (), (MEMBER,))
NAMED = PublishedTable()
OWN = frozenset(OWN_TABLES)
ALL = (True, True, True, True)
INSERTS = (True, False, False, False)
TABLES = PublicationFacts(
    is_for_all=False,
    operations=ALL,
    via_root=True,
    tables={"shop.orders": NAMED, "towpath.signal": NAMED},
)
EVENTS = PublicationFacts(
    is_for_all=False,
    operations=INSERTS,
    via_root=True,
    tables={"towpath.outbox": NAMED},
)
SERVER = ServerFacts(version=180006, wal_level="logical", encoding="UTF8")
READY = SourceFacts(
    server=SERVER,
    own_tables=OWN,
    tables={"shop.orders": TABLE},
    publications={"towpath": TABLES, "towpath_outbox": EVENTS},
    slot=SlotHistory(confirmed_lsn=1),
    relays=RelayFacts({"towpath": 1}),
)
BARE = replace(
    READY, own_tables=frozenset(), publications={}, slot=None, relays=RelayFacts()
)


def with_table(**change) -> SourceFacts:
    """Change facts about the only table."""
    return replace(READY, tables={"shop.orders": replace(TABLE, **change)})


def with_member(**change) -> SourceFacts:
    """Change facts about the only member, which is the table itself."""
    return with_table(members=(replace(MEMBER, **change),))


def with_publication(**change) -> SourceFacts:
    """Change facts about the tables' publication."""
    publications = {"towpath": replace(TABLES, **change), "towpath_outbox": EVENTS}
    return replace(READY, publications=publications)


def test_a_prepared_source_needs_no_plan():
    """
    If everything exists, nothing is planned, and there are no warnings.
    """
    assert ([], []) == (plan_setup(READY, SETTINGS), source_warnings(READY, SETTINGS))


def test_the_slot_is_created_last():
    """
    B28: schema, tables and publications precede the slot.
    """
    statements = [
        step.statement.split("(")[0].split()[:2] for step in plan_setup(BARE, SETTINGS)
    ]

    assert [
        ["create", "schema"],
        *[["create", "table"]] * 6,
        ["insert", "into"],
        *[["create", "publication"]] * 2,
        ["select", "pg_catalog.pg_create_logical_replication_slot"],
    ] == statements


@pytest.mark.parametrize(("version", "has_failover"), [(160000, False), (170000, True)])
def test_the_slot_is_created_with_failover_where_supported(
    version: int, *, has_failover: bool
):
    """
    B73: from version 17 on, the slot is created with failover.
    """
    server = replace(SERVER, version=version)
    step = plan_setup(replace(BARE, server=server), SETTINGS)[-1]

    assert has_failover == step.statement.endswith("true)")


def test_an_outbox_table_with_a_configured_name_is_not_created():
    """
    A configured outbox table with a different name is the user's own.
    """
    relay = Relay(outbox=Outbox(table="shop.events"))
    elsewhere = SETTINGS.model_copy(update={"relay": relay})
    made = [step.purpose for step in plan_setup(BARE, elsewhere)]

    assert "creating table towpath.outbox" not in made


@pytest.mark.parametrize(
    ("on_update", "sends"),
    [
        (OnUpdate.WARN, "publish = 'insert',"),
        (OnUpdate.ERROR, "publish = 'insert, update',"),
        (OnUpdate.HALT, "publish = 'insert, update',"),
    ],
)
def test_outbox_updates_are_published_only_if_handled(on_update: OnUpdate, sends: str):
    """
    The outbox's publication sends updates only if the configuration handles them.
    """
    relay = Relay(outbox=Outbox(on_update=on_update))
    steps = plan_setup(BARE, SETTINGS.model_copy(update={"relay": relay}))

    assert any("towpath_outbox" in s.statement and sends in s.statement for s in steps)


def test_the_publication_of_the_outbox_is_reconciled():
    """
    A publication created with other settings is altered.
    """
    relay = Relay(outbox=Outbox(on_update=OnUpdate.HALT))
    (step,) = plan_setup(READY, SETTINGS.model_copy(update={"relay": relay}))

    assert (
        "alter publication \"towpath_outbox\" set (publish = 'insert, update')"
        == step.statement
    )


@pytest.mark.parametrize(
    ("tables", "part"),
    [
        ({"towpath.signal": NAMED}, 'add table only "shop"."orders"'),
        ({**TABLES.tables, "shop.old": NAMED}, 'drop table only "shop"."old"'),
    ],
)
def test_a_publication_is_reconciled_with_the_tables(tables: dict, part: str):
    """
    A missing table is added, and a surplus one is dropped; the others are unchanged.
    """
    (step,) = plan_setup(with_publication(tables=tables), SETTINGS)

    assert f'alter publication "towpath" {part}' == step.statement


def test_a_users_publication_is_used_unchanged():
    """
    W-08, W-09: its column lists, filters and operations are kept.
    """
    listed = PublishedTable(frozenset({"id", "note"}), "(id > 5)")
    tables = {"shop.orders": listed, "towpath.signal": NAMED}
    facts = with_publication(tables=tables, operations=INSERTS, via_root=False)
    warnings = [finding.what for finding in source_warnings(facts, SETTINGS)]

    assert ([], 2) == (plan_setup(facts, SETTINGS), len(warnings))


def test_a_schema_publication_covers_its_tables():
    """
    A publication of a whole schema need not list its tables.
    """
    facts = with_publication(
        tables={"towpath.signal": NAMED}, schemas=frozenset({"shop"})
    )

    assert [] == plan_setup(facts, SETTINGS)


def test_a_publication_for_all_tables_is_refused_with_its_remedy():
    """
    A95: a publication for all tables cannot be reconciled.
    """
    facts = with_publication(is_for_all=True)
    with pytest.raises(NotPreparedError, match=r"all tables.*DROP PUBLICATION"):
        plan_setup(facts, SETTINGS)


def test_a_slot_of_another_owner_is_refused():
    """
    A slot of a different plugin or database with the same name is left alone.
    """
    slot = SlotHistory(1, is_ours=False, kind="a slot of plugin wal2json")
    with pytest.raises(NotPreparedError, match="wal2json"):
        plan_setup(replace(READY, slot=slot), SETTINGS)


@pytest.mark.parametrize(
    ("facts", "remedy"),
    [
        (replace(READY, server=replace(SERVER, wal_level="replica")), "ALTER SYSTEM"),
        (replace(READY, server=replace(SERVER, encoding="LATIN1")), "UTF8"),
        (replace(READY, server=replace(SERVER, is_standby=True)), "pg_ctl promote"),
        (replace(READY, server=replace(SERVER, may_replicate=False)), "REPLICATION"),
        (replace(READY, tables={}), "[source] tables"),
        (with_table(kind="v"), "remove"),
        (with_member(persistence="u"), "SET LOGGED"),
        (
            with_table(
                key=(), members=(replace(MEMBER, identity_columns=frozenset()),)
            ),
            'ALTER TABLE "shop"."orders" REPLICA IDENTITY FULL',
        ),
        (
            with_member(identity="n", identity_columns=frozenset()),
            'ALTER TABLE "shop"."orders" REPLICA IDENTITY DEFAULT',
        ),
        (
            with_member(identity="i", identity_columns=frozenset({"email"})),
            "REPLICA IDENTITY DEFAULT",
        ),
        (
            with_publication(
                tables={
                    "shop.orders": PublishedTable(frozenset({"note"})),
                    "towpath.signal": NAMED,
                }
            ),
            '"shop"."orders" ("id", "note")',
        ),
    ],
)
def test_each_problem_is_reported_with_its_remedy(facts: SourceFacts, remedy: str):
    """
    Each obstacle is named together with the exact command.
    """
    with pytest.raises(NotPreparedError) as caught:
        check_source(facts, SETTINGS)

    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("facts", "warned"),
    [
        (with_member(identity="f", identity_columns=frozenset()), []),
        (with_member(identity="i", identity_columns=frozenset({"id", "x"})), []),
        (
            with_table(
                key=(),
                members=(replace(MEMBER, identity="f", identity_columns=frozenset()),),
            ),
            ["shop.orders: no primary key"],
        ),
        (
            with_table(unstable_key=("id",)),
            ["shop.orders: the collation of id is not deterministic"],
        ),
        (with_table(has_row_security=True), ["shop.orders: row security is on"]),
    ],
    ids=["full", "index with key", "keyless and full", "collation", "row security"],
)
def test_a_table_that_can_be_streamed_is_allowed(facts: SourceFacts, warned: list[str]):
    """
    A table with distinguishable rows is captured, with a warning if needed.
    """
    check_source(facts, SETTINGS)

    assert warned == [finding.what for finding in source_warnings(facts, SETTINGS)]


def test_a_keyless_table_may_be_insert_only():
    """
    If updates are not published, no update fails, and a warning is reported.
    """
    keyless = with_table(
        key=(), members=(replace(MEMBER, identity_columns=frozenset()),)
    )
    publications = {
        "towpath": replace(TABLES, operations=INSERTS),
        "towpath_outbox": EVENTS,
    }
    facts = replace(keyless, publications=publications)
    check_source(facts, SETTINGS)
    reasons = [finding.why for finding in source_warnings(facts, SETTINGS)]

    assert any("only its inserts are streamed" in reason for reason in reasons)
