"""The ids of what a sink writes to, over its restarts."""

import structlog

from towpath.sinks.known_ids import KnownIds


def recalled(file):
    """Read a file as the next process does."""
    known = KnownIds(file)
    known.recall()
    return known


def test_ids_are_known_after_a_restart(tmp_path):
    """What was learnt last stands; what was forgotten, or never learnt, does not."""
    file = tmp_path / "sink" / "ids.json"
    known = recalled(file)
    known.learn("orders", "1")
    known.learn("orders", "2")
    known.learn("lines", "3")
    known.forget("lines")
    again = recalled(file)

    assert ("2", None, None) == tuple(map(again.of, ("orders", "lines", "labels")))


def test_what_cannot_be_read_is_told_and_begun_anew(tmp_path):
    """A file that is cut off stops nothing, and is not passed over in silence."""
    file = tmp_path / "ids.json"
    file.write_bytes(b'{"orders": ')
    with structlog.testing.capture_logs() as logs:
        known = recalled(file)

    assert (None, ["warning"]) == (
        known.of("orders"),
        [line["log_level"] for line in logs],
    )


def test_without_a_file_ids_are_known_while_it_runs():
    """Who has no folder of its own notices what changes under its hands."""
    known = recalled(None)
    known.learn("orders", "1")

    assert "1" == known.of("orders")
