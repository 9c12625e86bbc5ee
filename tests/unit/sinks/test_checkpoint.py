"""Offsets as the engine writes them, and as it expects them."""

from types import SimpleNamespace

import orjson
import pytest

from towpath.settings import Kafka, Sink
from towpath.sinks.engine.checkpoint import (
    planned_offsets,
    read_offsets,
    span,
    starting_offsets,
)
from towpath.sinks.engine.query import QueryPlan, start_query
from towpath.sinks.errors import RecordsGoneError
from towpath.sinks.state.progress import records_in


def write_offsets(path, offsets):
    """Write a file as the engine does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"v1\n" + orjson.dumps(offsets))


def test_a_batchs_offsets_are_in_the_last_line_of_its_file(tmp_path):
    """The version and the metadata are in the preceding lines."""
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
def test_a_declared_sink_begins_at_its_stored_offsets(stored, existing, expected):
    """
    A topic created later is read from its earliest record; a deleted one is left out.
    """
    if expected is None:
        expected = {"a": {"0": 5}, "b": {"0": -2}}

    assert expected == orjson.loads(starting_offsets(stored, existing))


def test_a_sink_without_stored_offsets_begins_at_the_earliest_records():
    """
    Without stored offsets, all retained records are read.
    """
    assert starting_offsets({}, {"a": {"0": 8}}) == "earliest"


class FakeSpark:
    """A session with readers and writers that only record their options."""

    def __init__(self):
        self.kept = {}
        self.readStream = self.writeStream = self.sparkContext = self

    def option(self, name, value):
        self.kept[name] = value
        return self

    def __getattr__(self, _name):
        return lambda *_, **__: self


@pytest.mark.parametrize(
    ("content", "expected"), [(b'{"a":{"0":5}}', b'{"a":{"0":5}}'), (b"", b"earliest")]
)
def test_a_truncated_offsets_file_counts_as_empty(content, expected, tmp_path):
    """
    A machine crash may truncate the file; the sink must still be able to start.
    """
    described = {"name": "s", "kind": "cache", "url": "redis://x"}
    route = {"topic": "a", "name": "a"}
    sink = Sink.model_validate(described | {"route": [route]})
    plan = QueryPlan(sink, Kafka(bootstrap_servers="unused"), tmp_path)
    plan.resumes_file.parent.mkdir(parents=True)
    plan.resumes_file.write_bytes(content)
    spark = FakeSpark()
    cluster = SimpleNamespace(
        names=lambda: ["a"], end_offsets=lambda _: {"a": {"0": 8}}
    )
    start_query(spark, plan, cluster, None)

    assert expected.decode() == spark.kept["startingOffsets"]


def test_a_batch_begins_where_the_previous_one_ended(tmp_path):
    """
    The first batch begins where the query began; a new partition, at its first record.
    """
    write_offsets(tmp_path / "sources" / "0" / "0", {"a": {"0": 5}})
    write_offsets(tmp_path / "offsets" / "0", {"a": {"0": 7}, "b": {"0": 2}})
    write_offsets(tmp_path / "offsets" / "1", {"a": {"0": 7, "1": 3}, "b": {"0": 9}})
    first, second = span(tmp_path, 0), span(tmp_path, 1)

    assert {("a", 0): (5, 7), ("b", 0): (0, 2)} == first
    assert {("a", 0): (7, 7), ("a", 1): (0, 3), ("b", 0): (2, 9)} == second
    assert (4, 10) == (records_in(first), records_in(second))


@pytest.mark.parametrize(
    "after", [{"a": {"0": 6}}, {"a": {"1": 8}}, {"b": {"0": 8}}, {}]
)
def test_a_partition_that_lost_records_raises_an_error(tmp_path, after):
    """
    A deleted partition raises it, too: reading must not continue silently.
    """
    write_offsets(tmp_path / "offsets" / "3", {"a": {"0": 7}})
    write_offsets(tmp_path / "offsets" / "4", after)
    with pytest.raises(RecordsGoneError, match="partition 0 of a"):
        span(tmp_path, 4)


def test_a_batch_is_planned_until_it_is_committed(tmp_path):
    """
    Its planned records may be deleted even if all records read so far still exist.
    """
    write_offsets(tmp_path / "offsets" / "0", {"a": {"0": 7}})
    before = planned_offsets(tmp_path)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").write_bytes(b"v1\n{}")
    committed = planned_offsets(tmp_path)
    write_offsets(tmp_path / "offsets" / "1", {"a": {"0": 9}})

    assert ({"a": {"0": 7}}, {}, {"a": {"0": 9}}) == (
        *(before, committed),
        planned_offsets(tmp_path),
    )
