"""Records as columns, and how long a fetch waits for the records of a batch."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from towpath.schemas.clock import SystemClock
from towpath.settings import Kafka
from towpath.sinks.errors import BrokerUnavailableError, RecordsGoneError
from towpath.sinks.kafka import fetch
from towpath.sinks.kafka.fetch import KafkaBatches, _FetchTimeout, table_of

TOPIC = "towpath.shop.orders"
STAMPED_BY_BROKER = "towpath.shop.lines"


class Message:
    """A record as the client returns it."""

    def __init__(self, offset, headers, value=b"{}", at_ms=0, topic=TOPIC):
        self._at_ms = at_ms
        self._topic = topic
        self._offset = offset
        self._headers = headers
        self._value = value

    def topic(self):
        """Return the topic."""
        return self._topic

    def partition(self):
        """Return the partition."""
        return 0

    def offset(self):
        """Return the offset."""
        return self._offset

    def key(self):
        """Return the key."""
        return b"{}"

    def value(self):
        """Return the value."""
        return self._value

    def __len__(self):
        return len(self._value)

    def error(self):
        """Return no error."""

    def timestamp(self):
        """Return the time and its kind; for one topic, the broker has set the time."""
        return (2 if self._topic == STAMPED_BY_BROKER else 1), self._at_ms

    def headers(self):
        """
        Return the headers, or fail as the client does if a name is not UTF-8.
        """
        if self._headers is None:
            message = "returned a result with an exception set"
            raise SystemError(message)
        return self._headers


def test_a_header_with_an_invalid_name_leaves_its_record_without_headers():
    """
    Without a position, it becomes a dead letter; the other records are unchanged.
    """
    messages = [Message(0, [("position", b"1")]), Message(1, None), Message(2, [])]

    assert [[{"key": "position", "value": b"1"}], [], []] == (
        table_of(messages).column("headers").to_pylist()
    )


class ClientOfBatches:
    """A client that has all records from the start."""

    def __init__(self, messages):
        self._messages = messages

    def assign(self, _partitions):
        """Do nothing: the records are those of the batch."""

    def get_watermark_offsets(self, _partition, cached):
        """Return an end far beyond the batch, as in a backlog."""
        assert cached
        return 0, 10**9

    def consume(self, limit, _timeout_s):
        """Return the next records."""
        taken, self._messages = self._messages[:limit], self._messages[limit:]
        return taken


def test_the_oldest_record_of_a_batch_is_found_across_all_slices(monkeypatch):
    """
    Timestamps need not follow the offsets; the next batch starts without a time.
    """
    times = [5_000] * fetch.FETCH_SLICE_RECORDS + [3_000, 4_000, 9_000]
    messages = [Message(n, [], at_ms=at) for n, at in enumerate(times)]
    monkeypatch.setattr(
        fetch.client, "consumer", lambda *_: ClientOfBatches(list(messages))
    )
    batches = KafkaBatches(Kafka(bootstrap_servers="unused"), "cache")
    last = len(times) - 1
    before = batches.take_oldest_ms()
    slices = [len(table) for table in batches.slices({(TOPIC, 0): (0, last)})]
    oldest_ms = batches.take_oldest_ms()
    list(batches.slices({(TOPIC, 0): (last, last + 1)}))

    assert [fetch.FETCH_SLICE_RECORDS, 2] == slices
    assert (None, 3_000, 9_000) == (before, oldest_ms, batches.take_oldest_ms())
    assert batches.take_oldest_ms() is None


def test_the_oldest_record_is_found_among_different_kinds_of_timestamps(
    monkeypatch,
):
    """
    The records of one topic have creation times, and those of the other append times.
    """
    messages = [
        Message(0, [], at_ms=5_000),
        Message(0, [], at_ms=3_000, topic=STAMPED_BY_BROKER),
    ]
    monkeypatch.setattr(
        fetch.client, "consumer", lambda *_: ClientOfBatches(list(messages))
    )
    batches = KafkaBatches(Kafka(bootstrap_servers="unused"), "cache")
    list(batches.slices({(TOPIC, 0): (0, 1), (STAMPED_BY_BROKER, 0): (0, 1)}))

    assert 3_000 == batches.take_oldest_ms()


@pytest.mark.parametrize("limit", [2**31 - 1, 3])
@pytest.mark.parametrize(
    "values", [[], [b""], [b"a", b"", b"bcd"], [b"a", None, b"bc"], [None]]
)
def test_fetched_values_are_unchanged(monkeypatch, values, limit):
    """
    Empty values, nulls, and more bytes than fit into one array are kept.
    """
    monkeypatch.setattr(fetch, "_MAX_ARRAY_BYTES", limit)
    table = table_of([Message(n, [], value) for n, value in enumerate(values)])
    table.validate(full=True)

    assert (values, [*range(len(values))]) == (
        table.column("value").to_pylist(),
        table.column("offset").to_pylist(),
    )


class Broker:
    """A client whose broker returns a partition's end, or does not answer."""

    def __init__(self, answer):
        self.answer = answer
        self.request_count = 0

    def get_watermark_offsets(self, _partition, _timeout_s):
        """Return the answer, or raise it."""
        self.request_count += 1
        if isinstance(self.answer, int):
            raise KafkaException(KafkaError(self.answer))
        return self.answer


class AdvancingClock(SystemClock):
    """A clock that advances one second at each reading."""

    now_s = 0.0

    def monotonic_s(self):
        """Return the time."""
        self.now_s += 1
        return self.now_s


@pytest.mark.parametrize(
    ("answer", "error", "expected"),
    [
        ((0, 12), RecordsGoneError, 1),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, RecordsGoneError, 1),
        (KafkaError._TIMED_OUT, BrokerUnavailableError, 1),
        ((0, 20), BrokerUnavailableError, fetch._MAX_CHECKS),
    ],
)
def test_silence_is_accepted_while_the_broker_has_the_records(answer, error, expected):
    """
    A large response takes time; deleted records raise an error immediately.
    """
    broker = Broker(answer)
    timeout = _FetchTimeout(broker, AdvancingClock())

    def wait():
        for _ in range(100 * fetch._MAX_CHECKS):
            timeout.check(8, {(TOPIC, 0): 20})

    with pytest.raises(error, match=TOPIC):
        wait()

    assert expected == broker.request_count


def test_progress_of_a_fetch_is_not_silence():
    """
    Every arrival of a record of the batch counts as progress.
    """
    broker = Broker((0, 20))
    timeout = _FetchTimeout(broker, AdvancingClock())
    for missing in range(300, 0, -1):
        timeout.check(missing, {(TOPIC, 0): 20})

    assert broker.request_count == 0
