"""Rows that a snapshot reads are encoded together exactly as each row is alone."""

from hypothesis import given
from hypothesis import strategies as st

from support.table_rows import READ_SLICE, ROWS, SETTINGS, TEXTS, codec_and_route
from towpath.relay.encode.record import ANY_PARTITION, FIXED_BYTES, Record
from towpath.relay.encode.rows import read_envelope_facts
from towpath.relay.encode.types import scalar


@given(SETTINGS, ROWS)
def test_read_rows_are_encoded_together_as_each_is_alone(
    settings: tuple[str, str, int], found: list[tuple[str | None, ...]]
):
    """
    For any format, forms and rules, each record equals that of its row alone.
    """
    codec, route = codec_and_route(*settings)
    rows = [tuple(None if t is None else t.encode() for t in row) for row in found]
    expected = []
    for row in rows:
        key = codec.key(row)
        value = codec.value(
            None, row, read_envelope_facts(b"r", READ_SLICE), is_full=False
        )
        position = b"0000000000000abc.-"
        headers = [("position", position), ("snapshot", "sig-ž".encode())]
        size = FIXED_BYTES + len(key or b"") + len(value)
        expected.append(
            Record(
                READ_SLICE.topic,
                key,
                value,
                headers,
                position,
                READ_SLICE.now_us // 1000,
                size,
                ANY_PARTITION,
            )
        )

    assert expected == list(route.reads(rows, READ_SLICE))


@given(st.lists(TEXTS, min_size=1))
def test_texts_are_quoted_together_as_each_is_alone(found: list[str]):
    """
    Even texts that contain the separator of the joined texts are quoted correctly.
    """
    column = [text.encode() for text in found]
    written, mark = scalar.text_column(column)

    assert list(map(scalar.text_json, column)) == [
        mark + text + mark for text in written
    ]
