"""What a sink keeps by name in a file of its folder."""

import structlog

from towpath.sinks.kept import KeptFile


def test_what_was_kept_last_is_there_after_a_restart(tmp_path):
    """Nothing was before the first time; the folder is made."""
    path = tmp_path / "sink" / "kept.json"
    before = KeptFile(path).read()
    KeptFile(path).keep({"orders": 1, "lines": 2})
    KeptFile(path).keep({"orders": 3})

    assert ({}, {"orders": 3}, b'{"orders":3}') == (
        before,
        KeptFile(path).read(),
        path.read_bytes(),
    )


def test_a_file_that_is_cut_off_is_told_and_replaced(tmp_path):
    """Also if there is nothing to be kept, so that it is told once."""
    path = tmp_path / "kept.json"
    path.write_bytes(b'{"orders": ')
    with structlog.testing.capture_logs() as logs:
        read = [KeptFile(path).read()]
        KeptFile(path).keep({})
        read.append(KeptFile(path).read())

    assert ([{}, {}], [("warning", str(path))]) == (
        read,
        [(line["log_level"], line["file"]) for line in logs],
    )


def test_what_is_there_already_is_not_written_again(tmp_path):
    """A file that is looked at every few seconds stays the same file."""
    path = tmp_path / "kept.json"
    kept = KeptFile(path)
    kept.keep({"orders": 1})
    files = [path.stat().st_ino]
    # Another file, so that nobody else is given the number of the first.
    path.with_name("another").hardlink_to(path)
    kept.keep({"orders": 1})
    files.append(path.stat().st_ino)
    kept.keep({"orders": 2})
    files.append(path.stat().st_ino)

    assert (True, False) == (files[0] == files[1], files[1] == files[2])
