"""The decoder, tested with messages that a real server sent."""

from pathlib import Path

import pytest

from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.messages import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    RelationShape,
    Truncate,
    TypeName,
    Update,
)
from towpath.relay.wal.pgoutput import parse_message

RECORDED = Path(__file__).parents[2] / "data" / "pgoutput.hex"


def recorded() -> list[bytes]:
    """Read the recorded messages, in stream order."""
    lines = RECORDED.read_text(encoding="ascii").splitlines()
    return [bytes.fromhex(line) for line in lines if not line.startswith("#")]


def all_of(kind: type) -> list:
    """Decode the recorded messages of one kind."""
    messages = [parse_message(data) for data in recorded()]
    return [message for message in messages if isinstance(message, kind)]


def test_every_kind_of_message_can_be_decoded():
    """
    The recording contains every kind of message in the protocol's first version.
    """
    kinds = {type(parse_message(data)) for data in recorded()}

    assert {
        Begin,
        Commit,
        Origin,
        RelationShape,
        TypeName,
        Insert,
        Update,
        Delete,
        Truncate,
        LogicalMessage,
    } == kinds


def test_a_begin_already_has_the_lsn_of_its_commit():
    """
    The commit's LSN and time are in the begin message of the same transaction.
    """
    begun = [(m.final_lsn, m.committed_us) for m in all_of(Begin)]
    ended = [(m.commit_lsn, m.committed_us) for m in all_of(Commit)]

    assert ended == begun


def test_times_count_from_1970():
    """
    Times are microseconds since 1970, not since Postgres's epoch.
    """
    years = {m.committed_us // 31_557_600_000_000 + 1970 for m in all_of(Begin)}

    assert {2026} == years


def test_null_differs_from_an_empty_value():
    """
    A row's values are the text forms as received, and NULL is None.
    """
    row = all_of(Insert)[0].new

    assert (b"1", b"2", "Zoë".encode(), None, None, b"2026-01-02 03:04:05.6+00") == row


def test_an_unchanged_toast_value_differs_from_null():
    """
    An unchanged TOASTed value is UNCHANGED.
    """
    update = all_of(Update)[1]

    assert (UNCHANGED, None, False) == (update.new[4], update.old, update.is_full)


def test_a_change_of_a_key_includes_the_old_key():
    """
    An update of the key includes the old key's columns, and only those.
    """
    update = all_of(Update)[2]

    assert (b"1", b"2", None, None, None, None) == update.old


def test_a_full_replica_identity_includes_the_whole_old_row():
    """
    With REPLICA IDENTITY FULL the old row is complete and marked as such.
    """
    update = all_of(Update)[3]

    assert ((b"1", b"a"), True) == (update.old, update.is_full)


def test_a_truncate_lists_all_its_tables():
    """
    One message covers all tables of a TRUNCATE.
    """
    truncate = all_of(Truncate)[0]

    assert (2, True, True) == (
        len(truncate.relation_oids),
        truncate.cascades,
        truncate.restarts_identity,
    )


def test_logical_messages_have_a_transactional_flag():
    """
    Prefix, content and flag of a logical message are read, with any bytes.
    """
    messages = [
        (m.is_transactional, m.prefix, m.content) for m in all_of(LogicalMessage)
    ]

    assert [
        (True, "towpath.test", "in ✓".encode()),
        (False, "towpath.watermark", b'{"token": 1}'),
        (True, "préfixe ☃", b""),
        (False, "bytes", b"\0\xff\xfe\0"),
    ] == messages[:4]


def test_a_replicated_transaction_names_its_origin():
    """
    A transaction that was itself replicated has the origin's name.
    """
    assert [Origin(0xAABBCC, "rec_origin")] == all_of(Origin)


def test_names_and_values_in_any_script_are_read():
    """
    Schema, table, column and key are UTF-8 and may have quotes and spaces.
    """
    shape = next(m for m in all_of(RelationShape) if m.table.startswith("Zoë"))
    rows = [m for m in all_of(Update) if m.relation_oid == shape.oid]

    assert (
        'Zoë ✓ "q" таблица',
        ["наименование", "a b"],
        ("𝄞".encode(), b"1"),
        ("значение ☃".encode(), None),
    ) == (
        shape.table,
        [column.name for column in shape.columns],
        rows[0].new,
        rows[0].old,
    )


def test_each_replica_identity_has_its_own_old_row():
    """
    An index yields its columns, ``nothing`` yields none, ``full`` yields all.
    """
    shapes = {m.oid: m for m in all_of(RelationShape)}
    olds = {
        shapes[m.relation_oid].identity: m.old
        for m in all_of(Delete)
        if m.relation_oid in shapes
    }

    assert (
        {"d", "n", "f", "i"},
        (None, b"c", None),
        (b"2", None),
    ) == ({m.identity for m in shapes.values()}, olds["i"], olds["f"])


def test_a_full_identity_has_the_toast_value_that_an_update_omits():
    """
    The unchanged TOASTed value is missing in the new row but complete in the old one.
    """
    update = next(m for m in all_of(Update) if m.is_full and UNCHANGED in m.new)

    assert (b"11", UNCHANGED, 2500) == (*update.new, len(update.old[1]))


def test_a_table_without_columns_has_empty_rows():
    """
    A table without columns is valid.
    """
    shape = next(m for m in all_of(RelationShape) if not m.columns)
    rows = [m.new for m in all_of(Insert) if m.relation_oid == shape.oid]

    assert [()] == rows


def test_rolled_back_rows_are_not_in_the_stream():
    """
    Rows between a savepoint and its rollback are not sent.
    """
    values = {value for m in all_of(Insert) for value in m.new}

    assert (True, False) == (b"kept too" in values, b"rolled back" in values)


def test_a_relation_has_columns_types_and_identity():
    """
    A relation message has everything that is needed to make a route.
    """
    shape = all_of(RelationShape)[0]

    assert ("rec", "item", "d", ["a", "id", "name", "mood", "big", "at"]) == (
        shape.schema,
        shape.table,
        shape.identity,
        [column.name for column in shape.columns],
    )


def test_the_error_for_a_commit_names_its_flags():
    """
    The length is right, so the error must not blame it.
    """
    with pytest.raises(MalformedMessageError, match="unknown flags of a commit"):
        parse_message(b"C\1" + bytes(24))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"?",
        b"I\0\0\0\1X\0\0",
        b"I\0\0\0\1N\0\1z",
        b"D\0\0\0\1N\0\0",
        b"C\1" + bytes(24),
        b"T\xff\xff\xff\xff\0",
        b"M\2" + bytes(8) + b"p\0" + bytes(4),
        b"R\0\0\0\1s\0t\0x\0\0",
    ],
)
def test_an_unknown_tag_gives_one_named_error(data: bytes):
    """
    Unknown tags, forms and flags raise MalformedMessageError.
    """
    with pytest.raises(MalformedMessageError):
        parse_message(data)
