"""Events built from Kafka's records."""

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME

from support.inbox_place import event
from towpath.inbox import event_of
from towpath.inbox.event import UNREADABLE, is_control
from towpath.schemas.headers import BARRIER, SNAPSHOT, SWEEP


class Record:
    """A record as the client returns it."""

    def __init__(self, headers=(), key=b"k", value=b"{}"):
        self.headers = lambda: headers
        self.key = lambda: key
        self.value = lambda: value
        self.topic = lambda: "t"
        self.partition = lambda: 2
        self.offset = lambda: 7
        self.timestamp = lambda: (TIMESTAMP_CREATE_TIME, 1_000)


def test_an_event_has_the_identity_in_its_headers():
    """
    Id, type and aggregate are from headers; key and offset are from the record.
    """
    headers = [("id", b"1"), ("type", b"PostViewed"), ("aggregate_type", b"post")]
    found = event_of(Record([*headers, ("none", None)], value=b'{"a": 1.5}'))

    assert ("1", "PostViewed", "post", "k") == (
        *(found.id, found.type, found.aggregate_type, found.key),
    )
    assert ("t", 2, 7, {"a": 1.5}, "") == (
        *(found.topic, found.partition, found.offset),
        *(found.payload, found.headers["none"]),
    )


def test_a_record_without_headers_is_identified_by_its_offset_and_time():
    """
    It has no type, and may have neither key nor value.
    """
    found = event_of(Record(None, key=None, value=None))

    assert ("t/2/7@1000", "", "", None, None) == (
        *(found.id, found.type, found.aggregate_type),
        *(found.key, found.payload),
    )


def test_bytes_that_are_not_text_are_kept():
    """
    Such a record can be parked like any other, but its payload cannot be read.
    """
    found = event_of(Record([("id", b"\xff")], key=b"\xff", value=b"\xff"))

    assert ("\udcff", "\udcff", b"\xff") == (found.id, found.key, found.value)
    with pytest.raises(ValueError, match="decode"):
        assert found.payload


def test_records_of_snapshots_and_of_the_relay_are_distinguished():
    """
    Barriers and sweeps contain no event; a READ event repeats a state.
    """
    found = [
        event(headers={name: "1"}) for name in (SNAPSHOT, BARRIER, SWEEP, "tenant")
    ]

    assert [False, True, True, False] == [is_control(one) for one in found]
    assert [True, False, False, False] == [one.is_read for one in found]


def test_the_trace_id_of_an_event_is_read_from_a_valid_context():
    """
    An event without a readable context has no trace id.
    """
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    contexts = [f"00-{trace_id}-b7ad6b7169203331-00".encode(), b"\xff", None]
    found = [event_of(Record([("traceparent", one)])).trace_id for one in contexts]

    assert [trace_id, None, None] == found


@pytest.mark.parametrize("name", [BARRIER, SWEEP])
def test_an_event_with_a_header_of_a_control_record_is_an_event(name):
    """
    Its producer may add any header; only the relay's own records have no id.
    """
    assert not is_control(event_of(Record([("id", b"1"), (name, b"1")])))


def test_headers_that_cannot_be_read_are_marked():
    """
    The client raises its own error for a name that is not UTF-8.
    """

    def fail():
        raise SystemError

    record = Record()
    record.headers = fail

    assert [UNREADABLE] == list(event_of(record).headers)
