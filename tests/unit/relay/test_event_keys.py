"""Changed keys of aggregates: the events that change them, and the outcomes of rows."""

import json
from collections import Counter

import pytest

from towpath.relay.snapshot.changed_keys import (
    ChangedKeyFeed,
    ChangedKeys,
    ChangeOutcome,
)
from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.relay.stats import Stats
from towpath.relay.stream.key_recorder import (
    OTHER_SPELLING,
    WRONG_FORM,
    AggregateKeyRecorder,
    record_change,
)
from towpath.relay.wal.messages import Column, Relation
from towpath.relay.wal.transactions import (
    Change,
    LogicalMessageEvent,
    Sequencer,
    Transaction,
)
from towpath.schemas.envelope import Operation
from towpath.settings.outbox import Outbox

XID, SEQUENCE = 7, 20
TRANSACTION = Transaction(XID, 160, 160, 0, b"P.")
NAMES = ("id", "kind", "aggregate_id", "type", "payload")
TABLE = Relation(5, "s", "events", tuple(Column(name, 25) for name in NAMES), ())
ROWS = Relation(6, "s", "a", (Column("id", 23), Column("v", 25)), (0,))
SEES_IT = XidSnapshot(100, 100, frozenset())
SEES_NOTHING = XidSnapshot(5, 5, frozenset())


class RecorderBench:
    """Recorders of two views and a table, and a scan that records each."""

    def __init__(self) -> None:
        self.aggregates = {"order": ChangedKeyFeed(), "customer": ChangedKeyFeed()}
        self.table_feeds = {ROWS.oid: ChangedKeyFeed()}
        self.stats = Stats()
        views = [
            {
                "aggregate_type": "order",
                "view": "s.o",
                "id_form": "integer",
                "state_types": ["OrderChanged"],
            },
            {"aggregate_type": "customer", "view": "s.c", "state_types": ["*"]},
        ]
        columns = {"aggregate_type": "kind", "headers": "", "traceparent": ""}
        outbox = {
            "columns": columns | {"occurred_at": ""},
            "view": views,
            "table": "s.events",
        }
        self.events = AggregateKeyRecorder(
            Outbox.model_validate(outbox), self, self.stats
        )
        self.events.bind(TABLE)
        self.changed_keys = {
            name: self._recorded(t) for name, t in self.aggregates.items()
        }
        self.changed_keys["rows"] = self._recorded(self.table_feeds[ROWS.oid])

    def _recorded(self, feed: ChangedKeyFeed) -> ChangedKeys:
        changed_keys = ChangedKeys()
        changed_keys.begin()
        feed.recordings.append(changed_keys)
        return changed_keys

    def insert(self, *values: bytes | None, is_dead_letter: bool = False) -> None:
        """Stream an outbox row of an order."""
        kind, aggregate_id, event_type = values
        row = (b"i", kind, aggregate_id, event_type, None)
        change = Change(Operation.CREATE, TABLE, row, None, False, TRANSACTION, 0, 0)
        self.events.before_publish()
        if is_dead_letter:
            self.stats.count_dead_letter("why")
        self.events.row(change, SEQUENCE)

    def message(
        self, event: object, transaction: Transaction | None = TRANSACTION
    ) -> None:
        """Stream a message."""
        content = event if isinstance(event, bytes) else json.dumps(event).encode()
        self.events.before_publish()
        message = LogicalMessageEvent(
            "towpath.outbox", content, 160, 0, transaction, 160
        )
        self.events.message(message, SEQUENCE)

    def outcome(
        self,
        key: bytes = b"42",
        name: str = "order",
        low: int = 30,
        snapshot: XidSnapshot = SEES_NOTHING,
    ) -> ChangeOutcome | None:
        """Return the outcome of a row that was read."""
        return self.changed_keys[name].outcome((key,), low, snapshot)


ORDER = {"aggregate_type": "order", "aggregate_id": "42"}


@pytest.mark.parametrize(
    ("event_type", "expected"),
    [
        (b"OrderChanged", ChangeOutcome.FULL),
        (b"OrderPaid", ChangeOutcome.PARTIAL),
        (None, ChangeOutcome.PARTIAL),
    ],
)
def test_an_event_drops_a_read_row_of_its_aggregate(event_type, expected):
    """
    A row is dropped if its query does not see the event's transaction.

    After an event without the whole state, the row is read again.
    """
    bench = RecorderBench()
    bench.insert(b"order", b"42", event_type)

    assert bench.outcome(snapshot=SEES_IT) is None
    assert bench.outcome(b"43") is None

    assert expected is bench.outcome()


def test_a_star_means_that_all_event_types_have_the_whole_state():
    """
    The star stands for all types, and is not a type itself.
    """
    bench = RecorderBench()
    bench.insert(b"customer", b"x", b"Anything")

    assert ChangeOutcome.FULL is bench.outcome(b"x", "customer")


def test_an_event_in_the_dead_letters_causes_its_aggregate_to_be_read_again():
    """
    A parked, refused or oversized event reached no sink, so the row is read again.
    """
    bench = RecorderBench()
    bench.insert(b"order", b"42", b"OrderChanged", is_dead_letter=True)

    assert ChangeOutcome.PARTIAL is bench.outcome()


@pytest.mark.parametrize(
    ("spelling", "expected", "counted"),
    [
        (b"0042", ChangeOutcome.PARTIAL, {OTHER_SPELLING: 1}),
        (b"x42", None, {WRONG_FORM: 1}),
        (None, None, {WRONG_FORM: 1}),
    ],
)
def test_an_aggregate_id_is_compared_in_its_canonical_form(spelling, expected, counted):
    """
    An id in a different spelling is counted, and has no state under the view's key.

    An invalid id belongs to no row of the view, and is counted, too.
    """
    bench = RecorderBench()
    bench.insert(b"order", spelling, b"OrderChanged")

    assert expected is bench.outcome()
    assert Counter(counted) == bench.stats.skipped


def test_changes_that_are_not_events_affect_no_aggregate():
    """
    Other aggregates, tables and messages are ignored.

    Updates and deletes of outbox rows are ignored, too.
    """
    bench = RecorderBench()
    row = (b"i", b"order", b"42", b"OrderPaid", None)
    bench.insert(b"invoice", b"42", b"Any")
    bench.insert(None, b"42", b"Any")
    for change in (
        Change(Operation.DELETE, TABLE, None, row, True, TRANSACTION, 0, 0),
        Change(Operation.UPDATE, TABLE, row, None, False, TRANSACTION, 0, 0),
        Change(Operation.CREATE, ROWS, (b"42", b"v"), None, False, TRANSACTION, 0, 0),
    ):
        bench.events.row(change, SEQUENCE)
    bench.message(b"no json")
    content = json.dumps(ORDER).encode()
    bench.events.message(
        LogicalMessageEvent("other", content, 1, 0, TRANSACTION, 1), SEQUENCE
    )

    assert bench.outcome() is None
    assert Counter() == bench.stats.skipped


def test_a_transactional_message_changes_its_aggregate_as_a_row_does():
    """
    A numeric id is compared as text.
    """
    bench = RecorderBench()
    bench.message(ORDER | {"aggregate_id": 42, "type": "OrderChanged"})

    assert bench.outcome(snapshot=SEES_IT) is None

    assert ChangeOutcome.FULL is bench.outcome()


def test_a_message_outside_a_transaction_is_compared_by_lsn_alone():
    """
    A row read in a window around the message is read again.

    Every query sees the message, but it does not have the row's state.
    """
    bench = RecorderBench()
    bench.message(ORDER | {"type": "OrderChanged"}, transaction=None)

    assert bench.outcome(low=SEQUENCE) is None

    assert ChangeOutcome.PARTIAL is bench.outcome(low=SEQUENCE - 1, snapshot=SEES_IT)


def frame(relation: Relation, *values: bytes, tag: bytes = b"I") -> bytes:
    """Make the frame of an insert, or of a delete with the old row."""
    kind = b"N" if tag == b"I" else b"O"
    body = b"".join(b"t" + len(v).to_bytes(4, "big") + v for v in values)
    head = tag + relation.oid.to_bytes(4, "big") + kind
    return b"w" + bytes(24) + head + len(values).to_bytes(2, "big") + body


def test_an_operators_skip_causes_the_row_to_be_read_again():
    """
    The stream then lacks the skipped rows and events; ordinals do not change.
    """
    bench = RecorderBench()
    sequencer = Sequencer(0)
    sequencer.bind(TABLE)
    sequencer.bind(ROWS)
    sequencer.transaction = TRANSACTION
    event = frame(TABLE, b"i", b"order", b"42", b"OrderChanged", b"{}")

    bench.events.skipped(event, sequencer, SEQUENCE)
    bench.events.skipped(frame(ROWS, b"1", b"v"), sequencer, SEQUENCE)
    bench.events.skipped(frame(ROWS, b"2", b"v", tag=b"D"), sequencer, SEQUENCE)
    bench.events.skipped(event[:-3], sequencer, SEQUENCE)

    assert 0 == sequencer.ordinal
    assert [ChangeOutcome.PARTIAL, ChangeOutcome.PARTIAL] == [
        bench.outcome(key, "rows") for key in (b"1", b"2")
    ]

    assert ChangeOutcome.PARTIAL is bench.outcome()


def test_a_skipped_truncate_changes_every_row():
    """
    Rows read before the truncate no longer exist.
    """
    bench = RecorderBench()
    sequencer = Sequencer(0)
    sequencer.bind(ROWS)
    sequencer.transaction = TRANSACTION
    body = b"T" + (1).to_bytes(4, "big") + b"\0" + ROWS.oid.to_bytes(4, "big")

    bench.events.skipped(b"w" + bytes(24) + body, sequencer, SEQUENCE)

    assert ChangeOutcome.FULL is bench.outcome(b"1", "rows")


@pytest.mark.parametrize("is_published", [True, False])
def test_a_change_excluded_by_configuration_causes_the_row_to_be_read_again(
    is_published: bool,
):
    """
    The stream does not contain the row, so only the snapshot can deliver it.
    """
    bench = RecorderBench()
    row = (b"1", b"v")
    change = Change(Operation.UPDATE, ROWS, row, None, False, TRANSACTION, 0, 0)
    record_change(
        bench.table_feeds[ROWS.oid], change, SEQUENCE, is_published=is_published
    )

    assert bench.outcome(b"1", "rows", snapshot=SEES_IT) is None

    assert (
        ChangeOutcome.FULL if is_published else ChangeOutcome.PARTIAL
    ) is bench.outcome(b"1", "rows")
