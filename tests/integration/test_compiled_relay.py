"""
The compiled relay behaves like the Python code from which it was compiled.

The modules are compiled the way setup compiles them, once for each version of the
source. If that is impossible, setup prints one line that says so, and the tests check
that line instead.
"""

import struct
from collections.abc import Callable, Iterator

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from support.compiled_relay import (
    HOME,
    Chosen,
    CompiledRelay,
    Reads,
    compile_relay,
    compiled_relay,
    copied,
    outcome,
)
from support.relay_bench import (
    START,
    Column,
    frames,
    inserted,
    keepalive,
    relation,
    transaction,
)
from support.relay_cost import TABLE, row, shape
from support.table_rows import COLUMNS, RELATION, ROWS, SETTINGS
from towpath.relay.commands import compiled
from towpath.relay.wal.messages import UNCHANGED, Row

# Hundreds of examples, each in two processes.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

ITEMS = 4712
SHAPES = (
    shape(),
    relation(
        ITEMS,
        b"rec",
        b"item",
        [Column(b"id", 20, is_key=True), Column(b"name", 25), Column(b"at", 1184)],
    ),
)
FALLBACK = "the relay runs as Python, with more processor time per event: "


@pytest.fixture(scope="module")
def compiled_process() -> Iterator[CompiledRelay | None]:
    """Provide the process with the compiled modules; None without a compiler."""
    printed = compile_relay()
    if not compiled.folder(HOME).is_dir():
        assert printed.startswith(FALLBACK), printed
        assert len(printed.splitlines()) == 1
        yield None
        return
    with compiled_relay() as process:
        yield process


@pytest.fixture(scope="module")
def compiled_outcome(compiled_process) -> Callable[..., list[object]]:
    """Provide ``outcome`` of the compiled modules, or of Python without a compiler."""
    return compiled_process.outcome if compiled_process else outcome


@pytest.fixture(scope="module")
def compiled_copied(compiled_process) -> Callable[..., list[object]]:
    """Provide ``copied`` of the compiled modules, or of Python without a compiler."""
    return compiled_process.copied if compiled_process else copied


def cells(values: Row) -> bytes:
    """Make the row of an update or a delete."""
    return inserted(0, values)[6:]


VALUES = st.one_of(
    st.none(), st.text(max_size=9).map(str.encode), st.sampled_from([b"7", b"{}"])
)
TIMES = st.sampled_from(
    [b"2026-01-02 03:04:05.678901+00", b"infinity", b"0044-03-15 12:00:00+00 BC", None]
)
ITEM_ROWS = st.tuples(st.sampled_from([b"1", b"2"]), VALUES, TIMES)
IDS = st.integers(0, 9).map(b"018f0000-0000-7000-8000-00000000000%d".__mod__)
NAMES = st.sampled_from([b"order", b"7", "käse".encode()])
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EVENT_ROWS = st.tuples(
    *(IDS, NAMES, NAMES, NAMES, st.sampled_from([b"{}", b'{"a": [1.50]}', None])),
    st.sampled_from([None, b'{"tenant": "a"}', b"{}", b"[]", b'{"id": "b"}']),
    st.sampled_from([None, TRACE, b"", b"x"]),
    TIMES,
)
# Any value in any column: most of these rows are not events.
OUTBOX_ROWS = st.tuples(*[VALUES] * 7, TIMES)
WITH_OID = struct.Struct(">I").pack


@st.composite
def updated(draw) -> bytes:
    """Make the update of an item, with or without the old key or the old row."""
    before = draw(st.sampled_from([b"", b"K", b"O"]))
    old = before + cells(draw(ITEM_ROWS)) if before else b""
    return b"U" + WITH_OID(ITEMS) + old + b"N" + cells(draw(ITEM_ROWS))


@st.composite
def logical_message(draw) -> bytes:
    """Make a logical message, inside or outside the transaction."""
    prefix = draw(st.sampled_from([b"towpath.outbox", b"towpath.table", b"other"]))
    content = draw(st.binary(max_size=20))
    head = b"M" + bytes([draw(st.integers(0, 1))]) + bytes(8) + prefix + b"\0"
    return head + WITH_OID(len(content)) + content


MESSAGES = st.one_of(
    st.integers(0, 999).map(row),
    st.builds(inserted, st.just(TABLE), st.one_of(EVENT_ROWS, OUTBOX_ROWS)),
    st.builds(inserted, st.just(ITEMS), ITEM_ROWS),
    updated(),
    st.builds(
        lambda kind, old: b"D" + WITH_OID(ITEMS) + kind + cells(old),
        st.sampled_from([b"K", b"O"]),
        ITEM_ROWS,
    ),
    st.builds(lambda oid: b"T" + WITH_OID(1) + b"\0" + WITH_OID(oid), st.just(ITEMS)),
    st.sampled_from(SHAPES),
    logical_message(),
)


@st.composite
def histories(draw) -> Reads:
    """Make a stream of transactions, one per read; the first begins with the shapes."""
    contents = draw(st.lists(st.lists(MESSAGES, max_size=4), max_size=5))
    return [
        transaction(START + 80 * number, *SHAPES[: 2 * (number == 1)], *messages)
        for number, messages in enumerate([[], *contents], 1)
    ]


@st.composite
def damaged(draw) -> Reads:
    """Damage a history: cut, alter, drop or repeat one frame, or insert garbage."""
    reads = [list(each) for each in draw(histories())]
    hit = draw(st.sampled_from(reads))
    at = draw(st.integers(0, len(hit) - 1))
    frame = hit[at]
    byte = draw(st.integers(0, len(frame) - 1))
    value = bytes([draw(st.integers(0, 255))])
    hit[at : at + 1] = draw(
        st.sampled_from(
            [
                [frame[:byte]],
                [frame[:byte] + value + frame[byte + 1 :]],
                [frame + value],
                [],
                [frame, frame],
                [keepalive(), frame],
                [b"w" + bytes(24) + value * 9, frame],
                [value, frame],
            ]
        )
    )
    return reads


@given(reads=histories())
def test_compiled_modules_publish_the_same_records(compiled_outcome, reads: Reads):
    """
    Any history of rows and messages gives the same records, counts and confirmed LSN.
    """
    assert outcome(reads) == compiled_outcome(reads)


@given(reads=damaged())
def test_compiled_modules_refuse_the_same_frames(compiled_outcome, reads: Reads):
    """
    A damaged frame gives the same error, after the same records.
    """
    assert outcome(reads) == compiled_outcome(reads)


LINES = RELATION.oid
VALID_ROWS = ROWS.map(
    lambda rows: tuple(x if x is None else x.encode() for x in rows[0])
)


def with_any_bytes(values: Row, at: int, found: bytes | None) -> Row:
    """Replace one value of a row."""
    return (*values[:at], found, *values[at + 1 :])


# Mostly values as Postgres writes them, sometimes arbitrary bytes in one column.
LINE_ROWS = VALID_ROWS | st.builds(
    with_any_bytes,
    VALID_ROWS,
    st.integers(0, len(COLUMNS) - 1),
    VALUES | st.binary(max_size=6),
)


def lines_shape(identity: bytes) -> bytes:
    """Make the relation message of the table with every kind of type."""
    columns = [
        Column(b"c %d" % at, oid, identity == b"f" or at == 0, typmod)
        for at, (oid, typmod, _) in enumerate(COLUMNS)
    ]
    return relation(LINES, b"shop", b"order-lines", columns, identity)


@st.composite
def partly_unchanged(draw) -> Row:
    """Make the new row of an update that omits some TOASTed values."""
    omitted = draw(st.sets(st.integers(1, len(COLUMNS) - 1), max_size=5))
    values = draw(LINE_ROWS)
    return tuple(UNCHANGED if at in omitted else x for at, x in enumerate(values))


@st.composite
def line_change(draw, identity: bytes) -> bytes:
    """Make a change to the table, with the old row that its replica identity sends."""
    kind = draw(st.sampled_from(["insert", "update", "delete", "truncate"]))
    if kind == "insert":
        return inserted(LINES, draw(LINE_ROWS))
    if kind == "truncate":
        return b"T" + WITH_OID(1) + b"\0" + WITH_OID(LINES)
    old = draw(LINE_ROWS)
    if identity == b"d":
        old = (old[0], *[None] * (len(COLUMNS) - 1))
    form = b"O" if identity == b"f" else b"K"
    if kind == "delete":
        return b"D" + WITH_OID(LINES) + form + cells(old)
    before = draw(st.sampled_from([b"", form + cells(old)]))
    return b"U" + WITH_OID(LINES) + before + b"N" + cells(draw(partly_unchanged()))


@st.composite
def table_histories(draw) -> Reads:
    """Make a stream of transactions on the table with every kind of type."""
    identity = draw(st.sampled_from([b"d", b"f"]))
    contents = draw(st.lists(st.lists(line_change(identity), max_size=3), max_size=3))
    return [
        transaction(START + 80 * number, lines_shape(identity), *messages)
        for number, messages in enumerate(contents, 1)
    ]


# A failing example is reported as it was found: shrinking it would take minutes.
@settings(phases=(Phase.explicit, Phase.generate))
@given(reads=table_histories(), chosen=SETTINGS)
def test_compiled_modules_publish_the_same_rows_of_tables(
    compiled_outcome, reads: Reads, chosen: Chosen
):
    """
    Any types, NULLs, omitted values, keys or identities give the same records or error.
    """
    assert outcome(reads, chosen) == compiled_outcome(reads, chosen)


def copy_line(row: Row) -> bytes:
    """Write a row as COPY does."""
    escaped = (
        rb"\N"
        if value is None
        else value.replace(b"\\", rb"\\").replace(b"\t", rb"\t").replace(b"\n", rb"\n")
        for value in row
    )
    return b"\t".join(escaped) + b"\n"


@given(
    lines=st.lists(
        st.one_of(
            LINE_ROWS.map(copy_line),
            st.lists(
                st.sampled_from(
                    [rb"\N", rb"\x4", rb"\101", rb"\377", b"\\", b"\t", b"7", b"a"]
                ),
                max_size=2 * len(COLUMNS),
            ).map(lambda parts: b"".join(parts) + b"\n"),
        ),
        min_size=1,
        max_size=4,
    ),
    chosen=SETTINGS,
)
def test_compiled_modules_write_the_same_records_from_copied_lines(
    compiled_copied, lines: list[bytes], chosen: Chosen
):
    """
    Any COPY lines, even malformed ones, give the same rows and records, or error.
    """
    assert copied(lines, chosen) == compiled_copied(lines, chosen)


def test_compiled_modules_read_the_recorded_messages_of_a_server(compiled_outcome):
    """
    Each prefix of the messages recorded from a server gives the same records.
    """
    recorded = frames()
    reads = [[recorded[:end]] for end in range(len(recorded) + 1)]
    expected = [outcome(each) for each in reads]

    assert expected == [compiled_outcome(each) for each in reads]

    assert len(expected[-1][0]) > 50


def test_a_missing_compiler_is_reported_in_one_line(tmp_path):
    """
    Setup continues without compiled modules, and names the missing compiler.
    """
    printed = compile_relay(tmp_path / "home", CC="no-such-compiler")

    assert printed == (
        f"{FALLBACK}there is no C compiler no-such-compiler"
        " (Debian: apt-get install gcc)\n"
    )

    assert not (tmp_path / "home").exists()


def test_nothing_is_compiled_if_compilation_is_turned_off(tmp_path):
    """
    If the variable is off, setup neither compiles nor prints anything.
    """
    printed = compile_relay(tmp_path / "home", **{compiled.VARIABLE: "off"})

    assert printed == ""
    assert not (tmp_path / "home").exists()
