"""How far snapshots are, from what the driver wants stored."""

from towpath.relay.pipeline.sight import OTHER, SnapshotSight
from towpath.relay.snapshot.effects import SaveProgress, StoreKeys, StoreSignal
from towpath.relay.snapshot.facts import KeysStored, Resumed, SignalStored
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.tally import SnapshotView, Tally
from towpath.schemas.clock import SystemClock


class StandingClock(SystemClock):
    """A clock that stands still."""

    def monotonic_s(self) -> float:
        return 77.0


def table(name: str = "shop.line", state: str = "planned", **more) -> StoredTable:
    """Make a table of the snapshot s1."""
    return StoredTable("s1", name, 0, state, 16_384, **more)


def sight(tally: Tally) -> SnapshotSight:
    """Make the sight of a connection."""
    return SnapshotSight(tally, StandingClock())


def signalled(tally: Tally, *tables: StoredTable) -> SnapshotSight:
    """Make a sight that has seen a signal with such tables being stored."""
    made = sight(tally)
    made.see(StoreSignal("s1", "accepted", {}, tables))
    made.see(SignalStored("s1", is_new=True))
    return made


def test_a_table_waits_runs_and_ends():
    """
    Each state counts its tables; rows, dropped rows and the beginning are told.
    """
    tally = Tally(tables=("shop.line", "shop.item"))
    made = signalled(tally, table(), table("shop.item"))
    seen = [tally.snapshot]
    for progress in (
        table(state="running"),
        table(state="running", rows=10, dropped=2),
        table(state="completed", rows=15, dropped=3),
    ):
        made.see(SaveProgress(1, progress))
        seen.append(tally.snapshot)

    assert (
        [
            SnapshotView(2, 0, 0, 0, 0, 0, {}, None),
            SnapshotView(1, 1, 0, 0, 0, 0, {}, 77.0),
            SnapshotView(1, 1, 0, 0, 0, 0, {"shop.line": 10}, 77.0),
            SnapshotView(1, 0, 1, 0, 0, 0, {"shop.line": 15}, None),
        ],
        3,
    ) == (seen, tally.snapshot_dropped_rows)


def test_a_signal_that_was_answered_before_counts_nothing():
    """
    Streamed again after a crash, it starts nothing, so nothing waits.
    """
    tally = Tally()
    made = sight(tally)
    made.see(StoreSignal("s1", "accepted", {}, (table(),)))
    made.see(SignalStored("s1", is_new=False))

    assert tally.snapshot is None


def test_refused_and_stopped_tables_are_counted_once():
    """
    A table that fails from the first counts as failed, a stopped one as stopped.
    """
    tally = Tally()
    made = signalled(tally, table(), table("shop.none", "failed"))
    made.see(StoreSignal("s2", "completed", {}, (), (table(state="stopped"),)))
    made.see(SignalStored("s2", is_new=True))
    made.see(SaveProgress(1, table(state="stopped")))

    assert SnapshotView(0, 0, 0, 1, 1, 0, {}, None) == tally.snapshot


def test_what_is_resumed_counts_on():
    """
    After a reconnect, open tables are there again, and ended ones are not forgotten.
    """
    tally = Tally()
    made = signalled(tally, table(), table("shop.item"))
    made.see(SaveProgress(1, table(state="completed")))
    tables = (table(state="completed"), table("shop.item", "running", dropped=4))
    made = sight(tally)
    made.see(Resumed(tables))
    made.see(SaveProgress(2, table("shop.item", "running", dropped=5)))

    assert (SnapshotView(0, 1, 1, 0, 0, 0, {}, 77.0), 1) == (
        tally.snapshot,
        tally.snapshot_dropped_rows,
    )


def test_rows_of_what_is_no_captured_table_share_one_label():
    """
    Whatever a signal names, labels stay bounded by the captured tables.
    """
    tally = Tally(tables=("shop.line",))
    made = sight(tally)
    made.see(StoreKeys("s1", (table("outbox.order"),), 9))
    made.see(KeysStored("s1"))
    made.see(SaveProgress(1, table("outbox.order", "running", rows=3)))

    assert {OTHER: 3} == tally.snapshot.rows


def test_why_snapshots_yield_is_logged_once_and_known_while_it_lasts():
    """
    Each reason is told the first time; afterwards only the metric comes and goes.
    """
    said: list[tuple[str, str]] = []
    tally = Tally(on_first=lambda *what: said.append(what))
    known = []
    for reason in ("behind", "behind", "", "behind", "busy"):
        tally.snapshots_yield(reason)
        known.append(tally.yielding)

    assert ["behind", "behind", "", "behind", "busy"] == known
    assert ["behind", "busy"] == [reason for _, reason in said]


def test_a_paused_table_neither_waits_nor_runs():
    """
    What nobody will go on with unasked can be told from what waits for its turn.
    """
    tally = Tally()
    made = signalled(tally, table(), table("shop.item"))
    made.see(SaveProgress(1, table(state="running")))
    made.see(StoreSignal("s2", "completed", {}, (), (table(state="paused"),)))
    made.see(SignalStored("s2", is_new=True))

    assert (1, 0, 1) == (
        tally.snapshot.waiting,
        tally.snapshot.running,
        tally.snapshot.paused,
    )
