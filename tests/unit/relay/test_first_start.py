"""What a start begins with: modes against what is durable, without a server."""

import pytest

from towpath.relay.captured import CapturedTables, Collections
from towpath.relay.first_start import Beginning, Known, beginning
from towpath.relay.postgres.asking import entry_of
from towpath.relay.postgres.new_tables import fill_id
from towpath.relay.postgres.slot import exporting_command
from towpath.relay.postgres.source_facts import ListedTable
from towpath.relay.snapshot.naming import matches
from towpath.schemas.table_name import TableName
from towpath.settings import FirstStart

NEW = Known(has_run=False, has_records=False, has_slot=False, is_untouched=False)
FIRST = (FirstStart.INITIAL, FirstStart.INITIAL_ONLY, FirstStart.WHEN_NEEDED)


@pytest.mark.parametrize("mode", FIRST)
@pytest.mark.parametrize(
    ("known", "step"),
    [
        (NEW, Beginning.MAKE_SLOT),
        (NEW._replace(is_untouched=True), Beginning.MAKE_SLOT),
        (NEW._replace(has_slot=True), Beginning.ASK),
        (NEW._replace(has_slot=True, is_untouched=True), Beginning.GO_ON),
        (NEW._replace(has_run=True), Beginning.GO_ON),
        (NEW._replace(has_run=True, has_slot=True), Beginning.GO_ON),
        (NEW._replace(has_records=True), Beginning.GO_ON),
        (NEW._replace(has_records=True, has_slot=True), Beginning.GO_ON),
    ],
)
def test_what_is_durable_decides(mode: FirstStart, known: Known, step: Beginning):
    """
    N-04, N-08: only a relay that never ran begins, and it begins once.
    """
    assert step == beginning(mode, known)


@pytest.mark.parametrize("mode", [FirstStart.NEVER, FirstStart.ALWAYS])
@pytest.mark.parametrize("has_slot", [True, False])
def test_other_modes_make_no_slot_and_ask_for_nothing_first(
    mode: FirstStart, *, has_slot: bool
):
    """
    N-05, N-06: never reads nothing, and always asks while it streams.
    """
    assert Beginning.GO_ON == beginning(mode, NEW._replace(has_slot=has_slot))


@pytest.mark.parametrize(("version", "has_failover"), [(160000, False), (170000, True)])
def test_the_slot_with_a_view_survives_a_failover_too(
    version: int, *, has_failover: bool
):
    """
    B73: from version 17 on it is made with failover, as that of init is.
    """
    command = exporting_command("my_slot", version)

    assert command.startswith('CREATE_REPLICATION_SLOT "my_slot" LOGICAL pgoutput (')
    assert has_failover == ("FAILOVER true" in command)


@pytest.mark.parametrize(
    "table", ["s.a", "s.a$b", 's.a"b', 's."a.b"', '"s.a".b', "s.(x)|y"]
)
def test_a_signal_of_the_relay_names_just_its_table(table: str):
    """
    Whatever characters a name has, the entry for it matches it and nothing longer.
    """
    entry, name = entry_of(table), TableName.parse(table)
    longer = TableName(name.schema, f"{name.table}x").text

    assert (True, False) == (matches(entry, table), matches(entry, longer))


def test_the_id_of_a_fill_is_the_tables_own_and_fits():
    """
    Name and oid make it; a long name is hashed; another time is another id.
    """
    short = ListedTable("s.a", 17, is_published=False)
    long = ListedTable("s." + "x" * 63, 4_294_967_295, is_published=False)
    ids = [fill_id(each, times) for each in (short, long) for times in (1, 2)]

    assert ["towpath-new-s.a-17", "towpath-new-s.a-17-2"] == ids[:2]
    assert len(set(ids)) == 4
    assert max(map(len, ids)) <= 64


def test_captured_tables_are_seen_as_of_each_look():
    """
    Whoever holds the collection sees what was added, beside what is fixed.
    """
    tables = CapturedTables(["s.a", "s.a"])
    both = Collections(tables, ["outbox.order"])
    before = list(both)
    tables.replace((*tables.names, "s.b"))

    assert (["s.a", "outbox.order"], ["s.a", "s.b", "outbox.order"]) == (
        before,
        list(both),
    )
    assert (True, True, 3, 2) == (
        "s.b" in both,
        "s.b" in tables,
        len(both),
        len(tables),
    )
