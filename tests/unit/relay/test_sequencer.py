"""The sequencer: relation, position and order of every message."""

from pathlib import Path

import pytest

from support.copying import replace
from towpath.relay.encode.relations import NOTHING_KNOWN, bind
from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.messages import (
    Begin,
    Column,
    Commit,
    Insert,
    LogicalMessage,
    Origin,
    Relation,
    RelationShape,
    Truncate,
)
from towpath.relay.wal.pgoutput import parse_message
from towpath.relay.wal.transactions import (
    Change,
    Committed,
    LogicalMessageEvent,
    Sequencer,
    Transaction,
    Truncation,
)
from towpath.schemas.envelope import Operation

RECORDED = Path(__file__).parents[2] / "data" / "pgoutput.hex"
TABLE = Relation(
    oid=7, schema="s", table="t", columns=(Column("id", 23), Column("n", 25)), key=(0,)
)
BEGIN = Begin(final_lsn=160, committed_us=5, xid=9)
COMMIT = Commit(commit_lsn=160, end_lsn=168, committed_us=5)
ROW = Insert(7, (b"1", None))


def begun(offset: int = 0) -> Sequencer:
    """Make a sequencer inside a transaction, with the table bound."""
    sequencer = Sequencer(offset)
    sequencer.bind(TABLE)
    sequencer.feed(BEGIN, 0)
    return sequencer


def test_a_change_has_its_commits_lsn():
    """
    The position's log LSN is the lineage offset plus the commit's LSN.
    """
    change = begun(offset=1000).feed(ROW, 111)

    assert (1160, 0, 111) == (change.transaction.log_lsn, change.ordinal, change.lsn)


def test_ordinals_count_every_message_of_the_transaction():
    """
    Rows, truncates and transactional logical messages take one ordinal each.
    """
    sequencer = begun()
    message = LogicalMessage(is_transactional=True, lsn=120, prefix="p", content=b"c")
    truncate = Truncate((7,), cascades=False, restarts_identity=False)
    steps = [sequencer.feed(m, 0) for m in (ROW, message, truncate, ROW)]

    assert [0, 1, 2, 3] == [step.ordinal for step in steps]


def test_the_ordinals_of_each_transaction_begin_at_zero():
    """
    A second transaction does not continue the ordinals of the first.
    """
    sequencer = begun()
    sequencer.feed(ROW, 0)
    sequencer.feed(COMMIT, 0)
    sequencer.feed(replace(BEGIN, final_lsn=240), 0)

    assert 0 == sequencer.feed(ROW, 0).ordinal


def test_a_message_outside_a_transaction_has_its_own_lsn():
    """
    A non-transactional logical message has its LSN and ordinal -1, and no transaction.
    """
    message = LogicalMessage(is_transactional=False, lsn=120, prefix="p", content=b"c")

    assert LogicalMessageEvent("p", b"c", 1120, -1, None, 120) == Sequencer(1000).feed(
        message, 0
    )


def test_changes_have_the_origin_of_their_transaction():
    """
    Changes after an origin message have its name; those of the next transaction do not.
    """
    sequencer = begun()
    sequencer.feed(Origin(origin_lsn=8, name="elsewhere"), 0)
    here = sequencer.feed(ROW, 0).transaction
    committed = sequencer.feed(COMMIT, 0).transaction
    sequencer.feed(replace(BEGIN, final_lsn=240), 0)
    there = sequencer.feed(ROW, 0).transaction

    assert ("elsewhere", "elsewhere", None) == (
        here.origin,
        committed.origin,
        there.origin,
    )


def test_the_ordinal_after_a_commit_is_the_number_of_messages():
    """
    The commit step has the number of the transaction's messages.
    """
    sequencer = begun()
    for message in (ROW, ROW, COMMIT):
        sequencer.feed(message, 0)

    assert 2 == sequencer.ordinal


def test_a_commit_has_the_lsn_to_confirm():
    """
    The commit's end LSN may be confirmed, not its start.
    """
    sequencer = begun()
    transaction = sequencer.transaction

    assert Committed(transaction, 168) == sequencer.feed(COMMIT, 0)


@pytest.mark.parametrize(
    "messages",
    [
        [ROW],
        [COMMIT],
        [BEGIN, BEGIN],
        [BEGIN, replace(COMMIT, commit_lsn=161)],
        [BEGIN, Insert(8, (b"1", None))],
        [BEGIN, Insert(7, (b"1",))],
        [BEGIN, Truncate((8,), cascades=False, restarts_identity=False)],
        [Truncate((7,), cascades=False, restarts_identity=False)],
        [Origin(8, "elsewhere")],
        [LogicalMessage(is_transactional=True, lsn=8, prefix="p", content=b"")],
    ],
)
def test_a_message_out_of_order_gives_one_named_error(messages: list):
    """
    Changes outside a transaction and nested begins are refused.

    The commit of a different transaction and a change of an unknown relation are
    refused, too.
    """
    sequencer = Sequencer(0)
    sequencer.bind(TABLE)
    for message in messages[:-1]:
        sequencer.feed(message, 0)
    with pytest.raises(MalformedMessageError):
        sequencer.feed(messages[-1], 0)


def test_a_recording_yields_the_same_steps_twice():
    """
    The steps of a recorded stream are the same on every replay.
    """
    assert replay() == replay()


def test_a_recording_yields_each_kind_of_change():
    """
    Creates, updates, deletes and truncates of the recording are returned.
    """
    steps = replay()
    operations = {step.operation for step in steps if isinstance(step, Change)}
    truncations = [step for step in steps if isinstance(step, Truncation)]

    assert ({Operation.CREATE, Operation.UPDATE, Operation.DELETE}, [2, 1]) == (
        operations,
        [len(step.relations) for step in truncations],
    )


def test_positions_of_a_recording_rise_strictly():
    """
    Each position in the stream is above the previous one.
    """
    positions = [
        (step.transaction.log_lsn, step.ordinal)
        for step in replay()
        if isinstance(step, Change | Truncation)
    ]

    assert sorted(set(positions)) == positions


def replay() -> list[object]:
    """Feed the recording, and bind relations when they arrive."""
    sequencer = Sequencer(0)
    steps: list[object] = []
    for line in RECORDED.read_text(encoding="ascii").splitlines():
        if line.startswith("#"):
            continue
        step = sequencer.feed(parse_message(bytes.fromhex(line)), 0)
        if isinstance(step, RelationShape):
            sequencer.bind(bind(step, NOTHING_KNOWN))
        if not isinstance(step, Transaction):
            steps.append(step)
    return steps
