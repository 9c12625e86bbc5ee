"""The answers to signals, and their effects, without a driver."""

import json
from collections.abc import Sequence

import pytest

from towpath.relay.snapshot.protocol import (
    InspectTables,
    Notify,
    ReadSnapshotTables,
    SignalSeen,
    SignalStored,
    SnapshotTablesRead,
    StoreSignal,
    TablesInspected,
)
from towpath.relay.snapshot.shape import TableShape
from towpath.relay.snapshot.signal_processor import AcceptedSignal, SignalProcessor
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.relay.wal.messages import Column, Relation

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


class SignalBench:
    """A signal processor over captured tables and open snapshots."""

    def __init__(self, *open_tables: StoredTable) -> None:
        self.open = open_tables
        self.ended: Sequence[StoredTable] = ()
        self.requested: list[object] = []
        captured = ("shop.orders", "shop.items", "outbox.order")
        self.processor = SignalProcessor(captured, lambda: ("search",))

    def send(self, kind: str, **data) -> tuple[StoreSignal, AcceptedSignal]:
        """Send a signal and return its answer and effects."""
        fields = json.dumps({name.replace("_", "-"): v for name, v in data.items()})
        self.processor.add(SignalSeen("now", kind, fields, 5))
        effects = self.processor.begin_answer(SEES_ALL, self.open)
        while not isinstance(effects[0], StoreSignal):
            self.requested += effects
            effects = self.reply(effects[0])
        [stored] = effects
        accepted = self.processor.stored(SignalStored("now", is_new=True))
        assert accepted is not None
        return stored, accepted

    def reply(self, effect: object) -> list:
        """Reply in place of the worker."""
        if isinstance(effect, ReadSnapshotTables):
            return self.processor.tables_read(
                SnapshotTablesRead("now", tuple(self.ended)), self.open
            )
        assert isinstance(effect, InspectTables)
        shapes = dict.fromkeys(effect.collections, SHAPE)
        return self.processor.inspected(TablesInspected("now", shapes, {}))


def names(tables: Sequence[StoredTable]) -> list[tuple[str, str, str]]:
    """List the tables and their states."""
    return [(t.snapshot_id, t.collection, t.state) for t in tables]


def test_the_options_of_a_signal_are_stored_with_each_table():
    """
    Ordinal, kind, chosen key and filter are stored with each table.
    """
    bench = SignalBench()
    stored, accepted = bench.send(
        "execute-snapshot",
        data_collections=["shop.orders", '"shop"."items"', "outbox.order"],
        type="blocking",
        surrogate_key="other",
        sweep=False,
        additional_conditions=[
            {"data-collection": '"shop"."items"', "filter": "select * from shop.items"}
        ],
    )
    [inspection] = bench.requested

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


def test_a_sweep_is_stored_with_its_table():
    """
    The stored table records that its rows in the sinks are to be swept.
    """
    stored, _ = SignalBench().send(
        "execute-snapshot", data_collections=["shop.orders"], sweep=True
    )

    assert [True] == [t.sweeps for t in stored.tables]


def test_a_condition_for_an_unknown_table_is_refused():
    """
    A misspelled table in a filter would read all rows, so it is rejected.
    """
    condition = {"data-collection": "shop.order", "filter": "id > 5"}
    stored, accepted = SignalBench().send(
        "execute-snapshot",
        data_collections=["shop.orders"],
        additional_conditions=[condition],
    )

    assert ("rejected", ()) == (stored.status, accepted.tables)
    assert "for 'shop.order' matches no table to read" in stored.detail["reason"]


def test_a_stop_stores_the_ended_tables_with_the_answer():
    """
    Stopped tables are stored with the id of the stopping signal.
    """
    bench = SignalBench(table(), table("shop.items", "paused"))
    stored, accepted = bench.send("stop-snapshot")
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


def test_a_pause_affects_only_open_and_named_tables():
    """
    Only running and queued tables are paused; a name selects among them.
    """
    bench = SignalBench(
        table(),
        table("shop.items", "queued"),
        table("shop.orders", "paused", snapshot_id="s2"),
    )
    everything, _ = bench.send("pause-snapshot")
    one, accepted = bench.send("pause-snapshot", data_collections=["shop.items"])

    assert [("s1", "shop.orders", "paused"), ("s1", "shop.items", "paused")] == names(
        everything.changed
    )
    assert [("s1", "shop.items", "paused")] == names(one.changed)
    assert (bench.open[1],) == accepted.pauses


def test_a_pause_without_open_tables_is_completed():
    """
    Nothing is paused, and the signal is answered as completed.
    """
    stored, accepted = SignalBench().send("pause-snapshot")

    assert ("completed", {"paused": []}, ()) == (
        stored.status,
        stored.detail,
        accepted.pauses,
    )


@pytest.mark.parametrize(
    ("kind", "field", "states", "status", "reason"),
    [
        ("stop-snapshot", "stopped", ("running",), "completed", "no open snapshot"),
        ("stop-snapshot", "stopped", (), "rejected", "it has no open snapshot"),
        ("pause-snapshot", "paused", ("queued",), "completed", "no open snapshot"),
        ("resume-snapshot", "resumed", ("paused",), "completed", "no open snapshot"),
        ("pause-snapshot", "paused", ("paused",), "rejected", "it is paused in snap"),
        ("resume-snapshot", "resumed", ("queued",), "rejected", "it is queued in sna"),
    ],
)
def test_an_unmatched_name_is_reported_in_the_answer(
    kind, field, states, status, reason
):
    """
    The answer lists each named collection that is not open, with the reason.
    """
    bench = SignalBench(*(table(state=state) for state in states))
    stored, _ = bench.send(kind, data_collections=["shop.orders", "shop.items"])
    changed = [t.collection for t in stored.changed]

    assert (status, changed) == (stored.status, stored.detail[field])
    assert reason in stored.detail["reason"]
    assert "shop.items" in stored.detail["refused"]


def test_a_resume_queues_paused_tables():
    """
    Without a name all paused tables continue; running ones are unchanged.
    """
    bench = SignalBench(table(state="paused", last_key=(b"5",)), table("shop.items"))
    stored, accepted = bench.send("resume-snapshot")

    assert [("s1", "shop.orders", "queued")] == names(stored.changed)
    assert stored.changed == accepted.resumes
    assert (((b"5",),), ()) == (
        tuple(t.last_key for t in accepted.resumes),
        accepted.siblings,
    )


def test_an_ended_snapshot_is_resumed_from_its_last_key():
    """
    With its id, failed and stopped tables are queued again with their last key.
    """
    bench = SignalBench()
    bench.ended = (
        table(state="completed", rows=9),
        table("shop.items", "failed", last_key=(b"5",), error="it had no key"),
        table("shop.lines", "stopped", last_key=(b"6",)),
        table("shop.none", "failed", table_oid=0, error="not a captured table"),
    )
    stored, accepted = bench.send("resume-snapshot", snapshot_id="s1")

    assert [ReadSnapshotTables("now", "s1")] == bench.requested
    assert [("s1", "shop.items", "queued"), ("s1", "shop.lines", "queued")] == names(
        accepted.resumes
    )
    assert [((b"5",), None), ((b"6",), None)] == [
        (t.last_key, t.error) for t in accepted.resumes
    ]
    assert ["shop.orders", "shop.none"] == [t.collection for t in accepted.siblings]
    assert accepted.resumes == stored.changed


def test_a_failed_table_of_an_open_snapshot_is_resumed():
    """
    For an open snapshot the state in memory counts; the stored one may be older.
    """
    known = table(last_key=(b"8",))
    bench = SignalBench(known)
    bench.ended = (table(last_key=(b"7",)), table("shop.items", "failed"))
    _, accepted = bench.send("resume-snapshot", snapshot_id="s1")

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
            "it was refused at the start: no key",
        ),
        (
            (table(state="failed"),),
            {"data_collections": ["shop.items"]},
            "shop.items: it has no open snapshot",
        ),
    ],
)
def test_a_snapshot_that_cannot_be_resumed_is_rejected_with_the_reason(
    ended, data, reason
):
    """
    An unknown id, and tables that are complete or were never read, are rejected.
    """
    bench = SignalBench()
    bench.ended = ended
    stored, accepted = bench.send("resume-snapshot", snapshot_id="s1", **data)

    assert ("rejected", (), ()) == (
        stored.status,
        accepted.resumes,
        accepted.siblings,
    )
    assert reason in stored.detail["reason"]


def test_the_relays_own_requests_cannot_be_resumed():
    """
    Users cannot resume requests made by the relay itself.
    """
    stored, _ = SignalBench().send("resume-snapshot", snapshot_id="towpath-keys-1")

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
def test_every_answer_is_notified_once_it_is_stored(kind, data, type_):
    """
    The notification has status, reason and detail, with the signal's id.
    """
    stored, accepted = SignalBench().send(kind, **data)
    [notice] = accepted.notices

    assert Notify("now", type_, notice.additional_data, "Signal") == notice
    assert dict(stored.detail) == json.loads(notice.additional_data["detail"])
    assert stored.detail.get("reason") == notice.additional_data.get("reason")


def test_a_repeated_signal_has_no_effect():
    """
    A signal that is streamed again after a crash is skipped, and the next one runs.
    """
    bench = SignalBench(table())
    for name in ("first", "second"):
        bench.processor.add(SignalSeen(name, "stop-snapshot", None, 5))
    [first] = bench.processor.begin_answer(SEES_ALL, bench.open)
    none_yet = bench.processor.begin_answer(SEES_ALL, bench.open)
    known = bench.processor.stored(SignalStored("first", is_new=False))
    [second] = bench.processor.begin_answer(SEES_ALL, bench.open)

    assert (None, []) == (known, none_yet)
    assert ["first", "second"] == [first.signal_id, second.signal_id]
