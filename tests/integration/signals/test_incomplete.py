"""A snapshot completes only if every row was delivered; otherwise it is incomplete."""

from typing import Any

import pytest

from towpath.cli import app as root
from towpath.deploy import status
from towpath.schemas.clock import SystemClock
from towpath.settings import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

# Random hexadecimal text, stored out of line, and larger than a record may be.
LARGE = "(select string_agg(md5(g::text), '') from generate_series(1, 60000) g)"


def make_large(rig: Any, key: int) -> None:
    """Make a row larger than its topic accepts."""
    rig.execute(f"update s.a set note = {LARGE} where id = {key}")  # noqa: S608 - ours


def states(rig: Any, signal_id: str) -> tuple[Any, ...]:
    """Return the stored state and undelivered rows of a snapshot's only table."""
    [row] = rig.execute(
        "select state, undelivered, undelivered_keys from towpath.snapshot"
        " where snapshot_id = %s",
        signal_id,
    )
    return tuple(row)


def wrong(rig: Any) -> list[str]:
    """Return the problems with snapshots that ``towpath status`` reports."""
    found = status.overview((), load(rig.config, {}), SystemClock())
    return [sentence for sentence in found["wrong"] if sentence.startswith("snapshot")]


def test_a_row_that_becomes_a_dead_letter_leaves_its_snapshot_incomplete(rig, capsys):
    """
    Snapshots of every kind become incomplete; when resumed, they read only this row.
    """
    make_large(rig, 7)
    rig.start()
    rig.wait_for(lambda: bool(rig.logged("relay streaming")))
    command = ["snapshot", "start", "s.a", "--wait", "--id", "s1"]
    command += ["--answer-within", "60"]
    code = root.run([*command, "--config", str(rig.config)])
    printed = capsys.readouterr().err
    rig.signal("s2", data_collections=["s.a"], type="blocking")
    rig.signal("s3", data_collections=["s.a"], keys=[[7], [8]])
    answers = {
        each: rig.wait_for_answer(each, "incomplete") for each in ("s1", "s2", "s3")
    }
    notified = rig.wait_for_notification("s1", "INCOMPLETE")
    found_wrong = wrong(rig)
    rig.execute("update s.a set note = 'short' where id = 7")
    for each in ("s1", "s2", "s3"):
        rig.signal(f"again-{each}", "resume-snapshot", snapshot_id=each)
        rig.wait_for_answer(each)
    reads = rig.reads()

    assert 1 == code
    assert all(part in printed for part in ("1 row is", '["7"]', "snapshot resume s1"))
    assert [999, 999, 1] == [answers[each]["rows"] for each in sorted(answers)]
    assert {1} == {each["undelivered"] for each in answers.values()}
    assert "incomplete" == notified["additional_data"]["status"]
    assert any("s1" in sentence for sentence in found_wrong)
    assert [] == wrong(rig)
    assert [("completed", 0, None)] * 3 == [states(rig, each) for each in answers]
    assert {("s1", 7): 1, ("s2", 7): 1, ("s3", 7): 1} == {
        key: count for key, count in reads.items() if key[1] == 7
    }
    assert 1 == reads["s1", 8]


def test_a_streamed_dead_letter_does_not_count_as_the_row(rig):
    """
    A row that becomes too large while its table is read counts as undelivered.
    """
    rig.start()
    rig.signal("s1", data_collections=["s.a"], max_rows_per_second=300)
    rig.wait_for_rows("s1", 100)
    make_large(rig, 900)
    detail = rig.wait_for_answer("s1", "incomplete")

    assert 1 == detail["undelivered"]
    assert [["900"]] == states(rig, "s1")[2]
    assert "snapshot resume s1" in detail["tables"]["s.a"]["reason"]
