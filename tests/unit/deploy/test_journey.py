"""The state of a key in each route of a sink, from its records and offsets."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import psycopg
import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException

from towpath.cli import app
from towpath.deploy import trace
from towpath.deploy.cli import trace as command
from towpath.deploy.trace import names_of_key, offsets_at, time_of
from towpath.deploy.trace.journey import (
    Journey,
    RouteState,
    Scan,
    TracedRecord,
    TracedRoute,
    document_of,
    state_of,
    waiting_for,
)
from towpath.schemas.failure import UsageError
from towpath.settings import load
from towpath.sinks.errors import UnreadableProgressError
from towpath.sinks.key_text import key_parts, key_text

TOPIC = "outbox.event.order"
BACKFILL = f"{TOPIC}.backfill.cache"
AT = datetime(2026, 1, 2, tzinfo=UTC)


def record(offset, kind="OrderPaid", *, topic=TOPIC, partition=0):
    """Describe a record whose position is derived from its offset."""
    position = f"{offset:016x}.0000000000"
    trace = f"00-{offset:032x}-{offset:016x}-01"
    return TracedRecord(
        topic, partition, offset, kind, position, AT, f"id-{offset}", trace
    )


def journey(*records, **facts):
    """Describe a key in the cache, which has applied the topic up to offset 10."""
    route = TracedRoute(
        sink="cache",
        route="orders",
        stores_position=True,
        applied={TOPIC: {"0": 10, "1": 3}},
    )
    return Journey(
        subject="order 7",
        is_in_source=None,
        scans=[Scan(TOPIC, 20)],
        records=records,
        routes=[replace(route, **facts)],
    )


def state(traced):
    """Return the state in the only route."""
    (route,) = traced.routes
    return state_of(route, traced)


@pytest.mark.parametrize(
    ("offsets", "stored", "expected"),
    [
        ([4, 9], 9, RouteState.CURRENT),
        ([4, 9], 11, RouteState.CURRENT),
        ([4, 9], 4, RouteState.DIFFERS),
        ([4, 9], None, RouteState.DIFFERS),
        ([4, 10], 4, RouteState.BEHIND),
        ([], 4, RouteState.CURRENT),
        ([], None, RouteState.DIFFERS),
    ],
)
def test_a_stored_position_is_compared_with_the_newest_record(
    offsets, stored, expected
):
    """
    A row that is newer than the remaining records was read by a snapshot.
    """
    records = [record(offset) for offset in offsets]
    position = None if stored is None else record(stored).position

    assert expected == state(journey(*records, stored_position=position))


def test_a_deleted_row_need_not_have_a_tombstone():
    """
    A tombstone may have been purged; a recreated row does not count as deleted.
    """
    gone = [record(4), record(9, "delete")]
    back = [*gone, record(9, "create", partition=1)]

    assert RouteState.DELETED == state(journey(*gone))
    assert RouteState.DELETED == state(
        journey(*gone, is_deleted=True, stored_position=gone[1].position)
    )
    assert RouteState.BEHIND == state(journey(*back))


def test_a_row_recreated_after_its_deletion_does_not_count_as_deleted():
    """
    The sink applied the create but still stores the tombstone, so it lost the row.
    """
    records = [record(4), record(7, "delete"), record(9, "create")]
    lost = journey(*records, is_deleted=True, stored_position=records[1].position)

    assert RouteState.DIFFERS == state(lost)
    assert RouteState.CURRENT == state(
        journey(*records, stored_position=records[2].position)
    )


@pytest.mark.parametrize(
    ("key", "named"),
    [
        (b'{"id":7}', "7"),
        (b'{"place":"a:b","is_open":true}', "a%3Ab:true"),
        (b'{"schema":{},"payload":{"id":"50%"}}', "50%25"),
        (b"order:7", "order%3A7"),
        (b'"order:7"', "order%3A7"),
    ],
)
def test_a_key_with_a_colon_is_named_as_a_sink_stores_it(key, named):
    """
    Colons separate the values of a key, so a colon in a value is encoded.
    """
    assert named in names_of_key(key)
    assert named == key_text(key_parts(named))


@pytest.mark.parametrize("key", [b'{"a":[99999999999999999999]}', b"[" * 99_999])
def test_a_key_of_a_foreign_program_has_only_its_text(key):
    """
    The search continues with the later records.
    """
    assert [key_text([key.decode()])] == list(names_of_key(key))


def test_a_sink_that_has_applied_nothing_of_a_topic_is_behind():
    """
    Its progress does not list the topic, so every record is still waiting.
    """
    new = journey(record(4), record(9), applied={})
    log = journey(record(9), applied={}, stores_position=False)
    (route,) = new.routes

    assert [RouteState.BEHIND] * 2 == [state(new), state(log)]
    assert 2 == len(waiting_for(route, new))


def test_a_dead_letter_and_an_unreadable_sink_take_precedence():
    """
    Both hide the state that the sink stores.
    """
    letter = {"reason": "too long", "is_parked": True}
    parked = journey(record(9), dead_letters=[letter])

    assert RouteState.PARKED == state(parked)
    assert RouteState.UNKNOWN == state(journey(record(9), error="it is down"))


def test_a_dead_letter_without_a_parked_key_blocks_no_record():
    """
    Only its own record is missing in the event log; later ones are applied or waiting.
    """
    letter = {"reason": "too long", "is_parked": False}
    log = {"stores_position": False, "dead_letters": [letter]}
    both = log | {"dead_letters": [letter, letter | {"is_parked": True}]}

    assert RouteState.INCOMPLETE == state(journey(record(9), **log))
    assert RouteState.BEHIND == state(journey(record(10), **log))
    assert RouteState.PARKED == state(journey(record(10), **both))


def test_an_event_log_has_only_offsets():
    """
    An event log counts as applied once the newest record is.
    """
    log = {"stores_position": False}

    assert RouteState.APPLIED == state(journey(record(9), **log))
    assert RouteState.BEHIND == state(journey(record(10), **log))


def test_a_backfill_concerns_only_its_own_sink():
    """
    No other sink waits for the backfill's records.
    """
    other = record(1, "read", topic=f"{TOPIC}.backfill.search")
    own = record(1, "read", topic=BACKFILL)
    late = journey(record(9), other, own)
    (route,) = late.routes
    there = replace(route, applied={**route.applied, BACKFILL: {"0": 2}})

    assert [own] == waiting_for(route, late)
    assert [] == waiting_for(there, late)


CONFIGURATION = """
version = 1
[[source]]
dsn = "postgresql://127.0.0.1:1/shop"
tables = ["shop.orders"]
[kafka]
bootstrap_servers = "127.0.0.1:1"
"""


@pytest.mark.parametrize(
    ("args", "mistake"),
    [
        (("--table", "orders", "--key", "7"), "'orders' is not schema.table"),
        *(
            (("order", "7", "--minutes", text), "--minutes must be a time before now")
            for text in ("nan", "inf", "1e10", "-1")
        ),
    ],
    ids=str,
)
def test_an_invalid_subject_or_time_is_a_mistake_on_the_command_line(
    args, mistake, tmp_path, capsys
):
    """
    Nothing is searched, and the message names the mistake.
    """
    path = tmp_path / "towpath.toml"
    path.write_text(CONFIGURATION)

    assert 2 == app.run(["trace", *args, "--config", str(path)])
    assert mistake in capsys.readouterr().err


def test_a_search_from_before_1970_begins_at_the_first_record():
    """
    Kafka would interpret -1 ms as the end of the partition.
    """
    sought = []

    def offsets_for_times(partitions, **_):
        sought.extend(one.offset for one in partitions)
        return partitions

    consumer = SimpleNamespace(offsets_for_times=offsets_for_times)
    offsets_at(consumer, TOPIC, {0: 9}, datetime(1969, 12, 31, tzinfo=UTC))

    assert [0] == sought


def test_the_document_names_each_hop():
    """
    The document contains no values, and can be written as JSON.
    """
    found = document_of(journey(record(9), stored_position=record(9).position))

    assert "order 7" == found["subject"]
    assert [{"topic": TOPIC, "records": 20}] == found["scanned"]
    assert ["OrderPaid", 9, AT.isoformat()] == [
        found["records"][0][name] for name in ("kind", "offset", "committed_at")
    ]
    assert ["cache", "current", 0] == [
        found["sinks"][0][name] for name in ("sink", "state", "records_behind")
    ]


class Partitions:
    """A consumer of one partition."""

    def __init__(self, error):
        self._error = error

    def offsets_for_times(self, wanted, timeout):
        (one,) = wanted
        assert timeout
        return [
            SimpleNamespace(
                partition=one.partition, offset=OFFSET_INVALID, error=self._error
            )
        ]


def test_a_partition_without_a_response_does_not_count_as_empty():
    """
    Otherwise it would not be searched, and its records would be missing.
    """
    error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)

    assert {0: 7} == offsets_at(Partitions(None), TOPIC, {0: 7}, AT)
    with pytest.raises(KafkaException):
        offsets_at(Partitions(error), TOPIC, {0: 7}, AT)


def test_without_a_partition_there_are_no_offsets():
    """
    The console may request a partition that the topic lacks.
    """
    consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "x"})
    try:
        assert {} == offsets_at(consumer, TOPIC, {}, AT)
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("time_ms", "year"),
    [
        (0, 1970),
        (-1, 1969),
        (2**63 - 1, 9999),
        (-(2**63), 1),
        (1_764_374_400_123, 2025),
    ],
)
def test_a_record_with_any_timestamp_is_shown(time_ms, year):
    """
    A producer may set a timestamp outside the range of dates.
    """
    found = time_of(time_ms)

    assert year == found.year


def test_a_search_of_a_few_minutes_reports_only_those_minutes(
    tmp_path, monkeypatch, capsys
):
    """
    Kafka may have older records of the key.
    """
    path = tmp_path / "towpath.toml"
    path.write_text(CONFIGURATION)
    monkeypatch.setattr(command, "trace_aggregate", lambda *_: journey())

    app.run(["trace", "order", "7", "--minutes", "5", "--config", str(path)])
    printed = capsys.readouterr().out

    assert "none of these records has this key" in printed
    assert "left in Kafka" not in printed


@pytest.mark.parametrize(
    ("is_in_source", "stored", "expected"),
    [
        (False, None, RouteState.DELETED),
        (False, 4, RouteState.CURRENT),
        (True, None, RouteState.DIFFERS),
        (None, None, RouteState.DIFFERS),
    ],
)
def test_a_row_that_the_source_lacks_is_not_a_difference(
    is_in_source, stored, expected
):
    """
    The row was deleted long ago or never existed: no record of it is left.
    """
    position = None if stored is None else record(stored).position
    traced = replace(journey(stored_position=position), is_in_source=is_in_source)

    assert expected == state(traced)


ROUTED = """
[relay.outbox]
topic = "{aggregate_type}"
route_regex = "(.*)"
route_replacement = "events-$1"
"""


def test_an_aggregate_is_searched_in_the_topic_of_its_route(
    tmp_path, monkeypatch, capsys
):
    """
    ``route_regex`` may change the topic of an event, too.
    """
    path = tmp_path / "towpath.toml"
    path.write_text(CONFIGURATION + ROUTED)
    monkeypatch.setattr(trace.Topics, "names", lambda _: ["order"])

    assert 2 == app.run(["trace", "order", "7", "--config", str(path)])
    assert "Kafka has no topic events-order" in capsys.readouterr().err


class ClosedConsumer:
    """A consumer that can only be closed."""

    def close(self):
        """Do nothing."""


def test_only_records_that_exist_count_as_searched(monkeypatch, tmp_path):
    """
    A compacted topic has fewer records than offsets.
    """
    path = tmp_path / "towpath.toml"
    path.write_text(CONFIGURATION)
    kept = [SimpleNamespace(key=lambda: b"8"), SimpleNamespace(key=lambda: None)]
    offsets = SimpleNamespace(
        end_offsets=lambda _: {TOPIC: {"0": 900}},
        first_offsets=lambda _: {TOPIC: {"0": 0}},
    )
    monkeypatch.setattr(trace, "Topics", lambda _: offsets)
    monkeypatch.setattr(trace.client, "consumer", lambda *_: ClosedConsumer())
    monkeypatch.setattr(trace, "records_to", lambda *_: iter(kept))

    scan, found = trace._search(load(path, {}), TOPIC, "7", None)

    assert (Scan(TOPIC, 2), []) == (scan, found)


@pytest.mark.parametrize(
    "missing", [psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName]
)
def test_a_table_that_the_source_lacks_is_a_mistake_on_the_command_line(
    missing, tmp_path, monkeypatch
):
    """
    It does not count as an unavailable source, even if the whole schema is missing.
    """

    def failing(_dsn):
        raise missing

    path = tmp_path / "towpath.toml"
    path.write_text(CONFIGURATION)
    monkeypatch.setattr(trace, "connected", failing)

    with pytest.raises(UsageError, match=r"no table shpo\.orders"):
        trace.trace_row(load(path, {}), "shpo.orders", "7", None)


EVENT_LOG = """
[[sink]]
name = "{0}"
kind = "warehouse"
url = "postgresql://127.0.0.1:1/{0}"
folder = "{0}"
[[sink.route]]
topic = "outbox.event.*"
name = "{0}.events"
kind = "event_log"
"""


class PublishedInTwoVersions:
    """The progress of sinks, one of which has the format of a different version."""

    def __init__(self, *_):
        pass

    def read(self, sink):
        """Return no progress of a sink, or fail."""
        if sink == "old":
            message = "the progress of old cannot be read"
            raise UnreadableProgressError(message)

    def close(self):
        """Do nothing."""


def test_a_sink_whose_progress_cannot_be_read_hides_no_other(monkeypatch, tmp_path):
    """
    During an upgrade, drivers of two versions publish in different formats.
    """
    path = tmp_path / "towpath.toml"
    path.write_text(CONFIGURATION + EVENT_LOG.format("old") + EVENT_LOG.format("new"))
    topics = SimpleNamespace(names=lambda: [TOPIC])
    monkeypatch.setattr(trace, "Topics", lambda _: topics)
    monkeypatch.setattr(trace, "_search", lambda *_: (Scan(TOPIC, 0), []))
    monkeypatch.setattr(trace, "ProgressReader", PublishedInTwoVersions)

    found = trace.trace_aggregate(load(path, {}), "order", "7", None)

    assert [RouteState.UNKNOWN, RouteState.APPLIED] == [
        state_of(route, found) for route in found.routes
    ]
    assert "the progress of old cannot be read" == found.routes[0].error
