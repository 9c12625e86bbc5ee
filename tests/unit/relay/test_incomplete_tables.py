"""Tables with rows in the dead letters: how they end, and how they are resumed."""

import shlex

import pytest

from support.copying import replace
from towpath.relay.snapshot.run import SnapshotRun
from towpath.relay.snapshot.stored import (
    INCOMPLETE,
    MAX_UNDELIVERED_KEYS,
    DeliveredRows,
    StoredTable,
    scan_outcome,
)

TABLE = StoredTable("s1", "s.a", 0, "running", 7, last_key=(b"9",))


def ended(count: int) -> StoredTable:
    """Return the table after it ended with this many rows as dead letters."""
    keys = tuple((b"%d" % number,) for number in range(count))
    table = TABLE.with_delivered(DeliveredRows(1, 5, 0, keys))
    state, reason = scan_outcome(table)
    return replace(table, state=state, error=reason)


def test_a_table_is_completed_only_without_dead_letters():
    """
    The reason gives their count, the first keys, and the command that rereads them.
    """
    state, reason = scan_outcome(TABLE)
    incomplete = ended(2)

    assert ("completed", None) == (state, reason)
    assert (INCOMPLETE, 2, True) == (
        incomplete.state,
        incomplete.undelivered,
        incomplete.has_ended,
    )
    assert '2 rows are dead letters (first keys: [["0"], ["1"]])' in incomplete.error
    assert "towpath snapshot resume s1 reads only these again" in incomplete.error


def test_the_rows_of_a_key_request_can_be_read_again_with_a_command():
    """
    Such a request cannot be resumed, so the command lists the first ten keys.
    """
    _, few = scan_outcome(replace(ended(2), asked_until="x"))
    _, many = scan_outcome(replace(ended(11), asked_until="x"))
    key = "--key '[\"{}\"]'"

    assert (
        f"towpath snapshot start s.a {key.format(0)} {key.format(1)} reads only these"
    ) in (few or "")
    assert (
        f"{key.format(8)} {key.format(9)} reads only the first 10 of them again"
    ) in (many or "")


def test_a_listed_key_can_be_pasted_into_a_shell():
    """
    A quote in a key does not end the argument.
    """
    table = replace(ended(1), asked_until="x", undelivered_keys=((b"it's",),))
    _, reason = scan_outcome(table)
    command = (reason or "").partition("delivered, ")[2].partition(" reads")[0]

    assert ["--key", '["it\'s"]'] == shlex.split(command)[-2:]


def test_a_quoted_name_and_an_id_can_be_pasted_into_a_shell():
    """
    The quotes of a name reach the command, and an id with a space is one argument.
    """
    name = '"shop"."My.Orders"'
    request = replace(ended(1), collection=name, asked_until="x")
    named = replace(ended(1), snapshot_id="fill 7")
    reasons = [scan_outcome(each)[1] for each in (request, named)]
    arguments = [
        shlex.split((each or "").partition("delivered, ")[2]) for each in reasons
    ]

    assert [
        ["towpath", "snapshot", "start", name],
        ["towpath", "snapshot", "resume", "fill 7"],
    ] == [each[:4] for each in arguments]


@pytest.mark.parametrize(
    ("count", "keys", "last_key"),
    [(2, ((b"0",), (b"1",)), (b"9",)), (MAX_UNDELIVERED_KEYS + 1, (), None)],
)
def test_an_incomplete_table_resumes_with_its_undelivered_rows(
    count: int, keys: tuple[tuple[bytes, ...], ...], last_key: tuple[bytes, ...] | None
):
    """
    If there are more rows than stored keys, the whole table is read again.
    """
    queued = ended(count).queued_again()

    assert ("queued", 0, (), keys, last_key, None) == (
        queued.state,
        queued.undelivered,
        queued.undelivered_keys,
        queued.pending_keys,
        queued.last_key,
        queued.error,
    )


def test_a_table_that_is_read_again_has_no_progress_but_its_chunks():
    """
    Otherwise it would look nearly done; progress with fewer chunks would not be stored.
    """
    begun = replace(TABLE, rows=900, dropped=50, chunks=3, estimated_rows=1_000)
    keys = tuple((b"%d" % number,) for number in range(MAX_UNDELIVERED_KEYS + 1))
    incomplete = begun.with_delivered(DeliveredRows(1, 40, 10, keys))
    queued = replace(incomplete, state=INCOMPLETE).queued_again()
    running = replace(queued, state="running", rows_per_second=10.0)

    assert (0, 0, 4) == (queued.rows, queued.dropped, queued.chunks)
    assert (0.0, 100.0) == (running.percent, running.eta_s)


def test_all_listed_keys_are_kept_and_read_again():
    """
    A resume reads each of their rows again, however many there are.
    """
    keys = tuple((b"%d" % number,) for number in range(MAX_UNDELIVERED_KEYS + 1))
    listed = replace(TABLE, last_key=None, pending_keys=None, asked_keys=len(keys))
    table = listed.with_delivered(DeliveredRows(3, 0, 0, keys))
    state, reason = scan_outcome(table)
    queued = replace(table, state=state).queued_again()

    assert "resume s1 reads only these again" in (reason or "")
    assert (keys, 0, ()) == (
        queued.pending_keys,
        queued.undelivered,
        queued.undelivered_keys,
    )


def test_listed_keys_that_an_earlier_release_did_not_keep_remain_undelivered():
    """
    A table that lacks some undelivered keys cannot become complete.
    """
    table = replace(
        TABLE,
        state=INCOMPLETE,
        asked_keys=3,
        undelivered=3,
        undelivered_keys=((b"1",), (b"2",)),
    )
    queued = table.queued_again()
    state, _ = scan_outcome(queued)

    assert (((b"1",), (b"2",)), 1, INCOMPLETE) == (
        queued.pending_keys,
        queued.undelivered,
        state,
    )


@pytest.mark.parametrize(
    ("states", "status"),
    [
        (("completed", INCOMPLETE), INCOMPLETE),
        (("failed", INCOMPLETE), "failed"),
        (("stopped", INCOMPLETE), "failed"),
        (("completed", "completed"), "completed"),
    ],
)
def test_a_snapshot_has_the_worst_state_of_its_tables(
    states: tuple[str, ...], status: str
):
    """
    A failed table makes it failed; an incomplete one makes it incomplete.
    """
    tables = [
        replace(TABLE, collection=f"s.{number}", ordinal=number, state=state)
        for number, state in enumerate(states)
    ]

    assert status == SnapshotRun(tables).status()


@pytest.mark.parametrize("asked_until", [None, "x"])
def test_rows_with_unknown_keys_are_read_again_with_the_table(asked_until):
    """
    A resume has no key to read, and a start without keys reads the whole table.
    """
    table = replace(TABLE, asked_keys=3, asked_until=asked_until, undelivered=2)
    _, reason = scan_outcome(table)

    assert (
        "2 rows are dead letters (their keys are unknown); once they can be delivered, "
        "towpath snapshot start s.a reads the whole table again"
    ) == reason


def test_a_resume_reads_only_listed_rows_with_known_keys():
    """
    The others remain undelivered.
    """
    known = ((b"1",), (b"2",))
    table = replace(TABLE, asked_keys=3, undelivered=3, undelivered_keys=known)
    _, reason = scan_outcome(table)

    assert "resume s1 reads those with known keys again" in (reason or "")


def test_one_dead_letter_is_described_in_the_singular():
    """
    A single row is the most common case.
    """
    error = ended(1).error

    assert (
        '1 row is a dead letter (first keys: [["0"]]); once it can be delivered, '
        "towpath snapshot resume s1 reads only this row again"
    ) == error
