"""The relay's decisions at startup, based on its snapshot mode and durable state."""

import subprocess
import sys

import pytest

from support.copying import replace
from towpath.relay.encode.captured_tables import CapturedTables, Collections
from towpath.relay.postgres.backfill import signal_entry
from towpath.relay.postgres.new_tables import fill_id
from towpath.relay.postgres.slot import blocking_transactions, exporting_command
from towpath.relay.postgres.source_facts import ListedTable
from towpath.relay.recovery.backfill import StartAction, StartFacts, choose_start
from towpath.relay.snapshot.naming import matches
from towpath.schemas.table_name import TableName
from towpath.settings import FirstStart

NEW = StartFacts(has_run=False, has_records=False, has_slot=False, is_untouched=False)
FIRST = (FirstStart.INITIAL, FirstStart.INITIAL_ONLY, FirstStart.WHEN_NEEDED)


@pytest.mark.parametrize("mode", FIRST)
@pytest.mark.parametrize(
    ("known", "step"),
    [
        (NEW, StartAction.MAKE_SLOT),
        (replace(NEW, is_untouched=True), StartAction.MAKE_SLOT),
        (replace(NEW, has_slot=True), StartAction.REQUEST),
        (replace(NEW, has_slot=True, is_untouched=True), StartAction.CONTINUE),
        (replace(NEW, has_run=True), StartAction.CONTINUE),
        (replace(NEW, has_run=True, has_slot=True), StartAction.CONTINUE),
        (replace(NEW, has_records=True), StartAction.CONTINUE),
        (replace(NEW, has_records=True, has_slot=True), StartAction.CONTINUE),
    ],
)
def test_durable_state_decides_the_initial_snapshot(
    mode: FirstStart, known: StartFacts, step: StartAction
):
    """
    N-04, N-08: only a relay that has never run starts an initial snapshot.

    It does so only once.
    """
    assert step == choose_start(mode, known)


@pytest.mark.parametrize("mode", [FirstStart.NEVER, FirstStart.ALWAYS])
@pytest.mark.parametrize("has_slot", [True, False])
def test_other_snapshot_modes_read_nothing_at_first(
    mode: FirstStart, *, has_slot: bool
):
    """
    N-05, N-06: ``never`` reads nothing; ``always`` requests a snapshot once it streams.
    """
    assert StartAction.CONTINUE == choose_start(mode, replace(NEW, has_slot=has_slot))


@pytest.mark.parametrize(("version", "has_failover"), [(160000, False), (170000, True)])
def test_the_slot_of_an_initial_snapshot_survives_a_failover(
    version: int, *, has_failover: bool
):
    """
    B73: from version 17 on, it has failover, like the slot that init creates.
    """
    command = exporting_command("my_slot", version)

    assert command.startswith('CREATE_REPLICATION_SLOT "my_slot" LOGICAL pgoutput (')
    assert has_failover == ("FAILOVER true" in command)


@pytest.mark.parametrize(
    "table", ["s.a", "s.a$b", 's.a"b', 's."a.b"', '"s.a".b', "s.(x)|y"]
)
def test_a_signal_of_the_relay_matches_only_its_table(table: str):
    """
    For any characters in a name, the entry matches that name and nothing longer.
    """
    entry, name = signal_entry(table), TableName.parse(table)
    longer = TableName(name.schema, f"{name.table}x").text

    assert (True, False) == (matches(entry, table), matches(entry, longer))


def test_the_signal_id_of_a_fill_identifies_the_table_and_is_short_enough():
    """
    The id contains name and oid; a long name is hashed; a later fill has another id.
    """
    short = ListedTable("s.a", 17, is_published=False)
    long = ListedTable("s." + "x" * 63, 4_294_967_295, is_published=False)
    ids = [fill_id(each, times) for each in (short, long) for times in (1, 2)]

    assert ["towpath-new-s.a-17", "towpath-new-s.a-17-2"] == ids[:2]
    assert len(set(ids)) == 4
    assert max(map(len, ids)) <= 64


def test_captured_tables_are_always_current():
    """
    Every holder of the collection sees added tables beside the fixed ones.
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


class Hidden:
    """A server that hides the ages of other roles' transactions."""

    def execute(self, _statement: str) -> "Hidden":
        return self

    def fetchall(self) -> list[tuple[str, str, float | None]]:
        return [("17", "psql", 61.4), ("18", "role app", None)]


def test_a_blocking_transaction_of_another_role_is_listed_without_its_age():
    """
    The server hides the age from a role without pg_read_all_stats.
    """
    known, hidden = blocking_transactions(Hidden())

    assert known == "17 (psql, 61 s)"
    assert hidden.startswith("18 (role app, a time that is hidden")


@pytest.mark.timeout(30)
def test_a_start_does_not_import_the_requests_library():
    """
    Only the registry's client needs it; its import delayed the first event by 0.1 s.
    """
    code = "import sys, towpath.relay.__main__; print('requests' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert "False" == done.stdout.strip()
