"""Progress is a file that is never half written."""

import errno
import os
import stat
from contextlib import nullcontext
from datetime import UTC, datetime

import pytest

from towpath.sinks.errors import StateNotWrittenError
from towpath.sinks.state.progress import (
    Progress,
    State,
    progress_path,
    replace_file,
    stored_progress,
    write_progress,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_progress_is_read_as_it_was_written(tmp_path):
    """
    Offsets, counters, state and timestamp are read back unchanged.
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


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_durable_file_and_its_name_survive_a_crash(tmp_path, monkeypatch, is_durable):
    """
    The folder is synchronized too, after the file is renamed.
    """
    path, seen = tmp_path / "file", []

    def fsync(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        seen.append(("folder" if is_folder else "file", path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    replace_file(path, b"new", is_durable=is_durable)

    assert ([("file", False), ("folder", True)] if is_durable else []) == seen


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.EINVAL, None), (errno.EIO, StateNotWrittenError)]
)
def test_a_file_system_that_cannot_synchronize_folders_is_accepted(
    tmp_path, monkeypatch, number, expected
):
    """
    Any other error is raised as a failure, and leaves no temporary file.
    """
    fsync = os.fsync

    def refuse_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    with pytest.raises(expected) if expected else nullcontext():
        replace_file(tmp_path / "file", b"new", is_durable=True)

    assert ["file"] == [each.name for each in tmp_path.iterdir()]


def test_a_sink_that_never_ran_is_starting(tmp_path):
    """
    Without a file, there is no progress.
    """
    assert Progress(sink="cache") == stored_progress(tmp_path / "none.json", "cache")


@pytest.mark.parametrize("content", [b"{}", b"[]", b"\xff", b'{"state": "later"}'])
def test_unreadable_progress_counts_as_none(tmp_path, content):
    """
    It may be from a later version; one sink's file must not stop the whole driver.
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
