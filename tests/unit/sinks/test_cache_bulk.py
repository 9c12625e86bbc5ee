"""Rows that the cache writes as columns: selection, calls and counts."""

import orjson
import pyarrow as pa
import pytest
import redis

from support.copying import replace
from support.guard_model import PREFIX, GuardModel, bulk_strings
from support.record_table import cache_routes, table_of
from towpath.sinks.change import Origin, Record
from towpath.sinks.changes import columns as reading
from towpath.sinks.changes.columns import plain_columns, read_rows
from towpath.sinks.changes.decode import decode
from towpath.sinks.errors import EvictingCacheError, TargetUnavailableError
from towpath.sinks.fold import newest_per_key
from towpath.sinks.targets.cache import schema, write
from towpath.sinks.targets.cache.client import ServerState
from towpath.sinks.targets.cache.pipeline import BYTES_IN_FLIGHT
from towpath.sinks.targets.cache.sink import CacheSink

TOPIC, ROUTE = "towpath.shop.items", "shop.items"
ROUTES = cache_routes(TOPIC, ROUTE)
ROW = {
    "id": 1,
    "version": 0,
    "amount": "12.25",
    "state": "new",
    "changed_at": "2026-11-22T12:00:00.123456Z",
    "note": "x" * 140,
}
SOURCE = {"ts_ms": 1, "lsn": 12345678, "txId": None, "sequence": '["1","2"]'}


def envelope(row, operation="r", **source):
    """Encode an envelope as the relay does."""
    head = {"before": None, "after": row, "source": SOURCE | source}
    return orjson.dumps(head | {"op": operation, "ts_ms": 1, "transaction": None})


def record(number, value=None, *, key=None, position=None, **row):
    """Make a record for a row, with its own key and position."""
    headers = {"position": position or b"%016x.0000000000" % (8 * number)}
    whole = envelope({**ROW, "id": number, **row})
    named = b'{"id":%d}' % number if key is None else key
    return Record(Origin(TOPIC, 0, number), named, value or whole, headers)


def columns_of(*given):
    """Return the records as columns; all of them are plain."""
    (columns,) = plain_columns(table_of(given), ROUTES)
    assert len(given) == len(columns.indices)
    return columns


def changes_of(*given):
    """Return the changes that the record path makes from the records."""
    return newest_per_key(decode(given, ROUTES).changes).changes


def both_results(*given, floor=None):
    """Write records as columns, and one by one; return both results."""
    by_column, one_by_one = GuardModel(), GuardModel()
    taken = write.encode(columns_of(*given), floor)
    assert taken is not None
    by_column.take(taken, ROUTE)
    one_by_one.write(changes_of(*given))
    return one_by_one.rows, by_column.rows


def taken_indices(*given):
    """Return the indices of records taken as columns; None if the slice is refused."""
    taken = write.encode(columns_of(*given))
    return None if taken is None else taken.indices.to_pylist()


@pytest.mark.parametrize(
    "rows",
    [
        [{}],
        [{"amount": None}, {"note": None}, {}],
        [{"note": 'a "quoted"\\ text'}, {"note": "two\nlines\x00\x1f\x7fé😀"}, {}],
        [{"note": ""}, {'a "b"\\': "x"}, {"": "y"}],
        [{"paid": True}, {"paid": False}, {"paid": None}],
        [{"size": 2**63 - 1}, {"size": -(2**63)}, {"size": -0}],
        [{"size": 2**63}, {"size": 1}],
        [{"ratio": 0.1}, {"ratio": 1}, {"ratio": 1e300}, {"ratio": 5e-324}, {}],
        [{"ratio": 1.0}, {"ratio": -0.0}, {"ratio": 1e16}],
        [{"lines": [1, 2.50]}, {"lines": []}, {"lines": None}],
        [{"lines": {"b": '"'}}, {"lines": {"c": 1.50}}],
        [{"gone": None}],
    ],
)
def test_column_values_are_written_as_on_the_record_path(rows):
    """
    Text, numbers, nulls and lists are equal, even if Arrow cannot represent them.
    """
    records = [record(n, **row) for n, row in enumerate(rows)]
    expected, found = both_results(*records)

    assert expected == found


def test_late_instants_remain_text():
    """
    A column that is null in all sampled rows is not parsed as an instant.
    """
    late = [None] * 500 + ["2026-11-22T12:00:00Z"] + [None] * 499
    expected, found = both_results(
        *[record(n, gone_at=at) for n, at in enumerate(late)]
    )

    assert expected == found


def test_numbers_keep_their_spelling():
    """
    A number that JSON can spell in several ways is written as on the record path.
    """
    texts = [
        b"1.0",
        b"1",
        b"1e3",
        b"1E+2",
        b"-0",
        b"0.10",
        b"1e-7",
        b"123456789012345e9",
    ]
    records = [
        record(n, envelope({"id": n, "ratio": "?"}).replace(b'"?"', text))
        for n, text in enumerate(texts)
    ]
    expected, found = both_results(*records)

    assert expected == found


@pytest.mark.parametrize(
    "keys",
    [
        [b'{"id":0}', b'{"id":-7}', b'{"id":9999999999999999999}'],
        [b'{"k":""}', b'{"k":":"}', b'{"k":"%"}', b'{"k":"%3A"}', b'{"k":"\xc3\xa9"}'],
        [b'{"a b":"x:y","c.(\\"":1}', b'{"a b":"x","c.(\\"":2}'],
        [b'{"k":true}', b'{"k":false}'],
    ],
)
def test_column_keys_are_written_as_on_the_record_path(keys):
    """
    For all key types, each row has a name of its own.
    """
    expected, found = both_results(*[record(n, key=key) for n, key in enumerate(keys)])

    assert (expected, len(keys)) == (found, len(found))


@pytest.mark.parametrize(
    "key",
    [
        b'{"id": 2}',
        b'{"id":"2"}',
        b'{"id":2.0}',
        b'{"id":-0}',
        b'{"id":02}',
        b'{"id":null}',
        b'{"id":-9999999999999999999}',
        b'{"id":18446744073709551616}',
        b'{"id":2,"id":3}',
        b'{"no":2}',
        b'{"id":2,"no":3}',
        b'{"id":2}\n',
        b"2",
        b"",
    ],
)
def test_a_key_of_a_different_form_is_left_to_the_record_path(key):
    """
    The records around it are taken; the record path encodes this key.
    """
    assert [0, 2] == taken_indices(record(1), record(2, key=key), record(3))


@pytest.mark.parametrize(
    "key", [b"{}", b"[1]", b'{"id":1.5}', b'{"id":null}', b'{"id":[1]}', b"{", b"\xff"]
)
def test_a_slice_whose_first_key_is_invalid_is_not_taken(key):
    """
    There is no key form that the others could share.
    """
    assert taken_indices(record(1, key=key), record(2)) is None


def test_a_text_key_with_an_escape_is_left_to_the_record_path():
    """
    Two spellings of one string become the same key only after parsing.
    """
    records = [
        record(n, key=orjson.dumps({"k": k})) for n, k in enumerate(["a", "\n", "b"])
    ]

    assert [0, 2] == taken_indices(*records)


DEEP = b"[" * 800 + b"]" * 800


@pytest.mark.parametrize(
    "value",
    [
        b"{",
        b"[]",
        b'{"op":"r"} ',
        b'{,"source":{"lsn":1},"op":"d"}',
        envelope(ROW) + envelope(ROW),
        envelope(ROW)[:-1],
        envelope(ROW).replace(b"xxx", b"\xff"),
        envelope(ROW).replace(b"xxx", b"\\ud800"),
        envelope(ROW).replace(b"xxx", b"\n"),
        envelope(ROW).replace(b"xxx", b"\0"),
        envelope(ROW).replace(b'"ts_ms":1', b'"ts_ms":"\xff"'),
        envelope(ROW).replace(b'"before":null', b'"before":{"x":NaN}'),
        envelope(ROW).replace(b'"txId":null', b'"txId":[{"x":[Infinity]}]'),
        envelope(ROW).replace(b'"txId":null', b'"txId":1e999'),
        envelope(ROW).replace(b'"before":null', b'"before":%b' % DEEP),
        envelope(ROW).replace(b'"txId":null', b'"txId":%b' % DEEP),
        envelope(ROW).replace(b'"transaction"', b'"after"'),
        envelope(ROW).replace(b'"transaction"', b'"op"'),
        envelope({**ROW, "_position": "0"}),
        envelope({**ROW, "state": 1}),
        envelope({**ROW, "lines": [1, "a"]}),
        envelope({}),
        envelope({"id": None}),
    ],
)
def test_a_slice_with_a_questionable_value_is_not_taken(value):
    """
    The record path finds the record whose value cannot be read.
    """
    records = [record(n) for n in range(100)]
    # This value is not among the sampled ones.
    records[1] = record(1, value)

    assert taken_indices(*records) is None


def test_records_that_are_json_only_together_are_not_taken():
    """
    A value must not continue in the next one, even if both together are valid JSON.
    """
    begun = b'{"op":"r","after":{"id":1},"x":[{}'
    records = [record(n) for n in range(100)]
    for number, value in enumerate([begun, b",{}]}", envelope(ROW) * 2], start=1):
        records[4 * number + 1] = record(number, value)

    assert taken_indices(*records) is None


def test_an_envelope_with_two_objects_is_not_taken():
    """
    A second object would be attributed to the wrong records.
    """
    records = [record(n, envelope(ROW, lsn=n)) for n in range(100)]
    records[1] = record(1, envelope(ROW) + b'{"op":"d"}')

    assert taken_indices(*records) is None


def test_brackets_in_strings_do_not_nest():
    """
    A string may contain any number of brackets, or even JSON.
    """
    records = [record(1, note='{"[' * 2000), record(2, note=DEEP.decode())]
    expected, found = both_results(*records)

    assert expected == found


def test_deep_nesting_is_refused():
    """
    Arrow would run out of stack where the record path reports an unreadable record.
    """
    deep = b"[" * 100_000 + b"]" * 100_000
    value = envelope(ROW).replace(b'"before":null', b'"before":%b' % deep)

    with pytest.raises(pa.ArrowInvalid, match="too deeply"):
        read_rows(columns_of(record(1), record(2, value)), pa.struct([]))


@pytest.mark.parametrize(
    "form",
    [
        '{"op":"u","after":%s}',
        '{"op": "u", "after": %s, "source": {"lsn": 1}}',
        '{"op":"u","after":%s,"source":{"lsn":1}}',
        '{"after":%s,"source":{"lsn":1,"source":{"after":1}},"op":"u"}',
    ],
)
def test_envelopes_of_different_forms_are_read(form):
    """
    Writers choose where the operation is, and which fields the source has.
    """
    row = orjson.dumps({**ROW, "doc": {"source": {"a": 1}}}).decode()
    expected, found = both_results(record(1), record(2, (form % row).encode()))

    assert expected == found


def test_a_record_that_is_not_a_whole_row_is_left_to_the_record_path():
    """
    A delete excludes only itself; an ambiguous record excludes its whole key.
    """
    records = [
        record(1),
        record(2, envelope(None, "d")),
        record(3, envelope(ROW, "z"), key=b'{"id":1}'),
        record(4),
    ]

    assert [3] == taken_indices(*records)


def test_each_row_is_read_with_its_own_operation():
    """
    Equal ends of envelopes are parsed once, and the result applies to each row.
    """
    records = [record(n, envelope(ROW, "crud"[n % 4], lsn=n % 3)) for n in range(24)]

    assert [n for n in range(24) if n % 4 != 3] == taken_indices(*records)


def test_the_newest_row_of_a_key_is_written_once():
    """
    Among equal positions, the first wins, as in the fold; older rows count as applied.
    """
    at = b"%016x.0000000000"
    records = [
        record(n, key=b'{"id":%d}' % key, position=at % position, note=str(n))
        for n, (key, position) in enumerate([(1, 7), (2, 3), (1, 9), (2, 3), (1, 9)])
    ]
    taken = write.encode(columns_of(*records))
    guard = GuardModel()
    guard.take(taken, ROUTE)
    expected, found = both_results(*records)

    assert (5, [2, 0]) == (len(taken.indices), guard.counts)
    assert (expected, ["1", "2"]) == (
        found,
        [row["note"] for _, row in found.values()],
    )


def test_rows_below_the_floor_are_counted_and_not_written():
    """
    A row at the floor is written; for each key, only the newest row counts.
    """
    records = [record(n) for n in (1, 2, 3)]
    records += [record(4, key=b'{"id":3}'), record(1, key=b'{"id":2}')]
    taken = write.encode(columns_of(*records), f"{8 * 2:016x}.0000000000")

    assert (5, ["2", "3"], 1) == (
        len(taken.indices),
        taken.keys.to_pylist(),
        taken.below_floor,
    )
    assert write.encode(columns_of(*records), f"{8 * 9:016x}.0000000000") is None


def test_rows_in_several_blocks_are_read_like_those_in_one(monkeypatch):
    """
    Types inferred from one block match those of the whole: numbers, nulls, instants.
    """
    found = [None, 1, None, 2.5, 2**63]
    records = [record(n, size=found[n // 9], at=None) for n in range(45)]
    records += [record(n, size=7, at="2026-11-22") for n in range(45, 50)]
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 1024)
    expected, found = both_results(*records)

    assert expected == found


@pytest.mark.parametrize(
    ("count", "width", "expected"),
    [
        (1, 1, [1]),
        (100, 1, [100]),
        (201, 1, [100, 100, 1]),
        (3, schema.BYTES_PER_CALL, [1, 1, 1]),
        (4, schema.BYTES_PER_CALL // 3, [2, 2]),
    ],
)
def test_column_calls_are_bounded_like_those_of_single_rows(count, width, expected):
    """
    No call has too many rows or bytes, and no row is left out.
    """
    records = [
        record(n, envelope({"id": n, "note": "x" * width})) for n in range(count)
    ]
    cut = list(write.calls(write.encode(columns_of(*records)), "p:items:"))
    names = [name for call in cut for name in bulk_strings(call.keys)]

    assert (expected, [f"p:items:{n}" for n in range(count)]) == (
        [call.row_count for call in cut],
        names,
    )
    assert expected == [len(orjson.loads(call.columns)[-1]) for call in cut]


class Server:
    """One server without a network: it executes calls, keeps rows, answers in order."""

    def __init__(self):
        self.guard = GuardModel()
        self.answers = []
        self.in_flight = []
        self.max_bytes_in_flight = 0
        self.fails = False
        self.connection_pool = self
        self.is_cluster = False
        self.all = (self,)
        self.floors = {}
        self.deleted = []

    def function_load(self, _source, *, replace):
        """Load the guard."""
        assert replace

    def append_each_write(self):
        """Report that the append-only file is written once per second."""
        return False

    def states(self):
        """Report nothing about the servers."""
        return ()

    def hgetall(self, _name):
        """Return the floors."""
        return self.floors

    def discover(self):
        """Report no other server."""

    def client_of(self, _):
        """Own every key."""
        return self

    def delete(self, name):
        """Record the key."""
        self.deleted.append(name.encode(errors="surrogateescape"))

    def get_connection(self):
        """Return the one connection."""
        return self

    def release(self, _):
        """Take the connection back."""

    def disconnect(self):
        """Drop pending calls."""
        self.answers.clear()
        self.in_flight.clear()

    def send_packed_command(self, parts, *, check_health):
        """Execute calls as they arrive."""
        assert not check_health
        (packed,) = parts
        while packed:
            packed = self._carry_out(packed)
        self.max_bytes_in_flight = max(self.max_bytes_in_flight, sum(self.in_flight))

    def read_response(self):
        """Answer the oldest call."""
        if self.fails:
            raise redis.ConnectionError
        self.in_flight.pop(0)
        return self.answers.pop(0)

    def _carry_out(self, packed):
        count, _, rest = packed.partition(b"\r\n")
        arguments = []
        for _ in range(int(count.removeprefix(b"*"))):
            length, _, rest = rest.partition(b"\r\n")
            size = int(length.removeprefix(b"$"))
            arguments.append(rest[:size])
            rest = rest[size + 2 :]
        before = self.guard.counts[:]
        names = [name.decode() for name in arguments[3:-1]]
        assert [b"FCALL", schema.library().apply_columns.encode()] == arguments[:2]
        assert len(names) == int(arguments[2])
        self.guard.apply_columns(names, arguments[-1])
        self.answers.append(
            [a - b for a, b in zip(self.guard.counts, before, strict=True)]
        )
        self.in_flight.append(len(packed) - len(rest))
        return rest


@pytest.fixture
def server():
    """Return a server."""
    return Server()


@pytest.fixture
def sink(server):
    """Return an open sink on the server."""
    return CacheSink("redis://unused", PREFIX, 60, servers=server)


def test_a_key_of_another_program_is_erased_by_its_own_name(sink, server):
    """
    ``verify`` knows only the text of the name.

    A key that only looks escaped is erased under exactly that name.
    """
    sink.erase("items", ["7%FF", "7%25FF", "caf%%C3%%A9", "café"])

    begins = schema.route_key_prefix(PREFIX, "items").encode()
    names = [b"7\xff", b"7%25FF", b"caf%C3%A9", "café".encode()]

    assert [begins + name for name in names] == server.deleted


def test_columns_are_stored_like_single_rows(sink, server):
    """
    The names, positions and texts are the same.

    The bytes of pending calls are bounded, and all rows are counted.
    """
    records = [record(n, note='"' * (n % 50)) for n in range(20_000)]
    at = sink.apply_columns(columns_of(*records))
    waiting = sum(server.in_flight)
    counted = sink.flush()
    one_by_one = GuardModel()
    one_by_one.write(changes_of(*records))

    assert (one_by_one.rows, 20_000, 20_000, 0) == (
        server.guard.rows,
        len(at),
        counted.applied,
        counted.stale,
    )
    assert 0 < waiting <= BYTES_IN_FLIGHT
    # Several calls are sent together.
    assert server.max_bytes_in_flight < BYTES_IN_FLIGHT + 200_000


def test_rows_older_than_those_in_the_cache_are_stale(sink, server):
    """
    Rows below a floor are stale, too, and are not even sent.
    """
    server.floors = {ROUTE: f"{8 * 2:016x}.0000000000"}
    sink.open()
    sink.apply_columns(columns_of(*[record(n) for n in range(2, 5)]))
    older = [record(n, key=b'{"id":4}') for n in (1, 3)]
    sink.apply_columns(columns_of(record(1), *older, record(9)))
    counted = sink.flush()

    assert (4, 2) == (counted.applied, counted.stale)


def test_a_redis_cluster_takes_no_columns(sink, server):
    """
    A call to a cluster may contain keys of only one slot.
    """
    server.is_cluster = True

    assert sink.apply_columns(columns_of(record(1))) is None


def test_a_failure_drops_the_counts_of_its_batch(sink, server):
    """
    The retry of the batch counts its rows again.
    """
    sink.apply_columns(columns_of(record(1)))
    server.fails = True
    with pytest.raises(TargetUnavailableError):
        sink.apply_columns(columns_of(*[record(n) for n in range(20_000)]))
    server.fails = False

    assert ([], 0) == (server.in_flight, sink.flush().applied)
    assert [0] == sink.apply_columns(columns_of(record(1))).to_pylist()


def test_a_slice_of_a_batch_is_taken_like_a_whole_batch():
    """
    Neither the start of the slice nor the number of chunks matters.
    """
    records = [record(n, note=f"{n}") for n in range(20)]
    records[3] = replace(records[3], headers={"position": b"?"})
    records[14] = record(14, envelope(None, "d"))
    table = pa.concat_tables([table_of(records[:9]), table_of(records[9:])])
    found = GuardModel()
    for begin, length in ((0, 3), (3, 4), (7, 5), (12, 8)):
        (columns,) = plain_columns(table.slice(begin, length), ROUTES)
        found.take(write.encode(columns), ROUTE)
    expected = GuardModel()
    expected.write(changes_of(*records[:3], *records[4:14], *records[15:]))

    assert expected.rows == found.rows


def test_a_failure_after_the_responses_drops_the_counts_too(sink, server):
    """
    For example, the servers may evict keys, or a snapshot cannot be requested.
    """
    sink.apply_columns(columns_of(record(1)))
    server.states = lambda: (ServerState("run", 0, "allkeys-lru", keeps_file=True),)
    with pytest.raises(EvictingCacheError):
        sink.flush()
    server.states = tuple

    assert 0 == sink.flush().applied
