"""Files and rows of the sink benchmark: progress, reports, commands."""

import contextlib
import json
import socket
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from towpath.loadtests.bench.context import translated
from towpath.loadtests.bench.sinks.backlog import sink_blocks
from towpath.loadtests.bench.sinks.baselines import (
    command,
    lines,
    measure_plain_writes,
    slices,
)
from towpath.loadtests.bench.sinks.catch_up import (
    SinkProgress,
    SinkProgressReader,
    read_findings,
)
from towpath.loadtests.bench.sinks.result import Targets
from towpath.loadtests.errors import BenchError

ROW = ("7", "0", "0.07", "waiting", "2026-01-01 00:00:07.000001+00", "a note")
EQUAL = {
    "sink": "cache",
    "result": "equal",
    "differences": 0,
    "routes": [{"route": "item", "source_rows": 5, "error": None}],
}


def test_a_sink_without_a_batch_has_no_progress(tmp_path: Path):
    """
    Neither file exists before the first batch.
    """
    reader = SinkProgressReader(tmp_path, "t")

    assert (SinkProgress(0, 0.0, 0, 0, 0, None), None) == (
        reader.applied(),
        reader.first_batch_ms(),
    )


def test_progress_covers_the_topic_and_is_dated_by_the_sink(tmp_path: Path):
    """
    Other topics' offsets do not count; Spark's offset log dates the first batch.
    """
    progress = {
        "applied": {"t": {"0": 4, "1": 3}, "other": {"0": 99}},
        "updated_at": "1970-01-01T00:00:12+00:00",
        "batches": 2,
        "retries": 1,
        "dead_letters": 0,
        "left": 3,
        "error": None,
    }
    (tmp_path / "progress.json").write_text(json.dumps(progress))
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text('v1\n{"batchTimestampMs":11000}\n{"t":{"0":2}}\n')
    reader = SinkProgressReader(tmp_path, "t")

    assert (SinkProgress(7, 12_000.0, 2, 1, 0, None, 3), 11_000.0) == (
        reader.applied(),
        reader.first_batch_ms(),
    )


def test_a_partial_offset_log_has_no_date(tmp_path: Path):
    """
    It is still being written; the next reading finds it complete.
    """
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1\n")

    assert SinkProgressReader(tmp_path, "t").first_batch_ms() is None


@pytest.mark.parametrize(
    ("report", "rows", "findings"),
    [
        (EQUAL, 5, ()),
        (EQUAL, 6, ("5 rows compared instead of 6",)),
        ({**EQUAL, "result": "different", "differences": 2}, 5, ("2 differences",)),
    ],
)
def test_differences_and_missing_rows_are_findings(report, rows, findings):
    """
    A sink with all rows equal has no findings.
    """
    assert findings == read_findings(report, rows)


@pytest.mark.parametrize(
    "expected",
    [
        {"routes": [{"route": "item", "source_rows": 5, "error": "it went away"}]},
        {"routes": [], "error": "it went away"},
    ],
)
def test_a_failed_comparison_proves_nothing(expected):
    """
    It counts as an error, not as equal or different, for one route or for all.
    """
    report = {**EQUAL, "result": "unverified", **expected}

    with pytest.raises(BenchError, match="it went away"):
        read_findings(report, 5)


def test_a_plain_write_is_encoded_in_the_protocol():
    """
    Every column is a field, and the position is an additional one.
    """
    parts = command(ROW).split(b"\r\n")

    assert (b"*16", [b"HSET", b"plain:7", b"id", b"7"], b"_position", 2 * 16 + 2) == (
        parts[0],
        parts[2:10:2],
        parts[-4],
        len(parts),
    )


def test_an_unreachable_cache_is_an_error_of_the_benchmark():
    """
    Nothing listens at the address.
    """
    screen = SimpleNamespace(begin=lambda _label, _total: lambda _done: None)
    bench: Any = SimpleNamespace(options=SimpleNamespace(rows=5), screen=screen)
    source: Any = None

    with pytest.raises(BenchError, match="Connection refused"), translated():
        measure_plain_writes(bench, source, "redis://127.0.0.1:1/0")


class TwoParts(contextlib.nullcontext[Any]):
    """A connection on which the response to one write arrives in two parts."""

    def __init__(self) -> None:
        super().__init__(self)
        self.parts = [b":7\r", b"\n"]

    def sendall(self, packed: bytes) -> None:
        """Accept the write."""

    def recv(self, _size: int) -> bytes:
        """Return the next part; after the last one, time out."""
        if not self.parts:
            raise TimeoutError
        return self.parts.pop(0)


def test_a_response_that_arrives_in_two_parts_counts_once(
    monkeypatch: pytest.MonkeyPatch,
):
    """
    Neither part contains the complete line end.
    """
    monkeypatch.setattr(socket, "create_connection", lambda *_: TwoParts())
    ticks = iter((1.0, 3.0))
    bench: Any = SimpleNamespace(
        options=SimpleNamespace(rows=1),
        screen=SimpleNamespace(begin=lambda _label, _total: lambda _done: None),
        clock=SimpleNamespace(monotonic_s=lambda: next(ticks)),
    )
    source: Any = SimpleNamespace(texts=lambda: iter([ROW]))

    found = measure_plain_writes(bench, source, "redis://127.0.0.1:1/0")

    assert {"rows_per_s": 0.5} == found


def test_a_document_of_the_bulk_load_has_all_columns_and_no_version():
    """
    Numbers remain numbers, a numeric keeps its digits, and a time is in UTC.
    """
    action, document = map(json.loads, lines(ROW).splitlines())
    position = document.pop("_position")

    assert (
        {"index": {"_id": "7"}},
        {
            "id": 7,
            "version": 0,
            "amount": "0.07",
            "state": "waiting",
            "changed_at": "2026-01-01T00:00:07.000001Z",
            "note": "a note",
        },
        18,
    ) == (action, document, len(position))


def test_slices_contain_every_row_in_order():
    """
    The last one is shorter.
    """
    assert [[1, 2], [3, 4], [5]] == list(slices([1, 2, 3, 4, 5], 2))


def test_the_sinks_are_configured_only_with_their_addresses(tmp_path: Path):
    """
    Each of the three blocks has the topic as its only route, and default settings.
    """
    targets = Targets(
        redis_url="redis://r",
        opensearch_url="http://o",
        catalog_dsn="postgresql://c/w",
        pids={},
        merge=(),
    )
    blocks = tomllib.loads(sink_blocks("p.bench.item", targets, tmp_path))["sink"]
    values = {
        block["name"]: (
            block["url"],
            [(r["topic"], r["name"]) for r in block["route"]],
            sorted(block.keys() - {"name", "kind", "url", "route"}),
        )
        for block in blocks
    }

    assert {
        "cache": ("redis://r", [("p.bench.item", "item")], []),
        "search": ("http://o", [("p.bench.item", "item")], []),
        "warehouse": ("postgresql://c/w", [("p.bench.item", "bench.item")], ["folder"]),
    } == values
