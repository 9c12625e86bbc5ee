"""Events, as they are made of Kafka's records."""

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


def test_an_event_has_the_identity_that_its_headers_give():
    """
    Id, type and aggregate are headers; key and place are the record's.
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


def test_a_record_without_headers_is_known_by_place_and_time():
    """
    It has no type, and may have neither key nor value.
    """
    found = event_of(Record(None, key=None, value=None))

    assert ("t/2/7@1000", "", "", None, None) == (
        *(found.id, found.type, found.aggregate_type),
        *(found.key, found.payload),
    )


def test_bytes_that_are_no_text_are_kept():
    """
    Such a record can be parked as any other; its payload cannot be read.
    """
    found = event_of(Record([("id", b"\xff")], key=b"\xff", value=b"\xff"))

    assert ("\udcff", "\udcff", b"\xff") == (found.id, found.key, found.value)
    with pytest.raises(ValueError, match="decode"):
        assert found.payload


def test_records_of_snapshots_and_of_the_relay_are_distinguished():
    """
    A barrier and a sweep carry no event, a READ event repeats a state.
    """
    found = [
        event(headers={name: "1"}) for name in (SNAPSHOT, BARRIER, SWEEP, "tenant")
    ]

    assert [False, True, True, False] == [is_control(one) for one in found]
    assert [True, False, False, False] == [one.is_read for one in found]


def test_the_trace_id_of_an_event_is_that_of_a_valid_context():
    """
    An event without one, or whose context cannot be read, has none.
    """
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    contexts = [f"00-{trace_id}-b7ad6b7169203331-00".encode(), b"\xff", None]
    found = [event_of(Record([("traceparent", one)])).trace_id for one in contexts]

    assert [trace_id, None, None] == found


@pytest.mark.parametrize("name", [BARRIER, SWEEP])
def test_an_event_with_a_header_of_a_control_record_is_an_event(name):
    """
    Its writer may give it any header; records of the relay's own have no id.
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
