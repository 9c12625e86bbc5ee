"""Records become changes and events; unreadable ones become dead letters."""

import orjson
import pytest

from support.copying import replace
from towpath.settings import Sink
from towpath.sinks.change import ALL_PRESENT, Change, EventRow, Floor, Origin
from towpath.sinks.changes.decode import Record, UnreadableRecord, decode
from towpath.sinks.changes.routing import Routes
from towpath.sinks.fold import newest_per_key

POSITION = "00000000016b3748.0000000002"
ROUTES = Routes(
    Sink.model_validate(
        {
            "name": "lake",
            "kind": "warehouse",
            "url": "postgresql://catalog",
            "folder": "lake",
            "route": [
                {"topic": "towpath.shop.orders", "name": "orders"},
                {"topic": "outbox.event.*", "name": "events", "kind": "event_log"},
            ],
        }
    )
)


def row_change(value, *, key=b'{"order_id":7}', topic="towpath.shop.orders", **headers):
    """Make a record for a table's topic."""
    given = {"position": POSITION.encode()} | {
        n: v.encode() for n, v in headers.items()
    }
    body = value if value is None or isinstance(value, bytes) else orjson.dumps(value)
    return Record(Origin(topic, 1, 42), key, body, given)


def changed(row, *, unchanged=ALL_PRESENT, is_read=False, position=POSITION):
    """Return the change into which such a record is decoded."""
    origin = Origin("towpath.shop.orders", 1, 42)
    return Change(
        "orders", (7,), ("order_id",), position, row, unchanged, is_read, origin
    )


@pytest.mark.parametrize("operation", ["c", "u"])
def test_an_after_image_is_a_change_with_exact_values(operation: str):
    """
    Integers beyond 2^53 and numerics as text keep every digit.
    """
    row = {"order_id": 7, "big": 9223372036854775807, "total": "12.50", "note": None}
    decoded = decode([row_change({"op": operation, "after": row})], ROUTES)

    assert [changed(row)] == decoded.changes


def test_a_delete_and_its_tombstone_are_deletes_at_one_position():
    """The number of a record within its change is not part of the position."""
    delete = row_change({"op": "d", "before": {"order_id": 7}, "after": None})
    tombstone = row_change(None, position=POSITION + ".1")

    assert [changed(None)] * 2 == decode([delete, tombstone], ROUTES).changes


def test_unchanged_columns_are_not_null():
    """
    The header ``unchanged`` makes a change partial.
    """
    record = row_change({"op": "u", "after": {"order_id": 7}}, unchanged='["note"]')

    expected = [changed({"order_id": 7}, unchanged=frozenset({"note"}))]

    assert expected == decode([record], ROUTES).changes


def test_a_placeholder_is_not_a_value():
    """
    The placeholder of an unchanged column is not the column's value (B58).
    """
    row = {"order_id": 7, "note": "__unavailable"}
    record = row_change({"op": "u", "after": row}, unchanged='["note"]')

    expected = [changed({"order_id": 7}, unchanged=frozenset({"note"}))]

    assert expected == decode([record], ROUTES).changes


def test_a_read_row_is_marked_as_read():
    """
    The operation ``r`` sets the change's ``is_read``.
    """
    position = "00000000016b3748.-"
    record = row_change({"op": "r", "after": {"order_id": 7}}, position=position)

    expected = [changed({"order_id": 7}, is_read=True, position=position)]

    assert expected == decode([record], ROUTES).changes


def test_a_composite_key_keeps_its_order():
    """Key values and key columns are in the order of the record's key."""
    record = row_change({"op": "d"}, key=b'{"order_id":7,"line_no":1}')
    (change,) = decode([record], ROUTES).changes

    assert ((7, 1), ("order_id", "line_no")) == (change.key, change.key_columns)


def test_an_array_in_a_key_becomes_text():
    """
    A key must be hashable, and lists are not.
    """
    record = row_change({"op": "d"}, key=b'{"days":[1,null],"name":"a[1]"}')
    (change,) = decode([record], ROUTES).changes

    assert ("[1,null]", "a[1]") == change.key


def test_a_composite_value_in_a_key_becomes_text():
    """
    The relay writes such a value as an object; a brace in a string has no meaning.
    """
    key = b'{"at":{"x":1,"y":[2,{}]},"name":"a{b","no":7}'
    partial = row_change({"op": "u", "after": {"v": 1}}, key=key, unchanged='["w"]')
    decoded = decode([row_change({"op": "d"}, key=key), partial], ROUTES)
    folded = newest_per_key(decoded.changes)

    assert 1 == len(folded.changes)
    assert ('{"x":1,"y":[2,{}]}', "a{b", 7) == folded.changes[0].key


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (row_change(b"{"), "the value is not JSON"),
        (row_change(b"[]"), "the value is not a JSON object"),
        (row_change({"after": {}}), "names no operation"),
        (row_change({"op": "z"}), "names no operation"),
        (row_change({"op": "t"}, position="1"), "the header position"),
        (row_change({"op": "m"}, sweep="1"), "the header sweep"),
        (row_change({"op": "c"}), "no row in after"),
        (row_change({"op": "c", "after": None}), "no row in after"),
        (row_change({"op": "c", "after": {"_x": 1}}), "sinks reserve"),
        (row_change({"op": "d"}, key=None), "has no key"),
        (row_change({"op": "d"}, key=b"7"), "the key is not a JSON object"),
        (row_change({"op": "d"}, key=b"{}"), "the key is an empty JSON object"),
        (row_change({"op": "d"}, position="7"), "not a position"),
        (row_change({"op": "d"}, position=POSITION + "x"), "not a position"),
        (row_change({"op": "d"}, unchanged="7"), "not a list of columns"),
        (row_change({"op": "d"}, unchanged="["), "not a list of columns"),
        (row_change({"op": "d"}, unchanged='["a",["b"]]'), "not a list of columns"),
        (row_change({"op": "d"}, topic="elsewhere"), "no route"),
    ],
)
def test_an_unreadable_record_is_a_dead_letter(record: Record, reason: str):
    """
    The dead letter has a reason, and the records around it are read.
    """
    decoded = decode([record, row_change({"op": "d"})], ROUTES)
    (unreadable,) = decoded.unreadable

    assert (record.origin, True, [changed(None)]) == (
        unreadable.origin,
        reason in unreadable.reason,
        decoded.changes,
    )


def test_every_strict_prefix_of_a_value_is_unreadable():
    """
    A truncated value is never decoded into half a row.
    """
    value = orjson.dumps({"op": "c", "after": {"order_id": 7, "note": "é"}})
    records = [row_change(value[:length]) for length in range(len(value))]
    decoded = decode(records, ROUTES)

    assert (0, len(value)) == (len(decoded.changes), len(decoded.unreadable))


def event(value=b'{"total": "1.00"}', key=b"7", **headers):
    """Make a record for an aggregate's topic."""
    given = {
        "id": b"0b9d5c7e-8d5b-4c52-9a3e-1f4e5d6c7b8a",
        "type": b"OrderPlaced",
        "aggregate_type": b"order",
        "position": POSITION.encode(),
        "occurred_at": b"2026-01-01T00:00:00.000000Z",
        "schema": b"order.OrderPlaced:1",
    }
    return Record(Origin("outbox.event.order", 0, 3), key, value, given | headers)


def test_an_events_payload_is_unchanged():
    """
    The event log stores the payload's text, including whitespace.
    """
    expected = EventRow(
        route="events",
        id="0b9d5c7e-8d5b-4c52-9a3e-1f4e5d6c7b8a",
        aggregate_type="order",
        aggregate_id="7",
        type="OrderPlaced",
        payload='{"total": "1.00"}',
        headers='{"schema":"order.OrderPlaced:1"}',
        position=POSITION,
        occurred_at="2026-01-01T00:00:00.000000Z",
        origin=Origin("outbox.event.order", 0, 3),
    )

    assert [expected] == decode([event()], ROUTES).events


@pytest.mark.parametrize("topic", ["towpath.shop.orders", "outbox.event.order"])
@pytest.mark.parametrize("key", [None, b"towpath-barrier"])
def test_a_barrier_is_skipped(topic: str, key: bytes | None):
    """
    An empty record that only marks the records before it as readable is not a change.
    """
    barrier = Record(Origin(topic, 1, 42), key, None, {"towpath-barrier": b"1"})

    assert ([], [], [], 0, []) == decode([barrier], ROUTES)


def test_a_truncate_is_a_floor_at_its_position():
    """
    A truncate needs no key, and applies as soon as one partition delivers it.
    """
    record = row_change({"op": "t", "after": None}, key=None)
    floor = Floor("orders", POSITION, needs_all=False, origin=record.origin)

    assert ([], [], [], 0, [floor]) == decode([record], ROUTES)


def test_a_route_may_keep_truncated_rows():
    """
    The truncate is counted as skipped, and deletes nothing.
    """
    route = {"topic": "towpath.shop.orders", "name": "orders", "on_truncate": "keep"}
    values = {
        "name": "cache",
        "kind": "cache",
        "url": "redis://unused",
        "route": [route],
    }
    record = row_change({"op": "t", "after": None}, key=None)

    assert ([], [], [], 1, []) == decode([record], Routes(Sink.model_validate(values)))


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_dropped_table_is_truncated_as_the_route_says(*, is_kept: bool):
    """
    The relay empties a dropped table's topic; ``on_truncate = "keep"`` leaves the rows.
    """
    on_truncate = {"on_truncate": "keep"} if is_kept else {}
    route = {"topic": "towpath.shop.orders", "name": "orders", **on_truncate}
    values = {
        "name": "cache",
        "kind": "cache",
        "url": "redis://unused",
        "route": [route],
    }
    floor = "000000000000abc8.0000000001"
    record = row_change({"op": "t"}, key=None, sweep=floor, dropped="42")
    decoded = decode([record], Routes(Sink.model_validate(values)))

    assert ([] if is_kept else [floor]) == [each.position for each in decoded.floors]
    assert [] == decoded.unreadable


def test_a_recreated_table_is_not_emptied_before_its_sweep():
    """
    The truncate before the fill is for consumers that do not support sweeps.
    """
    record = row_change({"op": "t"}, key=None, dropped="42")

    assert ([], [], [], 1, []) == decode([record], ROUTES)


@pytest.mark.parametrize("key", [None, b'{"sweep": 1}'])
def test_a_sweep_is_a_floor_below_its_own_position(key: bytes | None):
    """
    A sink ignores the record's value; every partition must deliver the sweep.
    """
    floor = "000000000000abc8.-"
    message = {"prefix": "towpath.sweep", "content": "MDA="}
    value = {"op": "m", "before": None, "after": None, "message": message}
    record = row_change(value, key=key, sweep=floor, snapshot="s")
    expected = Floor(
        *("orders", floor, True, record.origin), partitions=0, snapshot_id="s"
    )

    assert ([], [], [], 0, [expected]) == decode([record], ROUTES)


@pytest.mark.parametrize(("count", "expected"), [("6", 6), ("six", 0)])
def test_a_sweep_has_its_partition_count(count, expected):
    """
    Without a valid count, the current number of partitions is looked up.
    """
    values = {"sweep": "000000000000abc8.-", "sweep_partitions": count}
    record = row_change({"op": "m"}, key=None, **values)

    assert [expected] == [one.partitions for one in decode([record], ROUTES).floors]


def test_a_header_that_is_not_utf8_raises_no_exception():
    """
    Any program may write such a header; an exception would fail its batch each time.
    """
    sweep = row_change(None, sweep="000000000000abc8.-")
    unreadable = row_change({"op": "m"})
    sweep.headers["snapshot"] = unreadable.headers["undelivered"] = b"a\xff"
    decoded = decode([sweep, unreadable], ROUTES)

    assert ["a\ufffd"] == [floor.snapshot_id for floor in decoded.floors]
    assert ["a\ufffd"] == [record.reason for record in decoded.unreadable]


def test_a_sweep_is_ignored_by_an_event_log():
    """
    An event log keeps past events; an index of aggregates applies floors.
    """
    headers = {"sweep": b"000000000000abc8.-", "snapshot": b"s"}
    record = event(b'{"op": "m"}')._replace(headers=headers)
    (floor,) = decode([record], AGGREGATES).floors

    assert ([], [], [], 1, []) == decode([record], ROUTES)
    assert ("orders", "000000000000abc8.-") == floor[:2]


@pytest.mark.parametrize("name", ["sweep", "towpath-barrier"])
def test_an_events_own_header_is_not_a_command(name):
    """
    A writer of events can neither delete rows nor keep events from the sinks.
    """
    record = event(**{name: b"ffffffffffffffff.-", "sweep_partitions": b"1"})
    view, log = decode([record], AGGREGATES), decode([record], ROUTES)

    assert (1, [], 1) == (len(view.changes), view.floors, len(log.events))


def test_a_read_event_is_skipped_by_an_event_log_and_counted():
    """
    An event log has events as they happened, not states that a snapshot read.
    """
    decoded = decode([event(snapshot=b"ad-hoc-1"), event(value=None)], ROUTES)

    assert (1, [None], []) == (
        decoded.skipped,
        [e.payload for e in decoded.events],
        decoded.unreadable,
    )


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (event(value=b"\xff"), "the value is not text"),
        (event(key=None), "the key is missing"),
        (event(id=b""), "the header id is missing"),
        (event(position=b""), "not a position"),
    ],
)
def test_an_unreadable_event_is_a_dead_letter(record: Record, reason: str):
    """
    An event without the fields that the log needs is refused.
    """
    (unreadable,) = decode([record], ROUTES).unreadable

    assert isinstance(unreadable, UnreadableRecord)
    assert reason in unreadable.reason


AGGREGATES = Routes(
    Sink.model_validate(
        {
            "name": "search",
            "kind": "search",
            "url": "http://unused",
            "route": [
                {
                    "topic": "outbox.event.order",
                    "name": "orders",
                    "kind": "aggregate",
                    "state_types": ["OrderPlaced", "OrderPaid"],
                    "delete_types": ["OrderDeleted"],
                }
            ],
        }
    )
)


def state(row, *, text=None, is_read=False, position=POSITION, topic=None):
    """Return the change expected for an event with its aggregate's state."""
    origin = Origin(topic or "outbox.event.order", 0, 3)
    key = ("7",)
    return Change(
        *("orders", key, (), position, row, ALL_PRESENT, is_read, origin), text
    )


def test_an_event_becomes_its_aggregates_document():
    """
    The payload is the row, including lists; its text is kept, too.
    """
    text = b'{"total": 1.10000000000000000001,\n "lines": [{"no": 1}]}'
    decoded = decode([event(text, type=b"OrderPaid")], AGGREGATES)
    (change,) = decoded.changes

    assert [{"no": 1}] == change.row["lines"]
    assert [state(change.row, text=text)] == decoded.changes


def test_a_read_event_becomes_a_document_at_its_position():
    """
    The event may come from the shared topic or from the sink's own backfill topic.
    """
    text = b'{"total": "1.00"}'
    position = "00000000016b3748.-"
    given = {"snapshot": b"s", "position": position.encode()}
    shared = event(text, **given)
    own = replace(
        shared,
        origin=Origin("outbox.event.order.backfill.search", 0, 3),
    )
    row = {"total": "1.00"}

    assert [
        state(row, text=text, is_read=True, position=position, topic=topic)
        for topic in (None, own.origin.topic)
    ] == decode([shared, own], AGGREGATES).changes


def test_a_deleting_event_or_a_missing_value_deletes_the_document():
    """
    The payload of a deleting event does not matter.
    """
    deleting = event(b"{}", type=b"OrderDeleted")
    tombstone = event(None)
    absent = replace(
        tombstone, headers={"position": POSITION.encode(), "snapshot": b"s"}
    )

    assert [state(None), state(None), state(None, is_read=True)] == decode(
        [deleting, tombstone, absent], AGGREGATES
    ).changes


def test_an_event_without_the_state_is_left_out_and_counted():
    """
    A reminder event does not replace the order's document.
    """
    given = [event(type=b"OrderReminded"), event(None, type=b"OrderSeen"), event()]
    decoded = decode(given, AGGREGATES)

    assert (1, 2, []) == (len(decoded.changes), decoded.skipped, decoded.unreadable)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (event(b"[1]"), "the value is not a JSON object"),
        (event(b"{}"), "the value is an empty JSON object"),
        (event(b"\x00\x00\x00\x00\x01abc"), "the value is not JSON"),
        (event(b'{"_position": "1"}'), "that sinks reserve"),
        (event(key=None), "the key is missing"),
        (event(type=b""), "the header type is missing"),
        (event(position=b"1"), "the header position"),
    ],
)
def test_an_unreadable_document_is_a_dead_letter(record: Record, reason: str):
    """
    The dead letter has a reason; the aggregate's document is not changed.
    """
    decoded = decode([record], AGGREGATES)

    assert ([], 0, True) == (
        decoded.changes,
        decoded.skipped,
        reason in decoded.unreadable[0].reason,
    )
