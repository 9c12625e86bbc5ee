"""State that a sink keeps by name, in files in its folder."""

import pytest
import structlog

from towpath.sinks.state import incomplete
from towpath.sinks.state.files import JsonFile


def test_stored_names_survive_a_restart(tmp_path):
    """
    Without a file, there are no names; storing some creates the folder.
    """
    path = tmp_path / "sink" / "kept.json"
    before = JsonFile(path).read()
    JsonFile(path).keep({"orders": 1, "lines": 2})
    JsonFile(path).keep({"orders": 3})

    assert ({}, {"orders": 3}, b'{"orders":3}') == (
        before,
        JsonFile(path).read(),
        path.read_bytes(),
    )


def test_a_truncated_state_file_is_logged_and_replaced(tmp_path):
    """
    It is replaced even if there is nothing to store, so that it is logged only once.
    """
    path = tmp_path / "kept.json"
    path.write_bytes(b'{"orders": ')
    with structlog.testing.capture_logs() as logs:
        read = [JsonFile(path).read()]
        JsonFile(path).keep({})
        read.append(JsonFile(path).read())

    assert ([{}, {}], [("warning", str(path))]) == (
        read,
        [(line["log_level"], line["file"]) for line in logs],
    )


def test_an_unchanged_state_file_is_not_written_again(tmp_path):
    """
    Storing equal content again keeps the inode.
    """
    path = tmp_path / "kept.json"
    kept = JsonFile(path)
    kept.keep({"orders": 1})
    files = [path.stat().st_ino]
    # A second link keeps the inode of the first file from being reused.
    path.with_name("another").hardlink_to(path)
    kept.keep({"orders": 1})
    files.append(path.stat().st_ino)
    kept.keep({"orders": 2})
    files.append(path.stat().st_ino)

    assert (True, False) == (files[0] == files[1], files[1] == files[2])


@pytest.mark.parametrize(
    "route",
    [".a/b%2E.c", "схема." + "заказ" * 12, "受注" * 30],
    ids=["dots", "cyrillic", "kanji"],
)
def test_any_route_name_fits_in_a_file_name(tmp_path, route):
    """
    Postgres names may use any script; the end of a snapshot deletes only its own file.
    """
    for snapshot_id in ("repair-1.2", "repair-2"):
        incomplete.note(tmp_path, "s", route, snapshot_id)
    incomplete.end(tmp_path, "s", route, "repair-1.2")

    assert ((route,), ((route, "repair-2"),)) == (
        incomplete.routes(tmp_path, "s"),
        incomplete.noted(tmp_path, "s", [route]),
    )


def test_a_file_from_an_earlier_version_is_found_and_deleted(tmp_path):
    """
    Its non-ASCII letters are percent-encoded.
    """
    folder = tmp_path / "sinks" / "s" / "unfilled"
    folder.mkdir(parents=True)
    (folder / "%D0%B7.repair-1").touch()
    before = incomplete.routes(tmp_path, "s")
    incomplete.end(tmp_path, "s", "з", "repair-1")

    assert (("з",), ()) == (before, incomplete.routes(tmp_path, "s"))
