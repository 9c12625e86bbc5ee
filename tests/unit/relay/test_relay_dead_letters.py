"""The dead letters of parked aggregates, as read by the operator's commands."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import orjson
import pytest
from confluent_kafka import KafkaError, KafkaException

from towpath.relay.cli.printing import print_parked
from towpath.relay.commands import dead_letters
from towpath.relay.commands.dead_letters import (
    Aggregate,
    create_missing,
    listed,
    parked_aggregate,
    parked_events,
    placed_records,
    printable_id,
    publishable,
    release_of,
)
from towpath.relay.encode.parked_aggregates import ParkedAggregates, parking_type
from towpath.relay.encode.record import ANY_PARTITION, Record
from towpath.relay.errors import (
    BrokerRefusedError,
    BrokerUnavailableError,
    StateRefusedError,
    TopicTruncatedError,
)
from towpath.relay.kafka import state
from towpath.relay.kafka.state import RECORDS_AT_ONCE
from towpath.relay.recovery.marks import Mark, marks_document
from towpath.settings import Kafka, Settings, Source
from towpath.settings import Topics as TopicSettings

ORDER = Aggregate("order", b"7")
PARKED = ("parked", b"7")


class Written(NamedTuple):
    """A record of the dead-letter topic."""

    own_key: bytes
    own_value: bytes | None
    own_headers: list[tuple[str, bytes | None]]

    def key(self):
        return self.own_key

    def value(self):
        return self.own_value

    def headers(self):
        return self.own_headers

    def timestamp(self):
        return (1, 1_000)


def at(number: int) -> bytes:
    """Write a position."""
    return b"%016x.%010d" % (160, number)


def event(number: int) -> Written:
    """Write the dead letter of an event whose own header has a reserved name."""
    own = [("position", at(number)), ("aggregate_type", b"order"), ("reason", b"mine")]
    headers = [("form", b"record"), ("topic", b"event.order"), ("reason", b"behind")]
    return Written(b"7", b"{%d}" % number, [*own, *headers, ("parked", b"7")])


def row(number: int) -> Written:
    """Write the dead letter of a row that cannot be decoded as an event."""
    headers = [("position", at(number)), ("form", b"row"), ("aggregate_type", b"order")]
    return Written(b"7", b"{}", [*headers, ("parked", b"7"), ("reason", b"no object")])


def release(number: int) -> Written:
    """Write a release."""
    headers = [("released", at(number)), ("aggregate_type", b"order")]
    return Written(b"7", None, headers)


def numbers(*written: Written) -> list[int]:
    """Return the numbers of order 7's open dead letters, as sorted by the command."""
    letters = parked_events(written).get(ORDER, [])
    return [int(letter.position[-10:]) for letter in letters]


def test_the_letters_of_a_parked_aggregate_are_in_the_order_of_their_positions():
    """
    Partitions are read in any order, and a crash may have written one twice.
    """
    assert [1, 2, 3] == numbers(event(3), event(2), row(1), event(2))


@pytest.mark.parametrize(
    ("ours", "partition"), [([], ANY_PARTITION), ([("partition", b"2")], 2)]
)
def test_an_event_is_published_to_the_partition_in_its_row(
    ours: list[tuple[str, bytes | None]], partition: int
):
    """
    The event's own header of that name is ignored.
    """
    letter = event(1)
    own = [("partition", b"mine"), *letter.own_headers, *ours]
    ((read,),) = parked_events([letter._replace(own_headers=own)]).values()

    assert read.record is not None
    assert partition == read.record.partition


def test_an_event_for_a_missing_partition_is_published_by_its_key():
    """
    Such an event parks its aggregate, and later ones name the same partition.
    """
    named = [
        Record("event.order", b"7", b"{}", [], b"", 0, 9, partition)
        for partition in (ANY_PARTITION, 2, 3)
    ]

    assert [ANY_PARTITION, 2, ANY_PARTITION] == [
        record.partition for record in placed_records(named, {"event.order": 3})
    ]


def test_a_released_aggregate_has_no_letters():
    """
    Its earlier letters remain in the topic, but do not count if it is parked again.
    """
    assert [] == numbers(row(1), event(2), release(2))
    assert [4, 5] == numbers(row(1), event(2), release(2), row(4), event(5))


def test_a_long_type_is_the_same_as_its_hash():
    """
    A stub has the type's hash and a row the type, but both are of one aggregate.
    """
    kind = "x" * 3000
    hashed = parking_type(kind)
    letters = []
    for number, name in ((1, kind), (2, str(hashed))):
        headers = [("position", at(number)), ("aggregate_type", name.encode())]
        letters.append(Written(b"7", b"{}", [*headers, ("form", b"row"), PARKED]))
    parked = parked_events(letters)

    assert {parked_aggregate(parked, kind, "7"): 2} == {
        aggregate: len(parked[aggregate]) for aggregate in parked
    }
    assert parked == parked_events([*letters, row(1)], Aggregate(hashed, b"7"))


def test_a_type_that_is_not_text_is_listed_as_it_is_parked():
    """
    A foreign program wrote the record; the relay parks its id as well.
    """
    headers = [("position", at(1)), ("aggregate_type", b"\xff"), ("form", b"\xff")]
    foreign = Written(b"7", b"{}", [*headers, PARKED])
    parked = parked_events([row(1), foreign])
    known = ParkedAggregates(10)
    known.restore(foreign.key(), foreign.value(), foreign.headers())

    assert {ORDER, Aggregate("\N{REPLACEMENT CHARACTER}", b"7")} == parked.keys()
    assert [["\N{REPLACEMENT CHARACTER}"]] == [
        list(each) for each in known.spans.values()
    ]


def test_a_release_leaves_later_dead_letters_parked():
    """
    They may be read before the release, from a different partition.
    """
    assert [2] == numbers(row(1), release(1), event(2))
    assert [2] == numbers(row(1), event(2), release(1))


def test_the_release_of_an_untyped_aggregate_leaves_the_types_of_its_id_parked():
    """
    Their events wait for their own replay, even those before the untyped row.
    """
    headers = [("position", at(2)), ("form", b"row"), ("parked", b"7")]
    untyped = Written(b"7", b"{}", headers)
    record = release_of("towpath", Aggregate(None, b"7"), at(2))
    released = Written(b"7", record.value, record.headers)

    assert {ORDER} == parked_events([row(1), untyped, released]).keys()
    assert {ORDER} == parked_events([released, untyped, row(1)]).keys()


def test_a_replay_keeps_only_the_letters_of_its_aggregate():
    """
    Those of all others may not fit in memory.
    """
    other = Written(b"8", b"{}", [("position", at(1)), ("parked", b"8")])

    assert {ORDER, Aggregate(None, b"8")} == parked_events([row(1), other]).keys()
    assert {ORDER} == parked_events([row(1), other], ORDER).keys()


def test_an_event_is_published_as_it_would_originally_have_been():
    """
    It has its own headers and topic, without those of the dead letter.
    """
    (_, letter) = parked_events([row(1), event(2)])[ORDER]
    record = letter.record
    assert record is not None

    assert ("event.order", b"7", b"{2}", ["position", "aggregate_type", "reason"]) == (
        record.topic,
        record.key,
        record.value,
        [name for name, _ in record.headers],
    )
    assert b"mine" == dict(record.headers)["reason"]


def test_the_list_counts_letters_that_can_be_published():
    """
    A row that cannot be decoded as an event is not counted.
    """
    (line,) = listed(parked_events([row(1), event(2), event(3)]))

    assert (3, 2, "no object") == (line["letters"], line["publishable"], line["reason"])


SETTINGS = Settings(
    version=1,
    source=(Source(dsn="x"),),
    kafka=Kafka(bootstrap_servers="x"),
    topics=TopicSettings(partitions=6),
)
STATE = "towpath.relay-state"


class StoredMarks:
    """Reads a state topic with the marks of topics, and counts the reads."""

    def __init__(self, counts: dict[str, int], **had: list[int]) -> None:
        self.reads = 0
        self._counts = counts
        self._had = had

    def partition_counts(self) -> dict[str, int]:
        return self._counts

    def read_to_ends(self, *_topic) -> list[Written]:
        self.reads += 1
        return [
            Written(f"marks:event.{kind}".encode(), marks_of(ends), [])
            for kind, ends in self._had.items()
        ]


def marks_of(ends: list[int]) -> bytes:
    """Return the stored marks of a topic's partitions."""
    marks = {number: Mark(end, None) for number, end in enumerate(ends)}
    return orjson.dumps(marks_document(marks))


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """Return the created topics, with their partition counts."""
    created: list[dict[str, int]] = []

    class Topics:
        def __init__(self, *_settings) -> None:
            pass

        def recreate(self, _prefix, counts) -> None:
            created.append(counts)

    monkeypatch.setattr(dead_letters, "KafkaTopics", Topics)
    return created


def event_of(kind: str) -> Record:
    """Return an event without a partition."""
    return Record(f"event.{kind}", b"7", b"{}", [], at(1), 0, 9, ANY_PARTITION)


def test_a_replay_creates_a_topic_that_has_never_existed(created):
    """
    If the first event of a type is parked, the relay has not created its topic yet.

    As at a start of the relay, a topic with marks but without records gets the
    partition count of its marks.
    """
    new, marked, known = map(event_of, ("order", "item", "customer"))
    reader = StoredMarks({"event.customer": 3, STATE: 1}, item=[0, 0, 0])

    counts = create_missing(SETTINGS, [new, marked, known, new], reader)

    assert [{"event.order": 6, "event.item": 3}] == created
    assert {"event.order": 6, "event.item": 3} == {
        name: counts[name] for name in ("event.order", "event.item")
    }


def test_a_replay_into_existing_topics_reads_no_state(created):
    """
    Their partition counts are known.
    """
    reader = StoredMarks({"event.customer": 3, STATE: 1})

    counts = create_missing(SETTINGS, [event_of("customer")], reader)

    assert (3, [], 0) == (counts["event.customer"], created, reader.reads)


def test_a_replay_does_not_create_a_deleted_topic(created):
    """
    Otherwise the relay's next start might not detect that its records are lost.
    """
    reader = StoredMarks({STATE: 1}, order=[1, 0])

    with pytest.raises(TopicTruncatedError, match=r"event.order no longer exists"):
        create_missing(SETTINGS, [event_of("order")], reader)
    assert [] == created


class RefusingProducer:
    """A producer whose broker refuses the event with a given number."""

    def __init__(self, refused: int, code: int = KafkaError.MSG_SIZE_TOO_LARGE) -> None:
        self.produced = 0
        self._refused = refused
        self._code = code
        self._reports: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._reports)

    def produce(self, *_record, on_delivery, **_more) -> None:
        is_refused = self.produced == self._refused
        error = KafkaError(self._code) if is_refused else None
        self._reports.append(partial(on_delivery, error, None))
        self.produced += 1

    def poll(self, _timeout_s: float) -> None:
        reports, self._reports = self._reports, []
        for report in reports:
            report()


@pytest.mark.parametrize(("refused", "steps"), [(0, 1), (RECORDS_AT_ONCE, 2)])
def test_no_step_of_a_replay_follows_a_refused_event(monkeypatch, refused, steps):
    """
    Many events are published in steps, so a refused one ends the replay.
    """
    producer = RefusingProducer(refused)
    monkeypatch.setattr(state, "make_client", lambda *_: producer)
    event = Record("event.order", b"7", b"{}", [], at(1), 0, 9, ANY_PARTITION)

    with pytest.raises(BrokerRefusedError, match="did not acknowledge"):
        state.publish_now(Kafka(bootstrap_servers="x"), *[event] * 3 * RECORDS_AT_ONCE)
    assert steps * RECORDS_AT_ONCE == producer.produced


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, BrokerRefusedError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, BrokerRefusedError),
        (KafkaError.NOT_ENOUGH_REPLICAS, BrokerUnavailableError),
        (KafkaError._MSG_TIMED_OUT, BrokerUnavailableError),
    ],
)
def test_a_permanent_refusal_is_not_reported_as_an_unreachable_broker(
    monkeypatch, code, error
):
    """
    If an event is too large, the remedy must not be to start Kafka.
    """
    monkeypatch.setattr(state, "make_client", lambda *_: RefusingProducer(0, code))
    event = Record("event.order", b"7", b"{}", [], at(1), 0, 9, ANY_PARTITION)

    with pytest.raises(error, match="did not acknowledge"):
        state.publish_now(Kafka(bootstrap_servers="x"), event)


class EndedProducer(RefusingProducer):
    """A producer after a fatal error, which accepts no record."""

    def produce(self, *_record, **_more) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL))


def test_a_fatal_error_of_the_client_is_named_with_the_topic(monkeypatch):
    """
    A replay whose client has no producer id ends with one error and its remedy.
    """
    monkeypatch.setattr(state, "make_client", lambda *_: EndedProducer(0))
    event = Record("event.order", b"7", b"{}", [], at(1), 0, 9, ANY_PARTITION)

    with pytest.raises(BrokerRefusedError, match=r"writing to event\.order: "):
        state.publish_now(Kafka(bootstrap_servers="x"), event)


def test_the_printed_list_has_a_zero_if_no_letter_can_be_published(capsys):
    """
    An empty cell would not show whether a replay publishes anything.
    """
    line = {
        "aggregate_type": None,
        "aggregate_id": "7",
        "letters": 1,
        "publishable": 0,
        "first_position": "p",
        "reason": "why",
    }
    print_parked([line])

    assert ["7", "1", "0", "p", "why"] == capsys.readouterr().out.split()[-5:]


@pytest.mark.parametrize(("kind", "id_"), [("order", "8"), ("\udcff", "7")])
def test_an_aggregate_that_is_not_parked_is_refused(kind: str, id_: str):
    """
    The message names the command that lists the parked aggregates.
    """
    with pytest.raises(StateRefusedError, match="dead-letters list"):
        parked_aggregate(parked_events([row(1)]), kind, id_)


def test_a_row_without_a_record_is_dropped_only_on_request():
    """
    Nothing is published before an operator has decided to drop the row.
    """
    letters = parked_events([row(1), event(2)])[ORDER]

    with pytest.raises(StateRefusedError, match="holds a row and no record"):
        publishable(letters, drops=False)
    assert [b"{2}"] == [record.value for record in publishable(letters, drops=True)]


def test_an_id_that_is_not_utf_8_can_be_given():
    """
    The key of a bytea column may be any bytes, which command-line arguments can hold.
    """
    given = "\udcff"
    own = row(1)._replace(own_key=b"\xff")
    own.own_headers[:] = [
        (name, b"\xff" if name == "parked" else value)
        for name, value in own.own_headers
    ]

    found = parked_aggregate(parked_events([own]), "order", given)

    assert (b"\xff", "\ufffd") == (found.id, printable_id(given))


def test_a_dead_letter_of_a_foreign_program_is_listed():
    """
    Its headers need not be UTF-8; the relay parks its aggregate the same way.
    """
    own = row(1)
    foreign = {"position": b"\xff", "form": b"\xff", "aggregate_type": b"\xff"}
    own.own_headers[:] = [(name, foreign.get(name, v)) for name, v in own.own_headers]

    parked = parked_events([own])

    assert ["\ufffd", "\ufffd"] == [
        value
        for name, value in listed(parked)[0].items()
        if name in {"aggregate_type", "first_position"}
    ]
    with pytest.raises(StateRefusedError, match="at \ufffd holds a \ufffd"):
        publishable(parked[parked_aggregate(parked, "\ufffd", "7")], drops=False)
