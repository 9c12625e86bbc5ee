"""Transaction metadata for any transactions, even after restarts."""

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from towpath.relay.encode.codecs.factory import Documents
from towpath.relay.encode.record import Record
from towpath.relay.encode.transaction_metadata import TransactionMetadata
from towpath.relay.wal.transactions import Transaction
from towpath.settings.rows import RecordFormat

# The results of one message of a transaction: an event of a table, two for a changed
# key, or nothing, as for a table that is not captured.
MESSAGES = st.lists(
    st.lists(st.sampled_from(["s.a", "s.b", "message"]), max_size=2), max_size=12
)
HISTORIES = st.lists(MESSAGES, max_size=6)


def new_metadata() -> TransactionMetadata:
    """Make the metadata of a process that has just started."""
    return TransactionMetadata("p", Documents(RecordFormat.JSON, lambda *_: 0))


def transaction(number: int) -> Transaction:
    """Make the transaction with the given number."""
    lsn = 8 * (number + 1)
    return Transaction(number % 3, lsn, lsn, 1000 * number, b"%016x." % lsn)


def stream(metadata: TransactionMetadata, history: list, first: int = 0):
    """Stream transactions starting at an index; return their records and numbers."""
    records: list[Record] = []
    places = []
    for number, messages in enumerate(history[first:], start=first):
        metadata.begin(transaction(number))
        for collections in messages:
            places += [metadata.place(collection) for collection in collections]
            records.append(metadata.due())
        records.append(metadata.end(transaction(number), len(messages)))
    return [record for record in records if record is not None], places


@given(HISTORIES)
def test_end_counts_equal_the_numbered_events(history: list):
    """
    A transaction's events are numbered without gaps, and END counts them (A78, A80).
    """
    records, places = stream(new_metadata(), history)
    ends = [json.loads(record.value) for record in records[1::2]]
    events = [[c for group in messages for c in group] for messages in history]
    expected = [Counter(each) for each in events if each]
    numbered = [
        (number, Counter(each[:number])[each[number - 1]])
        for each in events
        for number in range(1, len(each) + 1)
    ]

    assert (expected, [sum(each.values()) for each in expected], numbered) == (
        [
            {c["data_collection"]: c["event_count"] for c in end["data_collections"]}
            for end in ends
        ],
        [end["event_count"] for end in ends],
        [(place.total_order, place.collection_order) for place in places],
    )


@given(HISTORIES)
def test_positions_of_begin_and_end_rise_strictly(history: list):
    """
    BEGIN and END alternate, and their positions rise strictly within the topic.
    """
    records, _ = stream(new_metadata(), history)
    positions = [record.position for record in records]
    statuses = [json.loads(record.value)["status"] for record in records]

    assert (sorted(set(positions)), ["BEGIN", "END"] * (len(records) // 2)) == (
        positions,
        statuses,
    )


@given(HISTORIES, st.data())
def test_a_replay_repeats_transaction_metadata(history: list, draw):
    """
    After a crash, a new process that starts at any transaction makes the same records.
    """
    records, places = stream(new_metadata(), history)
    first = draw.draw(st.integers(0, len(history)))
    again, places_again = stream(new_metadata(), history, first)

    assert (
        records[len(records) - len(again) :],
        places[len(places) - len(places_again) :],
    ) == (again, places_again)


@given(HISTORIES, HISTORIES, st.integers(0, 12))
def test_an_interrupted_transaction_leaves_no_counts(
    before: list, history: list, cut: int
):
    """
    If the stream ends in mid-transaction, the next BEGIN restarts the counts.
    """
    metadata = new_metadata()
    for number, messages in enumerate(before):
        metadata.begin(transaction(number))
        for collections in messages[:cut]:
            for collection in collections:
                metadata.place(collection)

    assert stream(new_metadata(), history) == stream(metadata, history)
