"""Replayed rows of the outbox, through the relay's loop and its fast path."""

import pytest

from support.relay_bench import START, Bench, transaction
from support.relay_cost import cost_us, row, shape
from towpath.relay.errors import MalformedMessageError
from towpath.schemas.position import format_position

ROWS = 300


def test_each_row_of_a_long_transaction_has_the_position_of_its_ordinal():
    """
    Positions beyond the prepared ordinals have the same form.
    """
    bench = Bench()
    rows = (row(number) for number in range(ROWS))
    # Warm up every partition: its first record is sent alone.
    bench.stream.reads.append(transaction(START, shape(), *map(row, range(20))))
    bench.turn(2)
    bench.stream.reads.append(transaction(START + 8, shape(), *rows))
    bench.turn()
    events = bench.producer.records[-ROWS:]

    expected = [format_position(START + 8, ordinal) for ordinal in range(ROWS)]
    assert expected == [record.position.decode() for record in events]


@pytest.mark.parametrize(
    "malformed",
    [
        row(2) + b"n",
        row(2)[:-1],
        row(2)[:8],
        # It lacks one of the table's columns, and exactly that column's bytes.
        row(2).replace(b"N\0\x08", b"N\0\x07")[:-34],
        # It declares one column fewer than it has.
        row(2).replace(b"N\0\x08", b"N\0\x07"),
        row(2).replace(b"N\0\x08", b"O\0\x08"),
    ],
    ids=[
        "longer",
        "truncated",
        "without values",
        "narrower",
        "miscounted",
        "not a new row",
    ],
)
def test_a_malformed_row_after_plain_ones_is_an_error(malformed: bytes):
    """
    The fast path publishes nothing of the row, and the parser's error is raised.
    """
    bench = Bench()
    bench.stream.reads.append(transaction(START + 8, shape(), row(1)))
    bench.turn()
    before = len(bench.producer.records)
    bench.stream.reads.append(transaction(START + 808, malformed))

    with pytest.raises(MalformedMessageError):
        bench.turn()

    assert before == len(bench.producer.records)


@pytest.mark.parametrize("rows", [1, 100])
def test_the_cost_of_replayed_rows_includes_their_acknowledgement(rows: int):
    """
    The real client delivers every event to the broker that it simulates.
    """
    assert cost_us(rows, events=200) > 0
