"""Events of captured tables: their messages, notifications, and emptying records."""

import json
from types import SimpleNamespace

import orjson
import pytest

from support.copying import replace
from support.relay_bench import START, Bench, Clock, Producer, transaction
from towpath.relay.encode.notifications import (
    TableEvent,
    emptying_records,
    parse_table_event,
    table_notification,
)
from towpath.relay.encode.table import SourceNames
from towpath.relay.wal.transactions import LogicalMessageEvent, Transaction
from towpath.settings.relay import Relay
from towpath.settings.rows import RecordFormat, Rows

TRANSACTION = Transaction(7, 160, 160, 1_700_000_000_000_000, b"%016x." % 160)
EVENT = TableEvent(
    *("one", "DROPPED", "s", "a.b", 42, None, "truncate"), empties=True, is_swept=False
)


def logical_message(content: bytes) -> LogicalMessageEvent:
    """Make the logical message with this content."""
    return LogicalMessageEvent("towpath.table", content, 160, 3, TRANSACTION, 150)


def router(record_format: RecordFormat):
    """Make a router that has only the names and the format for the records."""
    relay = Relay(rows=Rows(format=record_format))
    return SimpleNamespace(place=SourceNames("shop", "db"), relay=relay)


def records(record_format: RecordFormat, *, is_compacted: bool):
    """Return the records of the event for a topic of two partitions."""
    topic = (2, is_compacted)
    return emptying_records(EVENT, router(record_format), TRANSACTION, 3, topic, 1)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"relay": "one"}', b"\xff"])
def test_a_message_of_a_foreign_program_is_not_a_table_event(content: bytes):
    """
    An unreadable message is ignored, and does not halt the relay.
    """
    assert parse_table_event(logical_message(content)) is None


@pytest.mark.parametrize(
    "given",
    [{"more": ["a"]}, {"schema": None}, {"oid": "a"}, {"empties": 1}, {"on_drop": 7}],
)
def test_a_message_with_members_of_wrong_types_is_not_a_table_event(given):
    """
    Any role may write a message with the relay's own prefix.
    """
    content = json.dumps({**EVENT._asdict(), **given}).encode()

    assert parse_table_event(logical_message(content)) is None


def test_a_table_event_can_be_read_back_from_the_log():
    """
    The names remain separate: a table's name may contain a dot.
    """
    content = json.dumps(EVENT._asdict()).encode()

    assert EVENT == parse_table_event(logical_message(content))


def test_the_notification_of_a_table_event_says_what_happened_to_its_rows():
    """
    The notification's form is Debezium's.
    """
    notification = json.loads(table_notification("shop", EVENT, 5).value)

    assert ('s."a.b"', "Table", "DROPPED", "truncate", "removed") == (
        notification["id"],
        notification["aggregate_type"],
        notification["type"],
        notification["additional_data"]["on_drop"],
        notification["additional_data"]["rows"],
    )


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("record_format", [RecordFormat.JSON, RecordFormat.AVRO])
def test_each_partition_is_emptied_at_the_events_position(
    record_format: RecordFormat, *, is_compacted: bool
):
    """
    JSON has Debezium's truncate; Avro has no schema for it, so headers replace it.

    A compacted topic keeps the record: it has a key of its own, and a value.
    """
    made = records(record_format, is_compacted=is_compacted)
    position = b"%016x.0000000003" % 160
    has_value = is_compacted or record_format is RecordFormat.JSON

    assert [0, 1] == [each.partition for each in made]
    for each in made:
        headers = dict(each.headers)
        assert (position, position, position) == (
            each.position,
            headers["sweep"],
            headers["position"],
        )
        assert (b"2", b"42") == (headers["sweep_partitions"], headers["dropped"])
        assert (is_compacted, has_value) == (each.key is not None, bool(each.value))
        assert not each.value or json.loads(each.value)["op"] == "t"


def test_before_a_sweep_only_other_consumers_get_a_truncate():
    """
    The record is Debezium's truncate, without the header that our sinks read.
    """
    swept = replace(EVENT, empties=False, is_swept=True)
    made = {
        each: emptying_records(swept, router(each), TRANSACTION, 3, (2, False), 1)
        for each in (RecordFormat.JSON, RecordFormat.AVRO)
    }

    assert ["t", "t"] == [
        json.loads(each.value)["op"] for each in made[RecordFormat.JSON]
    ]
    assert {("position", "dropped")} == {
        tuple(name for name, _ in each.headers) for each in made[RecordFormat.JSON]
    }
    assert [] == made[RecordFormat.AVRO]


class SlowNotifications(Producer):
    """A producer that acknowledges notifications only when the test allows it."""

    is_slow = True

    def poll(self, timeout_s: float) -> None:
        kept = [each for each in self.pending if self._is_kept(each[0].topic)]
        self.pending = type(self.pending)(x for x in self.pending if x not in kept)
        super().poll(timeout_s)
        self.pending.extend(kept)

    def _is_kept(self, topic: str) -> bool:
        return self.is_slow and topic == "towpath.notifications"


def test_an_event_is_confirmed_once_kafka_has_its_notification():
    """
    If the relay is killed before that, it streams the event again and notifies then.
    """
    producer = SlowNotifications(Clock())
    bench = Bench(producer=producer)
    content = orjson.dumps({**EVENT._asdict(), "relay": "towpath", "empties": False})
    head = b"M\x01" + bytes(8) + b"towpath.table\0"
    message = head + len(content).to_bytes(4, "big") + content
    bench.stream.reads.append(transaction(START + 8, message))
    bench.turn(20)
    before = bench.confirmed
    producer.is_slow = False
    bench.turn(20)

    assert (START, START + 16) == (before, bench.confirmed)
