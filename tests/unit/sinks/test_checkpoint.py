"""Offsets as the engine writes them, and as it wants to be told them."""

import orjson
import pytest

from towpath.sinks.jobs.checkpoint import read_offsets, starting_offsets


def test_the_offsets_of_a_batch_stand_in_its_last_line(tmp_path):
    """Version and metadata come first."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(
        'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"towpath.shop.orders":{"0":7,"1":9}}'
    )

    assert {"towpath.shop.orders": {"0": 7, "1": 9}} == read_offsets(tmp_path, 3)


@pytest.mark.parametrize(
    ("stored", "existing", "expected"),
    [
        ({"a": {"0": 5, "1": 6}}, {"a": {"0": 8, "1": 8}}, {"a": {"0": 5, "1": 6}}),
        ({"a": {"0": 5}}, {"a": {"0": 8, "1": 8}}, {"a": {"0": 5, "1": -2}}),
        ({"a": {"0": 5}}, {"a": {"0": 8}, "b": {"0": 1}}, None),
        ({"a": {"0": 5}, "gone": {"0": 5}}, {"a": {"0": 8}}, {"a": {"0": 5}}),
    ],
)
def test_a_late_sink_begins_where_it_was_declared(stored, existing, expected):
    """What is new since begins at its earliest record; what is gone is left out."""
    if expected is None:
        expected = {"a": {"0": 5}, "b": {"0": -2}}

    assert expected == orjson.loads(starting_offsets(stored, existing))


def test_a_sink_that_was_always_there_begins_at_the_beginning():
    """Without stored offsets, everything that is retained is read."""
    assert starting_offsets({}, {"a": {"0": 8}}) == "earliest"
