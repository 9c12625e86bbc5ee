"""Progress is a file that is never half written."""

from datetime import UTC, datetime

import pytest

from towpath.sinks.state.progress import (
    Progress,
    State,
    progress_path,
    stored_progress,
    write_progress,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_progress_reads_as_it_was_written(tmp_path):
    """
    Offsets, counters and state come back, with a time stamp.
    """
    path = progress_path(tmp_path, "cache")
    written = Progress(
        sink="cache",
        state=State.RUNNING,
        applied={"towpath.shop.orders": {"0": 7}},
        rows=7,
        updated_at="2026-01-02T03:04:05+00:00",
    )
    write_progress(path, written)

    assert written == stored_progress(path, "cache")


def test_a_sink_that_never_ran_is_starting(tmp_path):
    """
    Without a file there is no progress.
    """
    assert Progress(sink="cache") == stored_progress(tmp_path / "none.json", "cache")


@pytest.mark.parametrize("content", [b"{}", b"[]", b"\xff", b'{"state": "later"}'])
def test_a_progress_that_is_not_readable_counts_as_none(tmp_path, content):
    """
    It may be of a later version; one sink's file must not end a driver of several.
    """
    path = tmp_path / "progress.json"
    path.write_bytes(content)

    assert Progress(sink="cache") == stored_progress(path, "cache")


def test_no_temporary_file_is_left_beside_the_progress(tmp_path):
    """
    The temporary file becomes the file.
    """
    path = progress_path(tmp_path, "cache")
    write_progress(path, Progress(sink="cache"))
    write_progress(path, Progress(sink="cache", rows=1))

    assert [path] == list(path.parent.iterdir())
