"""What ``relay init`` plans, and what it refuses, from facts alone."""

from dataclasses import replace

import pytest

from towpath.relay.errors import NotPreparedError
from towpath.relay.postgres.setup import (
    PublicationFacts,
    ServerFacts,
    TableFacts,
    check,
    plan,
)
from towpath.settings import Outbox, Source

SOURCE = Source(dsn="x", tables=("shop.orders",))
OUTBOX = Outbox()
TABLE = TableFacts(kind="r", persistence="p", identity="d", has_primary_key=True)
OWN = frozenset(
    {"towpath.outbox", "towpath.signal", "towpath.snapshot", "towpath.heartbeat"}
)
ALL = (True, True, True, True)
INSERTS = (True, False, False, False)
TABLES = PublicationFacts(
    is_for_all=False,
    operations=ALL,
    via_root=True,
    tables=frozenset({"shop.orders", "towpath.signal"}),
)
EVENTS = PublicationFacts(
    is_for_all=False,
    operations=INSERTS,
    via_root=True,
    tables=frozenset({"towpath.outbox"}),
)
READY = ServerFacts(
    version=180006,
    wal_level="logical",
    encoding="UTF8",
    own_tables=OWN,
    tables={"shop.orders": TABLE},
    publications={"towpath": TABLES, "towpath_outbox": EVENTS},
    has_slot=True,
)
BARE = replace(READY, own_tables=frozenset(), publications={}, has_slot=False)


def test_a_prepared_source_needs_nothing():
    """
    With everything there, nothing is planned.
    """
    assert [] == plan(READY, SOURCE, OUTBOX)


def test_the_slot_comes_last():
    """
    Schema, tables, publications, and only then the slot.
    """
    statements = [
        step.statement.split("(")[0].split()[:2] for step in plan(BARE, SOURCE, OUTBOX)
    ]

    assert [
        ["create", "schema"],
        *[["create", "table"]] * 4,
        *[["create", "publication"]] * 2,
        ["select", "pg_catalog.pg_create_logical_replication_slot"],
    ] == statements


@pytest.mark.parametrize(("version", "has_failover"), [(160000, False), (170000, True)])
def test_the_slot_survives_a_failover_where_it_can(version: int, *, has_failover: bool):
    """
    From version 17 on the slot is created with failover.
    """
    step = plan(replace(BARE, version=version), SOURCE, OUTBOX)[-1]

    assert has_failover == step.statement.endswith("true)")


def test_an_outbox_elsewhere_is_not_made():
    """
    A configured outbox table of another name is the user's own.
    """
    elsewhere = Outbox(table="shop.events")
    made = [step.purpose for step in plan(BARE, SOURCE, elsewhere)]

    assert "making table towpath.outbox" not in made


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"tables": frozenset({"towpath.signal"})}, "set table"),
        ({"operations": INSERTS}, "set (publish"),
        ({"via_root": False}, "set (publish"),
    ],
)
def test_a_publication_is_brought_in_step(change: dict, part: str):
    """
    Tables and operations that differ from the configuration are altered.
    """
    facts = replace(
        READY,
        publications={"towpath": TABLES._replace(**change), "towpath_outbox": EVENTS},
    )
    (step,) = plan(facts, SOURCE, OUTBOX)

    assert part in step.statement


def test_a_publication_for_all_tables_is_refused():
    """
    A publication that sends everything cannot be brought in step.
    """
    facts = replace(READY, publications={"towpath": TABLES._replace(is_for_all=True)})
    with pytest.raises(NotPreparedError, match="all tables"):
        plan(facts, SOURCE, OUTBOX)


@pytest.mark.parametrize(
    ("facts", "cure"),
    [
        (replace(READY, wal_level="replica"), "ALTER SYSTEM"),
        (replace(READY, version=140000), "15 or later"),
        (replace(READY, encoding="LATIN1"), "UTF8"),
        (replace(READY, tables={}), "[source] tables"),
        (replace(READY, tables={"shop.orders": TABLE._replace(kind="v")}), "remove"),
        (
            replace(READY, tables={"shop.orders": TABLE._replace(persistence="u")}),
            "SET LOGGED",
        ),
        (
            replace(
                READY, tables={"shop.orders": TABLE._replace(has_primary_key=False)}
            ),
            "ADD PRIMARY KEY",
        ),
        (
            replace(READY, tables={"shop.orders": TABLE._replace(identity="n")}),
            "REPLICA IDENTITY DEFAULT",
        ),
    ],
)
def test_each_problem_is_told_with_its_cure(facts: ServerFacts, cure: str):
    """
    What stands in the way is named together with what to do.
    """
    with pytest.raises(NotPreparedError) as caught:
        check(facts, SOURCE)

    assert cure in str(caught.value)


def test_a_whole_replica_identity_is_welcome():
    """
    REPLICA IDENTITY FULL is no problem.
    """
    facts = replace(READY, tables={"shop.orders": TABLE._replace(identity="f")})

    assert None is check(facts, SOURCE)
