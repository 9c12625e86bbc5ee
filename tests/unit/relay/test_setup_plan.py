"""What ``relay init`` plans, and what it refuses, from facts alone."""

from dataclasses import replace

import pytest

from towpath.relay.errors import NotPreparedError
from towpath.relay.lineage import FoundSlot
from towpath.relay.postgres.relays import RelayFacts
from towpath.relay.postgres.setup import check, plan, warnings
from towpath.relay.postgres.source_facts import (
    OWN_TABLES,
    MemberFacts,
    PublicationFacts,
    PublishedTable,
    ServerFacts,
    SourceFacts,
    TableFacts,
)
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
    slot=FoundSlot(confirmed_lsn=1),
    relays=RelayFacts({"towpath": 1}),
)
BARE = replace(
    READY, own_tables=frozenset(), publications={}, slot=None, relays=RelayFacts()
)


def with_table(**change) -> SourceFacts:
    """Change what is known of the one table."""
    return replace(READY, tables={"shop.orders": TABLE._replace(**change)})


def with_member(**change) -> SourceFacts:
    """Change what is known of what keeps its rows."""
    return with_table(members=(MEMBER._replace(**change),))


def with_publication(**change) -> SourceFacts:
    """Change what is known of the tables' publication."""
    publications = {"towpath": TABLES._replace(**change), "towpath_outbox": EVENTS}
    return replace(READY, publications=publications)


def test_a_prepared_source_needs_nothing():
    """
    With everything there, nothing is planned, and nothing is warned of.
    """
    assert ([], []) == (plan(READY, SETTINGS), warnings(READY, SETTINGS))


def test_the_slot_comes_last():
    """
    B28: schema, tables, publications, and only then the slot.
    """
    statements = [
        step.statement.split("(")[0].split()[:2] for step in plan(BARE, SETTINGS)
    ]

    assert [
        ["create", "schema"],
        *[["create", "table"]] * 6,
        ["insert", "into"],
        *[["create", "publication"]] * 2,
        ["select", "pg_catalog.pg_create_logical_replication_slot"],
    ] == statements


@pytest.mark.parametrize(("version", "has_failover"), [(160000, False), (170000, True)])
def test_the_slot_survives_a_failover_where_it_can(version: int, *, has_failover: bool):
    """
    B73: from version 17 on the slot is created with failover.
    """
    server = SERVER._replace(version=version)
    step = plan(replace(BARE, server=server), SETTINGS)[-1]

    assert has_failover == step.statement.endswith("true)")


def test_an_outbox_elsewhere_is_not_made():
    """
    A configured outbox table of another name is the user's own.
    """
    relay = Relay(outbox=Outbox(table="shop.events"))
    elsewhere = SETTINGS.model_copy(update={"relay": relay})
    made = [step.purpose for step in plan(BARE, elsewhere)]

    assert "making table towpath.outbox" not in made


@pytest.mark.parametrize(
    ("on_update", "sends"),
    [
        (OnUpdate.WARN, "publish = 'insert',"),
        (OnUpdate.ERROR, "publish = 'insert, update',"),
        (OnUpdate.HALT, "publish = 'insert, update',"),
    ],
)
def test_the_outboxs_updates_are_sent_where_they_are_told(
    on_update: OnUpdate, sends: str
):
    """
    The outbox's publication sends updates only if something is to be done about them.
    """
    relay = Relay(outbox=Outbox(on_update=on_update))
    steps = plan(BARE, SETTINGS.model_copy(update={"relay": relay}))

    assert any("towpath_outbox" in s.statement and sends in s.statement for s in steps)


def test_the_outboxs_publication_is_brought_in_step():
    """
    One that was made for other settings is altered.
    """
    relay = Relay(outbox=Outbox(on_update=OnUpdate.HALT))
    (step,) = plan(READY, SETTINGS.model_copy(update={"relay": relay}))

    assert (
        "alter publication \"towpath_outbox\" set (publish = 'insert, update')"
        == step.statement
    )


@pytest.mark.parametrize(
    ("tables", "part"),
    [
        ({"towpath.signal": NAMED}, 'add table "shop"."orders"'),
        ({**TABLES.tables, "shop.old": NAMED}, 'drop table "shop"."old"'),
    ],
)
def test_a_publication_is_brought_in_step_with_the_tables(tables: dict, part: str):
    """
    A table that is missing is added, one too many dropped; the others stay untouched.
    """
    (step,) = plan(with_publication(tables=tables), SETTINGS)

    assert f'alter publication "towpath" {part}' == step.statement


def test_a_users_publication_is_used_as_it_is():
    """
    W-08, W-09: column lists, filters and operations of an existing one are kept.
    """
    listed = PublishedTable(frozenset({"id", "note"}), "(id > 5)")
    tables = {"shop.orders": listed, "towpath.signal": NAMED}
    facts = with_publication(tables=tables, operations=INSERTS, via_root=False)
    told = [finding.what for finding in warnings(facts, SETTINGS)]

    assert ([], 2) == (plan(facts, SETTINGS), len(told))


def test_a_schema_covers_its_tables():
    """
    A publication of a whole schema need not name a table of it.
    """
    facts = with_publication(
        tables={"towpath.signal": NAMED}, schemas=frozenset({"shop"})
    )

    assert [] == plan(facts, SETTINGS)


def test_a_publication_for_all_tables_is_refused_with_its_cure():
    """
    A95: a publication that sends everything cannot be brought in step.
    """
    facts = with_publication(is_for_all=True)
    with pytest.raises(NotPreparedError, match=r"all tables.*DROP PUBLICATION"):
        plan(facts, SETTINGS)


def test_a_slot_that_is_not_ours_is_refused():
    """
    A slot of another plugin or database by our name is left alone.
    """
    slot = FoundSlot(1, is_ours=False, kind="one of plugin wal2json")
    with pytest.raises(NotPreparedError, match="wal2json"):
        plan(replace(READY, slot=slot), SETTINGS)


@pytest.mark.parametrize(
    ("facts", "cure"),
    [
        (replace(READY, server=SERVER._replace(wal_level="replica")), "ALTER SYSTEM"),
        (replace(READY, server=SERVER._replace(version=140000)), "15 or later"),
        (replace(READY, server=SERVER._replace(encoding="LATIN1")), "UTF8"),
        (replace(READY, server=SERVER._replace(is_standby=True)), "pg_ctl promote"),
        (replace(READY, server=SERVER._replace(may_replicate=False)), "REPLICATION"),
        (replace(READY, tables={}), "[source] tables"),
        (with_table(kind="v"), "remove"),
        (with_member(persistence="u"), "SET LOGGED"),
        (
            with_table(
                key=(), members=(MEMBER._replace(identity_columns=frozenset()),)
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
            '"shop"."orders" (id, note)',
        ),
    ],
)
def test_each_problem_is_told_with_its_cure(facts: SourceFacts, cure: str):
    """
    What stands in the way is named together with the exact command.
    """
    with pytest.raises(NotPreparedError) as caught:
        check(facts, SETTINGS)

    assert cure in str(caught.value)


@pytest.mark.parametrize(
    ("facts", "warned"),
    [
        (with_member(identity="f", identity_columns=frozenset()), []),
        (with_member(identity="i", identity_columns=frozenset({"id", "x"})), []),
        (
            with_table(
                key=(),
                members=(MEMBER._replace(identity="f", identity_columns=frozenset()),),
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
def test_what_can_be_streamed_is_allowed(facts: SourceFacts, warned: list[str]):
    """
    A table whose rows the stream can tell apart is captured, with a warning if need be.
    """
    check(facts, SETTINGS)

    assert warned == [finding.what for finding in warnings(facts, SETTINGS)]


def test_a_keyless_table_may_be_insert_only():
    """
    Where no update is published none is broken, and the loss is said.
    """
    keyless = with_table(
        key=(), members=(MEMBER._replace(identity_columns=frozenset()),)
    )
    publications = {
        "towpath": TABLES._replace(operations=INSERTS),
        "towpath_outbox": EVENTS,
    }
    facts = replace(keyless, publications=publications)
    check(facts, SETTINGS)
    whys = [finding.why for finding in warnings(facts, SETTINGS)]

    assert any("only its inserts are streamed" in why for why in whys)
