"""The stored ids of a sink's targets, across its restarts."""

import structlog

from towpath.sinks.state.files import KnownIds


def recalled(file):
    """Read a file as the next process does."""
    known = KnownIds(file)
    known.restore()
    return known


def test_target_ids_are_known_after_a_restart(tmp_path):
    """
    The last stored ids are known; forgotten ids and those never stored are not.
    """
    file = tmp_path / "sink" / "ids.json"
    known = recalled(file)
    known.learn("orders", "1")
    known.learn("orders", "2")
    known.learn("lines", "3")
    known.forget("lines")
    again = recalled(file)

    assert ("2", None, None) == tuple(map(again.of, ("orders", "lines", "labels")))


def test_an_unreadable_id_file_is_logged_and_replaced(tmp_path):
    """
    A truncated file does not stop the sink; it is logged.
    """
    file = tmp_path / "ids.json"
    file.write_bytes(b'{"orders": ')
    with structlog.testing.capture_logs() as logs:
        known = recalled(file)

    assert (None, ["warning"]) == (
        known.of("orders"),
        [line["log_level"] for line in logs],
    )


def test_without_a_file_target_ids_are_known_while_the_sink_runs():
    """
    A sink without a folder notices changes during its run.
    """
    known = recalled(None)
    known.learn("orders", "1")

    assert "1" == known.of("orders")
