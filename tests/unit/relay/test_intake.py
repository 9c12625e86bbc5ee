"""What signals are answered, and what comes of them, without a driver."""

import json
from collections.abc import Sequence

import pytest

from towpath.relay.snapshot.accepted import Accepted
from towpath.relay.snapshot.effects import InspectTables, Notify, ReadEnded, StoreSignal
from towpath.relay.snapshot.facts import (
    EndedRead,
    SignalSeen,
    SignalStored,
    TablesInspected,
)
from towpath.relay.snapshot.intake import Intake
from towpath.relay.snapshot.shape import TableShape
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.relay.wal.relation import Column, Relation

SEES_ALL = XidSnapshot.parse("1000:1000:")
SHAPE = TableShape(
    Relation(7, "shop", "orders", (Column("id", 20),), (0,)), ("bigint",)
)


def table(
    collection: str = "shop.orders", state: str = "running", **fields
) -> StoredTable:
    """Make a table of snapshot ``s1``."""
    snapshot_id = fields.pop("snapshot_id", "s1")
    ordinal, oid = fields.pop("ordinal", 0), fields.pop("table_oid", 7)
    return StoredTable(snapshot_id, collection, ordinal, state, oid, **fields)


class Bench:
    """An intake over what is captured and open."""

    def __init__(self, *open_tables: StoredTable) -> None:
        self.open = open_tables
        self.ended: Sequence[StoredTable] = ()
        self.asked: list[object] = []
        captured = ("shop.orders", "shop.items", "outbox.order")
        self.intake = Intake(captured, lambda: ("search",))

    def ask(self, kind: str, **data) -> tuple[StoreSignal, Accepted]:
        """Signal something and return its answer, and what comes of it."""
        fields = json.dumps({name.replace("_", "-"): v for name, v in data.items()})
        self.intake.see(SignalSeen("now", kind, fields, 5))
        effects = self.intake.answer(SEES_ALL, self.open)
        while not isinstance(effects[0], StoreSignal):
            self.asked += effects
            effects = self.reply(effects[0])
        [stored] = effects
        accepted = self.intake.stored(SignalStored("now", is_new=True))
        assert accepted is not None
        return stored, accepted

    def reply(self, effect: object) -> list:
        """Answer for the worker."""
        if isinstance(effect, ReadEnded):
            return self.intake.ended(EndedRead("now", tuple(self.ended)), self.open)
        assert isinstance(effect, InspectTables)
        shapes = dict.fromkeys(effect.collections, SHAPE)
        return self.intake.inspected(TablesInspected("now", shapes, {}))


def names(tables: Sequence[StoredTable]) -> list[tuple[str, str, str]]:
    """Say which tables these are, and their states."""
    return [(t.snapshot_id, t.collection, t.state) for t in tables]


def test_what_a_signal_asks_for_is_stored_with_each_table():
    """
    Kind, chosen key, sweep, filter and rate go to the tables that they are about.
    """
    bench = Bench()
    stored, accepted = bench.ask(
        "execute-snapshot",
        data_collections=["shop.orders", '"shop"."items"', "outbox.order"],
        type="blocking",
        surrogate_key="other",
        sweep=False,
        additional_conditions=[
            {"data-collection": '"shop"."items"', "filter": "select * from shop.items"}
        ],
    )
    [inspection] = bench.asked

    assert ("other",) == inspection.order_by
    assert stored.tables == accepted.tables
    assert [
        ("shop.orders", 0, "blocking", ("other",), None),
        ("shop.items", 1, "blocking", ("other",), "select * from shop.items"),
        ("outbox.order", 2, "blocking", ("other",), None),
    ] == [
        (t.collection, t.ordinal, t.kind, t.order_by, t.condition)
        for t in stored.tables
    ]


def test_a_sweep_is_stored():
    """
    A table whose rows in the sinks are to be swept says so.
    """
    stored, _ = Bench().ask(
        "execute-snapshot", data_collections=["shop.orders"], sweep=True
    )

    assert [True] == [t.sweeps for t in stored.tables]


def test_a_condition_that_names_no_table_is_refused():
    """
    A misspelt name in a filter would have all rows read: it is rejected.
    """
    condition = {"data-collection": "shop.order", "filter": "id > 5"}
    stored, accepted = Bench().ask(
        "execute-snapshot",
        data_collections=["shop.orders"],
        additional_conditions=[condition],
    )

    assert ("rejected", ()) == (stored.status, accepted.tables)
    assert "for 'shop.order' names no table to be read" in stored.detail["reason"]


def test_stopping_ends_open_tables_with_the_answer():
    """
    What is stopped is stored as such, with who did it, beside the answer.
    """
    bench = Bench(table(), table("shop.items", "paused"))
    stored, accepted = bench.ask("stop-snapshot")
    reasons = {t.error for t in stored.changed}

    assert {"stopped by signal now"} == reasons
    assert [
        ("s1", "shop.orders", "stopped"),
        ("s1", "shop.items", "stopped"),
    ] == names(stored.changed)
    assert bench.open == accepted.stops
    assert ("completed", {"stopped": ["shop.orders", "shop.items"]}) == (
        stored.status,
        stored.detail,
    )


def test_pausing_leaves_what_is_paused_or_named_by_nobody():
    """
    Only tables that run or wait for their turn are paused; a name picks among them.
    """
    bench = Bench(
        table(),
        table("shop.items", "queued"),
        table("shop.orders", "paused", snapshot_id="s2"),
    )
    everything, _ = bench.ask("pause-snapshot")
    one, accepted = bench.ask("pause-snapshot", data_collections=["shop.items"])

    assert [("s1", "shop.orders", "paused"), ("s1", "shop.items", "paused")] == names(
        everything.changed
    )
    assert [("s1", "shop.items", "paused")] == names(one.changed)
    assert (bench.open[1],) == accepted.pauses


def test_a_pause_of_nothing_is_completed():
    """
    Where nothing is open, nothing is paused, and that is the answer.
    """
    stored, accepted = Bench().ask("pause-snapshot")

    assert ("completed", {"paused": []}, ()) == (
        stored.status,
        stored.detail,
        accepted.pauses,
    )


@pytest.mark.parametrize(
    ("kind", "what", "states", "status", "reason"),
    [
        ("stop-snapshot", "stopped", ("running",), "completed", "no snapshot of it"),
        ("stop-snapshot", "stopped", (), "rejected", "no snapshot of it is open"),
        ("pause-snapshot", "paused", ("queued",), "completed", "no snapshot of it"),
        ("resume-snapshot", "resumed", ("paused",), "completed", "no snapshot of it"),
        ("pause-snapshot", "paused", ("paused",), "rejected", "it is paused in snap"),
        ("resume-snapshot", "resumed", ("queued",), "rejected", "it is queued in sna"),
    ],
)
def test_a_name_that_means_nothing_is_told_of(kind, what, states, status, reason):
    """
    A named collection that is not open, or not so, stands in the answer with why.
    """
    bench = Bench(*(table(state=state) for state in states))
    stored, _ = bench.ask(kind, data_collections=["shop.orders", "shop.items"])
    changed = [t.collection for t in stored.changed]

    assert (status, changed) == (stored.status, stored.detail[what])
    assert reason in stored.detail["reason"]
    assert "shop.items" in stored.detail["refused"]


def test_resuming_queues_what_is_paused():
    """
    Without a name all paused tables go on; what has run on is let be.
    """
    bench = Bench(table(state="paused", last_key=(b"5",)), table("shop.items"))
    stored, accepted = bench.ask("resume-snapshot")

    assert [("s1", "shop.orders", "queued")] == names(stored.changed)
    assert stored.changed == accepted.resumes
    assert (((b"5",),), ()) == (
        tuple(t.last_key for t in accepted.resumes),
        accepted.siblings,
    )


def test_a_snapshot_that_has_ended_is_taken_up_where_it_was():
    """
    By its id, failed and stopped tables are queued again with their last key.
    """
    bench = Bench()
    bench.ended = (
        table(state="completed", rows=9),
        table("shop.items", "failed", last_key=(b"5",), error="it had no key"),
        table("shop.lines", "stopped", last_key=(b"6",)),
        table("shop.none", "failed", table_oid=0, error="not a captured table"),
    )
    stored, accepted = bench.ask("resume-snapshot", snapshot_id="s1")

    assert [ReadEnded("now", "s1")] == bench.asked
    assert [("s1", "shop.items", "queued"), ("s1", "shop.lines", "queued")] == names(
        accepted.resumes
    )
    assert [((b"5",), None), ((b"6",), None)] == [
        (t.last_key, t.error) for t in accepted.resumes
    ]
    assert ["shop.orders", "shop.none"] == [t.collection for t in accepted.siblings]
    assert accepted.resumes == stored.changed


def test_a_failed_table_of_an_open_snapshot_joins_it_again():
    """
    What memory knows of an open snapshot counts; that may have ended until it goes on.
    """
    known = table(last_key=(b"8",))
    bench = Bench(known)
    bench.ended = (table(last_key=(b"7",)), table("shop.items", "failed"))
    _, accepted = bench.ask("resume-snapshot", snapshot_id="s1")

    assert ([("s1", "shop.items", "queued")], (known,)) == (
        names(accepted.resumes),
        accepted.siblings,
    )


@pytest.mark.parametrize(
    ("ended", "data", "reason"),
    [
        ((), {}, "s1: there is no such snapshot"),
        ((table(state="completed"),), {}, "it is completed in snapshot s1"),
        (
            (table(state="failed", table_oid=0, error="no key"),),
            {},
            "it was refused from the first: no key",
        ),
        (
            (table(state="failed"),),
            {"data_collections": ["shop.items"]},
            "shop.items: no snapshot of it is open",
        ),
    ],
)
def test_a_snapshot_that_cannot_be_taken_up_says_why(ended, data, reason):
    """
    An unknown id, and tables that are complete or were never read, are rejected.
    """
    bench = Bench()
    bench.ended = ended
    stored, accepted = bench.ask("resume-snapshot", snapshot_id="s1", **data)

    assert ("rejected", (), ()) == (
        stored.status,
        accepted.resumes,
        accepted.siblings,
    )
    assert reason in stored.detail["reason"]


def test_the_relays_own_requests_are_not_to_be_resumed():
    """
    What the relay asks for by itself is its own affair.
    """
    stored, _ = Bench().ask("resume-snapshot", snapshot_id="towpath-keys-1")

    assert "are the relay's own" in stored.detail["reason"]


@pytest.mark.parametrize(
    ("kind", "data", "type_"),
    [
        ("execute-snapshot", {"data_collections": ["shop.orders"]}, "ACCEPTED"),
        ("execute-snapshot", {"data_collections": ["shop.b"]}, "REJECTED"),
        ("log", {}, "COMPLETED"),
        ("dance", {}, "REJECTED"),
    ],
)
def test_every_answer_is_told_once_it_is_stored(kind, data, type_):
    """
    The notification carries status, reason and detail, with the signal's id.
    """
    stored, accepted = Bench().ask(kind, **data)
    [notice] = accepted.notices

    assert Notify("now", type_, notice.additional_data, "Signal") == notice
    assert dict(stored.detail) == json.loads(notice.additional_data["detail"])
    assert stored.detail.get("reason") == notice.additional_data.get("reason")


def test_a_signal_that_was_known_starts_and_changes_nothing():
    """
    What is streamed again after a crash is let pass, and the next has its turn.
    """
    bench = Bench(table())
    for name in ("first", "second"):
        bench.intake.see(SignalSeen(name, "stop-snapshot", None, 5))
    [first] = bench.intake.answer(SEES_ALL, bench.open)
    none_yet = bench.intake.answer(SEES_ALL, bench.open)
    known = bench.intake.stored(SignalStored("first", is_new=False))
    [second] = bench.intake.answer(SEES_ALL, bench.open)

    assert (None, []) == (known, none_yet)
    assert ["first", "second"] == [first.signal_id, second.signal_id]
