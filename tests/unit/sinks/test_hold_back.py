"""Changes held back after an unreadable record, and events after a refused event."""

import orjson
import pytest

from support.copying import replace
from support.dead_letters import Letters, context_of
from support.parked_shop import FILL, TOPIC, Shop, change
from towpath.settings import Sink as SinkSettings
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.apply.replay import DeadLetterRequests
from towpath.sinks.change import Origin, Record
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import (
    BEHIND,
    DeadLetterRequest,
    Reply,
    Subject,
    Verb,
)
from towpath.sinks.dead_letters.parked import OpenDeadLetters, ParkedKeys
from towpath.sinks.targets.memory import MemorySink

UNKNOWN = "the value is not an envelope: it names no operation"
LOG = "outbox.event.order"


def open_offsets(open_dead_letters):
    """Return the offsets of the open dead letters."""
    return sorted(
        x.record.origin.offset
        for m in open_dead_letters.dead_letters
        for x in open_dead_letters.of(m)
    )


def open_letters(letters):
    """Return the offsets of the open dead letters in the topic."""
    return open_offsets(OpenDeadLetters().read(letters.entries()))


def test_changes_after_an_unreadable_record_of_their_key_are_parked():
    """
    The key's older row remains; other keys and earlier changes are applied.
    """
    shop = Shop()
    shop.write(change(1, "c", note="a", status="new"))
    result = shop.write(
        change(2, status="paid", unchanged=["note"]),
        change(3, "z", note="b", status="sent"),
        change(4, status="done", unchanged=["note"]),
        change(5, "c", order=8, note="c"),
    )

    assert ((2, 2, 1, 1), [(3, UNKNOWN), (4, BEHIND)], "paid", "c") == (
        (result.rows, result.dead_letters, result.held_back, result.parked),
        shop.letters.reasons(),
        shop.sink.rows["orders"]["7"].row["status"],
        shop.sink.notes["8"],
    )


def test_a_record_without_a_position_parks_nothing():
    """
    Without a position, no change is known to be later, in its batch or in the next.
    """
    shop = Shop()
    lone = replace(change(1, "z"), headers={})
    result = shop.write(lone, change(2, "c", note="a"))

    assert (0, "a", [1]) == (
        result.parked,
        shop.sink.notes["7"],
        open_letters(shop.letters),
    )


def test_a_replay_keeps_the_order_after_an_unreadable_record():
    """
    The parked change is not applied alone, and the answer names the unreadable record.
    """
    shop = Shop()
    shop.write(change(1, "c", note="a", status="new"))
    shop.write(change(2, "z"), change(3, status="paid", unchanged=["note"]))
    answer = shop.ask(Verb.REPLAY)

    assert ((Reply, UNKNOWN), "new", [2, 3]) == (
        (type(answer), answer.text),
        shop.sink.rows["orders"]["7"].row["status"],
        open_letters(shop.letters),
    )


def test_a_whole_row_supersedes_an_unreadable_record_of_its_batch():
    """
    Later changes are applied, up to the next unreadable record.
    """
    shop = Shop()
    result = shop.write(
        *(change(1, "z"), change(2, status="paid", unchanged=["note"])),
        change(3, "r", topic=FILL, note="as it is"),
        *(change(4, note="next"), change(5, "z"), change(6, note="last")),
    )
    shop.begin()

    assert ((1, 1), [5, 6], "next") == (
        (result.parked, len(shop.parked)),
        open_letters(shop.letters),
        shop.sink.notes["7"],
    )


def test_a_truncate_supersedes_an_unreadable_record_of_its_batch():
    """
    No row remains below the truncate, so later changes need not wait.
    """
    shop = Shop()
    headers = {"position": b"%016x.0000000000" % 16}
    truncated = Record(Origin(TOPIC, 0, 2), None, b'{"op": "t"}', headers)
    result = shop.write(change(1, "z"), truncated, change(3, "c", note="new"))

    assert (0, [], {"7": "new"}) == (
        result.parked,
        open_letters(shop.letters),
        shop.sink.notes,
    )


def test_a_truncate_of_one_route_does_not_affect_another():
    """
    The row remains in the route that keeps it, and its dead letter can be replayed.
    """
    kept = {"topic": TOPIC, "name": "kept", "on_truncate": "keep"}
    routes = [{"topic": TOPIC, "name": "orders"}, kept]
    block = {"name": "cache", "kind": "cache", "url": "redis://x", "route": routes}
    shop = Shop(settings=SinkSettings.model_validate(block))
    headers = {"position": b"%016x.0000000000" % 16}
    truncated = Record(Origin(TOPIC, 0, 2), None, b'{"op": "t"}', headers)
    shop.write(change(1, "z"), truncated)

    assert [1] == open_letters(shop.letters)


def test_a_change_in_a_recreated_topic_is_parked_with_its_key():
    """
    Its offset is below that of the dead letter, and its position is above.
    """
    shop = Shop()
    shop.write(change(7, "z"))
    again = replace(change(9, note="new"), origin=Origin(TOPIC, 0, 2))
    results = [shop.write(again) for _ in range(2)]

    assert ([1, 0], [2, 7]) == (
        [result.dead_letters for result in results],
        open_letters(shop.letters),
    )


class OrderedReceiver(MemorySink):
    """A target that takes events in order, and refuses some until it is repaired."""

    keeps_event_order = True

    def __init__(self):
        super().__init__()
        self.refuses = {"e2"}

    def flush(self):
        """Refuse events one by one."""
        refused = {e.origin: "no" for e in self.events.values() if e.id in self.refuses}
        for key in [k for k, e in self.events.items() if e.id in self.refuses]:
            del self.events[key]
        return replace(super().flush(), refused_events=refused)


class EventLog:
    """A sink for the events of an outbox topic, and its dead letters."""

    def __init__(self, sink, *more):
        self.sink, self.letters = sink, Letters()
        routes = [{"topic": LOG, "name": "events", "kind": "event_log"}, *more]
        declared = {"name": "hook", "kind": "webhook", "url": "http://unused"}
        secrets = {"secrets": ["whsec_" + "a" * 32]}
        settings = SinkSettings.model_validate(
            {**declared, "webhook": secrets, "route": routes}
        )
        self.parked = ParkedKeys()
        context = context_of(self.letters, parked=self.parked)
        self.writer = RecordWriter(Routes(settings), sink, context)
        self.requests = DeadLetterRequests(
            self.writer, self.letters, self.parked, context.repairs, context.clock
        )

    def write(self, *records):
        """Write a batch."""
        return self.writer.write_records(list(records), 0)

    def accepted_ids(self):
        """Return the ids of the accepted events, in order."""
        return [event.id for event in self.sink.events.values()]


def event(number, key=b"7", **headers):
    """Make an event of an order."""
    given = {
        "id": f"e{number}",
        "aggregate_type": "order",
        "type": "OrderPaid",
        "occurred_at": "2026-01-01T00:00:00.000000Z",
        "position": f"{number * 8:016x}.0000000000",
        **headers,
    }
    values = {name: text.encode() for name, text in given.items() if text}
    return Record(Origin(LOG, 0, number), key, orjson.dumps({"n": number}), values)


@pytest.mark.parametrize(
    ("bad", "replayed"),
    [
        pytest.param(event(2), ["e2", "e4"], id="refused"),
        pytest.param(event(2, id=""), [], id="cannot be read"),
    ],
)
def test_later_events_of_an_aggregate_wait_after_a_dead_letter(
    bad: Record, replayed: list[str]
):
    """
    Events of later batches wait too; a replay sends all of them in order, or none.
    """
    log = EventLog(OrderedReceiver())
    log.write(event(1), bad, event(3, b"8"))
    first = log.write(event(4), event(5, b"8"))
    accepted_before = log.accepted_ids()
    log.sink.refuses.clear()
    log.letters.request(DeadLetterRequest("mend", Verb.REPLAY, Subject(LOG, b"7")))
    log.requests.process()

    assert ((1, 1), ["e1", "e3", "e5"], replayed) == (
        (first.held_back, first.parked),
        accepted_before,
        log.accepted_ids()[3:],
    )


def test_an_unordered_event_log_parks_no_event():
    """
    The events of such a log are independent of each other.
    """
    log = EventLog(MemorySink())
    log.write(event(2, id=""), event(3))
    result = log.write(event(4))

    assert (0, ["e3", "e4"]) == (result.parked, log.accepted_ids())


def test_no_row_supersedes_an_event():
    """
    A document that is read again is a state, not an event.
    """
    state = {"name": "orders", "kind": "aggregate", "state_types": ["OrderPaid"]}
    log = EventLog(OrderedReceiver(), {"topic": LOG, **state})
    log.write(event(2))
    document = replace(
        event(9, snapshot="s1"), origin=Origin(f"{LOG}.backfill.hook", 0, 9)
    )
    result = log.write(document)

    assert (1, [2, 9]) == (result.parked, open_letters(log.letters))
