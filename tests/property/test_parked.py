"""A replay parks the same records, whatever Kafka already had before the crash."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from towpath.relay.encode.dead_letters import DeadLetters
from towpath.relay.encode.outbox import OutboxRoute
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import Record, partition_of
from towpath.relay.wal.messages import Column, Relation
from towpath.relay.wal.transactions import Change, Transaction
from towpath.schemas.envelope import Operation
from towpath.settings.outbox import Outbox

PARTITIONS = 3
LIMIT_BYTES = 1000
NAMES = (
    "id",
    "aggregate_type",
    "aggregate_id",
    "type",
    "payload",
    "headers",
    "traceparent",
    "occurred_at",
)
OUTBOX = Relation(5, "towpath", "outbox", tuple(Column(n, 25) for n in NAMES), ())

# Mostly valid rows of a few aggregates, so that some rows follow an invalid one.
ROWS = st.tuples(
    st.sampled_from([*[b"order"] * 4, b"customer", b"bad topic", None]),
    st.sampled_from([*[b"1"] * 4, b"2", b"3", None]),
    st.sampled_from([*[b"{}"] * 4, b"x" * 2 * LIMIT_BYTES]),
    st.sampled_from([*[None] * 4, b"[]"]),
)


class Row(NamedTuple):
    """The varying fields of a row."""

    aggregate_type: bytes | None
    aggregate_id: bytes | None
    payload: bytes
    headers: bytes | None


def changes(rows: list[tuple]) -> list[Change]:
    """Put the rows into transactions of two rows each."""
    made = []
    for number, row in enumerate(map(Row._make, rows)):
        lsn = 8 * (number // 2 + 1)
        transaction = Transaction(lsn, lsn, lsn, 1_700_000_000_000_000, b"%016x." % lsn)
        values = (
            b"id",
            row.aggregate_type,
            row.aggregate_id,
            b"T",
            row.payload,
            row.headers,
            None,
            None,
        )
        made.append(
            Change(
                Operation.CREATE,
                OUTBOX,
                values,
                None,
                False,
                transaction,
                number % 2,
                0,
            )
        )
    return made


def route(stream: list[Change], parked: ParkedAggregates) -> list[Record]:
    """
    Route a stream as the relay does; records that are too large become dead letters.
    """
    dead = DeadLetters("towpath", lambda _: None, parked)
    route = OutboxRoute(OUTBOX, Outbox(), dead, parked, frozenset(), lambda _: None)
    made = []
    for change in stream:
        for record in route.records(change, 0):
            is_large = record.topic != dead.topic and record.size > LIMIT_BYTES
            made.append(
                dead.of_large(record, LIMIT_BYTES, 100_000) if is_large else record
            )
    return made


def partition(record: Record) -> int:
    """Choose the partition of a dead letter."""
    key = record.position if record.key is None else record.key
    return partition_of(key, PARTITIONS)


@given(
    rows=st.lists(ROWS, max_size=30),
    kept=st.tuples(*[st.integers(0, 30)] * PARTITIONS),
    confirmed=st.integers(0, 30),
)
def test_a_replay_makes_the_same_dead_letters(
    rows: list[tuple], kept: tuple[int, ...], confirmed: int
):
    """
    Every record of the replay equals the first run's record.

    Any prefix of each partition of dead letters may be in Kafka when the relay dies;
    the confirmed LSN is below the first missing dead letter.
    """
    stream = changes(rows)
    first = route(stream, ParkedAggregates(1000))
    seen = dict.fromkeys(range(PARTITIONS), 0)
    parked = ParkedAggregates(1000)
    bound = confirmed
    for number, record in enumerate(first):
        if record.topic != "towpath.dead.relay":
            continue
        at = partition(record)
        seen[at] += 1
        if seen[at] <= kept[at]:
            parked.restore(record.key, record.value, record.headers)
        else:
            bound = min(bound, number)
    begin = min(bound, len(stream)) // 2 * 2

    assert first[begin:] == route(stream[begin:], parked)


@given(rows=st.lists(ROWS, max_size=30))
def test_no_event_overtakes_a_parked_one(rows: list[tuple]):
    """
    After an aggregate's first dead letter, none of its events is published.
    """
    made = route(changes(rows), ParkedAggregates(1000))
    waiting: set[tuple[bytes | None, bytes]] = set()
    passed = []
    for row, record in zip(map(Row._make, rows), made, strict=True):
        if row.aggregate_id is None:
            continue
        aggregate = (row.aggregate_type, row.aggregate_id)
        if record.topic == "towpath.dead.relay":
            waiting.add(aggregate)
        elif aggregate in waiting or (None, row.aggregate_id) in waiting:
            passed.append(aggregate)

    assert [] == passed


@given(rows=st.lists(ROWS, max_size=30))
def test_aggregates_without_a_dead_letter_are_never_parked(rows: list[tuple]):
    """
    Their events are published, even while those of other aggregates are parked.
    """
    made = route(changes(rows), ParkedAggregates(1000))
    invalid = {
        (row.aggregate_type, row.aggregate_id)
        for row in map(Row._make, rows)
        if row.headers or len(row.payload) > LIMIT_BYTES or row.aggregate_type is None
    }
    held = [
        row
        for row, record in zip(map(Row._make, rows), made, strict=True)
        if record.topic == "towpath.dead.relay"
        and (row.aggregate_type, row.aggregate_id) not in invalid
        and (None, row.aggregate_id) not in invalid
        and row.aggregate_type != b"bad topic"
    ]

    assert [] == held
