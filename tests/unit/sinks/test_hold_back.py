"""What waits behind a record that cannot be read, or an event that was refused."""

from dataclasses import replace

import orjson
import pytest

from support.dead_letters import Letters, desk_of
from support.parked_shop import FILL, TOPIC, Shop, change
from towpath.settings import Sink as SinkSettings
from towpath.sinks.change import Origin, Record
from towpath.sinks.dead_letters.book import Book
from towpath.sinks.dead_letters.letter import BEHIND, Answer, Matter, Order, Verb
from towpath.sinks.dead_letters.parked import ParkedKeys
from towpath.sinks.jobs.batch import BatchWriter
from towpath.sinks.jobs.replay import Orders
from towpath.sinks.memory import MemorySink
from towpath.sinks.routes import Routes

UNKNOWN = "the value is not an envelope: it names no operation"
LOG = "outbox.event.order"


def told(book):
    """Return the numbers of the open letters."""
    return sorted(x.record.origin.offset for m in book.letters for x in book.of(m))


def open_letters(letters):
    """Read the topic."""
    return told(Book().read(letters.entries()))


def test_what_follows_in_the_same_batch_waits_behind_what_cannot_be_read():
    """
    Its older row stays; another key, and what comes before, goes on.
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
        (result.rows, result.dead_letters, result.behind, result.parked),
        shop.letters.told(),
        shop.sink.rows["orders"]["7"].row["status"],
        shop.sink.notes["8"],
    )


def test_what_tells_no_position_holds_nothing_back():
    """
    Nothing tells what comes after it, in one batch as in two.
    """
    shop = Shop()
    lone = change(1, "z")._replace(headers={})
    result = shop.write(lone, change(2, "c", note="a"))

    assert (0, "a", [1]) == (
        result.parked,
        shop.sink.notes["7"],
        open_letters(shop.letters),
    )


def test_a_replay_keeps_the_order_behind_what_still_cannot_be_read():
    """
    The follower is not applied alone, and the answer says what is in its way.
    """
    shop = Shop()
    shop.write(change(1, "c", note="a", status="new"))
    shop.write(change(2, "z"), change(3, status="paid", unchanged=["note"]))
    said = shop.ask(Verb.REPLAY)

    assert ((Answer, UNKNOWN), "new", [2, 3]) == (
        (type(said), said.text),
        shop.sink.rows["orders"]["7"].row["status"],
        open_letters(shop.letters),
    )


def test_a_row_as_it_is_supersedes_what_cannot_be_read_in_its_batch():
    """
    What stands above it flows, up to the next that cannot be read.
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


def test_a_truncation_supersedes_what_cannot_be_read_in_its_batch():
    """
    Below it there is no row, so what comes after it need not wait.
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


class Teller(MemorySink):
    """Tells events in their order, and has some refused until it is mended."""

    tells_in_order = True

    def __init__(self):
        super().__init__()
        self.refuses = {"e2"}

    def flush(self):
        """Refuse events one by one."""
        refused = {e.origin: "no" for e in self.events.values() if e.id in self.refuses}
        for key in [k for k, e in self.events.items() if e.id in self.refuses]:
            del self.events[key]
        return replace(super().flush(), refused_events=refused)


class Log:
    """A sink of the events of an outbox topic, and its dead letters."""

    def __init__(self, sink, *more):
        self.sink, self.letters = sink, Letters()
        routes = [{"topic": LOG, "name": "events", "kind": "event_log"}, *more]
        declared = {"name": "hook", "kind": "webhook", "url": "http://unused"}
        secrets = {"secrets": ["whsec_" + "a" * 32]}
        settings = SinkSettings.model_validate(
            {**declared, "webhook": secrets, "route": routes}
        )
        self.parked = ParkedKeys()
        desk = desk_of(self.letters, parked=self.parked)
        self.writer = BatchWriter(Routes(settings), sink, desk)
        self.orders = Orders(
            self.writer, self.letters, self.parked, desk.repairs, desk.clock
        )

    def write(self, *records):
        """Write a batch."""
        return self.writer.write_records(list(records), 0)

    def told(self):
        """Return the ids of the events that were told, in order."""
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
    told = {name: text.encode() for name, text in given.items() if text}
    return Record(Origin(LOG, 0, number), key, orjson.dumps({"n": number}), told)


@pytest.mark.parametrize(
    ("bad", "replayed"),
    [
        pytest.param(event(2), ["e2", "e4"], id="refused"),
        pytest.param(event(2, id=""), [], id="cannot be read"),
    ],
)
def test_later_events_of_an_aggregate_wait_behind_one_that_was_set_aside(
    bad: Record, replayed: list[str]
):
    """
    Also those of later batches; a replay tells all of them in their order, or none.
    """
    log = Log(Teller())
    log.write(event(1), bad, event(3, b"8"))
    first = log.write(event(4), event(5, b"8"))
    told_before = log.told()
    log.sink.refuses.clear()
    log.letters.ask(Order("mend", Verb.REPLAY, Matter(LOG, b"7")))
    log.orders.attend()

    assert ((1, 1), ["e1", "e3", "e5"], replayed) == (
        (first.behind, first.parked),
        told_before,
        log.told()[3:],
    )


def test_a_log_that_keeps_no_order_holds_no_event_back():
    """
    Each event stands for itself there.
    """
    log = Log(MemorySink())
    log.write(event(2, id=""), event(3))
    result = log.write(event(4))

    assert (0, ["e3", "e4"]) == (result.parked, log.told())


def test_no_row_supersedes_an_event():
    """
    A document that is read anew says what is, not what happened.
    """
    state = {"name": "orders", "kind": "aggregate", "state_types": ["OrderPaid"]}
    log = Log(Teller(), {"topic": LOG, **state})
    log.write(event(2))
    document = event(9, snapshot="s1")._replace(
        origin=Origin(f"{LOG}.backfill.hook", 0, 9)
    )
    result = log.write(document)

    assert (1, [2, 9]) == (result.parked, open_letters(log.letters))
