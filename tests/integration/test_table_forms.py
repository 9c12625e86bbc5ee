"""Row changes of a real Postgres in every form, from the stream and from chunks."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from support.literals import LITERALS, SAME, TYPES
from support.rig import Rig
from support.slots import drop_slot
from support.waiting import CLOCK, TIMEOUT_S
from towpath.relay.encode.codecs.codec import TableNames
from towpath.relay.encode.codecs.json_codec import json_maker
from towpath.relay.encode.columns import ColumnRules
from towpath.relay.encode.record import Record
from towpath.relay.encode.relations import bind
from towpath.relay.encode.rows import ReadSlice
from towpath.relay.encode.table import RouteCallbacks, TableRoute
from towpath.relay.postgres import tables
from towpath.relay.postgres.catalog import PostgresCatalog
from towpath.relay.postgres.connect import Connection, connect
from towpath.relay.postgres.replication import SlotStream, Wakeup
from towpath.relay.snapshot.sql import decode_lines
from towpath.relay.wal.messages import Relation, RelationShape
from towpath.relay.wal.pgoutput import PAYLOAD_AT, WAL_DATA, parse_message, start_lsn
from towpath.relay.wal.transactions import Change, Committed, Sequencer
from towpath.schemas.clock import Deadline
from towpath.schemas.table_name import TableName
from towpath.settings.relay import Relay

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

NOW_US: Final = 1_700_000_000_000_000


class Followed:
    """A database whose publication is streamed from a slot, as in the relay."""

    def __init__(self, dsn: str, name: str) -> None:
        self.name = name
        self.dsn = dsn
        self._closing = contextlib.ExitStack()
        self._enter = self._closing.enter_context
        self.source = self._enter(psycopg.connect(dsn, autocommit=True))
        self.relay = Relay()
        self.incomplete: list[tuple[bytes, ...]] = []
        self.shapes: dict[str, Relation] = {}
        self._sequencer = Sequencer(0)
        self._routes: dict[int, TableRoute] = {}

    @cached_property
    def reader(self) -> Connection:
        """The connection for chunks, opened late to get the database's settings."""
        return self._enter(connect(self.dsn))

    @cached_property
    def catalog(self) -> PostgresCatalog:
        """The catalog that describes relations."""
        return PostgresCatalog(self._enter(connect(self.dsn)))

    @cached_property
    def stream(self) -> SlotStream:
        """The stream of the slot."""
        stream = SlotStream(self.dsn, CLOCK, Wakeup())
        self._closing.callback(stream.close)
        stream.start(self.name, (self.name,))
        return stream

    def execute(self, *statements: str) -> None:
        """Run statements, each in its own transaction."""
        for statement in statements:
            self.source.execute(statement.encode())

    def publish(self, what: str, options: str = "") -> None:
        """Create a publication of the given tables, and a slot."""
        self.execute(f"create publication {self.name} for {what} {options}")
        self.source.execute(
            "select pg_create_logical_replication_slot(%s, 'pgoutput')", (self.name,)
        )

    def configure(self, **relay: object) -> None:
        """Set the section ``[relay]``, before anything is read."""
        self.relay = Relay.model_validate(relay)

    def changes(self, transactions: int) -> list[Record]:
        """Read a number of transactions with changes; return their records."""
        deadline = Deadline(CLOCK, TIMEOUT_S)
        found: list[Record] = []
        while transactions > 0 and not deadline.passed():
            for frame in self.stream.read(0.2):
                if frame[0] == WAL_DATA:
                    transactions -= self._follow(frame, found)
        assert transactions == 0
        return found

    def _follow(self, frame: bytes, found: list[Record]) -> bool:
        """Apply a message; return whether it ends a transaction with changes."""
        step = self._sequencer.feed(parse_message(frame, PAYLOAD_AT), start_lsn(frame))
        if isinstance(step, RelationShape):
            oids = [column.type_oid for column in step.columns]
            facts = self.catalog.describe(
                step.oid, TableName(step.schema, step.table), oids
            )
            relation = bind(step, facts)
            self._sequencer.bind(relation)
            self._routes[relation.oid] = self._route(relation)
            self.shapes[relation.name] = relation
        elif isinstance(step, Change):
            route = self._routes[step.relation.oid]
            found += route.records(step, NOW_US)
        return isinstance(step, Committed) and self._sequencer.ordinal > 0

    def chunk(self, table: str) -> list[Record]:
        """Read a table in one chunk, and return its records."""
        shape = tables.describe(self.reader, table, self.name)
        columns = ", ".join(f'"{column.name}"' for column in shape.relation.columns)
        route = self._route(shape.relation)
        statement = f"copy (select {columns} from {table}) to stdout"  # noqa: S608 - ours
        with self.reader.cursor().copy(statement.encode()) as copy:
            rows = decode_lines(map(bytes, copy))
        return list(route.reads(rows, ReadSlice(8, "sig", "topic", NOW_US)))

    def _route(self, relation: Relation) -> TableRoute:
        oids = [column.type_oid for column in relation.columns]
        facts = self.catalog.describe(relation.oid, relation.full_name, oids)
        plan = ColumnRules(self.relay).plan(relation, facts)
        names = TableNames("p", "db", relation.schema, relation.table, "")
        written = json_maker(self.relay)(names, plan.key, plan.columns)
        callbacks = RouteCallbacks(
            on_incomplete=lambda _, key, __: self.incomplete.append(key)
        )
        return TableRoute("p", relation, plan, written, self.relay.rows, callbacks)

    def close(self) -> None:
        """Close the connections, and drop the slot."""
        self._closing.close()
        drop_slot(self.dsn, self.name)


def after(record: Record) -> dict[str, Any]:
    """Return the new row of a record."""
    row: dict[str, Any] = json.loads(record.value or b"{}")["after"]
    return row


def summary(records: Sequence[Record]) -> list[tuple[str | None, Any, Any]]:
    """Return the operation, the key and the new row of each record."""
    rows = []
    for record in records:
        value = json.loads(record.value or b"null")
        key = json.loads(record.key or b"null")
        rows.append((value and value["op"], key, value and value["after"]))
    return rows


@pytest.fixture
def followed(database: str, unique: str) -> Iterator[Followed]:
    """Provide a fresh database with a reader of its stream."""
    followed = Followed(database, unique)
    yield followed
    followed.close()


@pytest.mark.parametrize("preset", ["towpath", "debezium"])
def test_stream_and_chunk_write_the_same_form(followed: Followed, preset: str):
    """
    Values of every type are equal, and have the documented form (T-54, B67, B68).
    """
    followed.execute(TYPES)
    columns = [f"c{at:03d} {one.type}" for at, one in enumerate(LITERALS)]
    values = ", ".join(one.sql for one in LITERALS)
    followed.execute(
        f"create table s.every (id int primary key, {', '.join(columns)})",
        "alter database " + followed.name + " set timezone = 'Asia/Kathmandu'",
        "alter database " + followed.name + " set datestyle = 'SQL, DMY'",
        "alter database " + followed.name + " set bytea_output = 'escape'",
        "alter database " + followed.name + " set extra_float_digits = -5",
        "alter database " + followed.name + " set intervalstyle = 'sql_standard'",
        f"insert into s.every values (1, {values})",  # noqa: S608 - ours
    )
    followed.publish("table s.every")
    rows = {"format": "json", "unknown_types": "bytes"} if preset != "towpath" else {}
    followed.configure(preset=preset, rows=rows)
    (read,) = followed.chunk("s.every")
    followed.execute(f"insert into s.every values (2, {values})")  # noqa: S608 - ours
    (streamed,) = followed.changes(1)
    expected = [
        one.debezium if preset == "debezium" and one.debezium is not SAME else one.ours
        for one in LITERALS
    ]
    names = [f"c{at:03d}" for at in range(len(LITERALS))]

    assert (dict(zip(names, expected, strict=True)), after(read) | {"id": 2}) == (
        {name: after(streamed)[name] for name in names},
        after(streamed),
    )


def test_each_row_has_the_columns_of_its_time(followed: Followed):
    """
    Columns are added, dropped, renamed and retyped before the first read (A62, B60).
    """
    followed.execute(
        "create table t (id int primary key, a int, b text)",
    )
    followed.publish("table t")
    followed.execute(
        "insert into t values (1, 1, 'x')",
        "alter table t add c numeric(4, 1) default 7.5",
        "insert into t values (2, 2, 'y', 1)",
        "alter table t rename b to bb",
        "insert into t values (3, 3, 'z')",
        "alter table t alter a type bigint, drop c",
        "insert into t values (4, 4000000000, 'w')",
        "alter table t alter bb type varchar(3)",
        "insert into t values (5, 5, 'v')",
    )
    found = [after(record) for record in followed.changes(5)]

    assert [
        {"id": 1, "a": 1, "b": "x"},
        {"id": 2, "a": 2, "b": "y", "c": "1.0"},
        {"id": 3, "a": 3, "bb": "z", "c": "7.5"},
        {"id": 4, "a": 4000000000, "bb": "w"},
        {"id": 5, "a": 5, "bb": "v"},
    ] == found


def test_earlier_rows_keep_the_key_of_their_time(followed: Followed):
    """
    Rows from before a change of the primary key have the old key (B60).
    """
    followed.execute("create table t (id int primary key, code text not null)")
    followed.publish("table t")
    followed.execute(
        "insert into t values (1, 'a')",
        "delete from t",
        "alter table t drop constraint t_pkey, add primary key (code, id)",
        "insert into t values (2, 'b')",
    )
    keys = [json.loads(record.key or b"null") for record in followed.changes(3)]

    assert [{"id": 1}, {"id": 1}, {"id": 1}, {"code": "b", "id": 2}] == keys


def test_values_of_a_dropped_type_are_strings(followed: Followed):
    """
    The stream may still have values of a type that has been dropped since.
    """
    followed.execute(
        "create type mood as enum ('sad')",
        "create table t (id int primary key, m mood)",
    )
    followed.publish("table t")
    followed.execute(
        "insert into t values (1, 'sad')", "alter table t drop m", "drop type mood"
    )
    (record,) = followed.changes(1)

    assert {"id": 1, "m": "sad"} == after(record)


@pytest.mark.parametrize("form", ["stored", "virtual"])
def test_generated_columns_are_absent(followed: Followed, form: str):
    """
    Stream and chunk have the same columns (A69).
    """
    followed.execute(
        "create table t (id int primary key, a int,"
        f" twice int generated always as (a * 2) {form})"
    )
    followed.publish("table t")
    followed.execute("insert into t (id, a) values (1, 2)")

    assert [{"id": 1, "a": 2}] * 2 == [
        after(followed.chunk("public.t")[0]),
        after(followed.changes(1)[0]),
    ]


@pytest.mark.parametrize(
    ("via_root", "names"),
    [("true", {"public.t"}), ("false", {"public.t_low", "public.t_high"})],
)
def test_partitions_have_one_topic_or_their_own(
    followed: Followed, via_root: str, names: set[str]
):
    """
    The publication decides; the records have their key in both cases (A69).
    """
    followed.execute(
        "create table t (id int primary key, a int) partition by range (id)",
        "create table t_low partition of t for values from (0) to (10)",
        "create table t_high (a int, id int not null)",
        "alter table t attach partition t_high for values from (10) to (20)",
    )
    followed.publish("table t", f"with (publish_via_partition_root = {via_root})")
    followed.execute(
        "insert into t values (1, 1), (11, 11)", "update t set id = 2 where id = 1"
    )
    records = followed.changes(2)

    assert (
        [
            ("c", {"id": 1}),
            ("c", {"id": 11}),
            ("d", {"id": 1}),
            (None, {"id": 1}),
            ("c", {"id": 2}),
        ],
        {f"p.{name}" for name in names},
    ) == ([each[:2] for each in summary(records)], {record.topic for record in records})


def test_full_identity_gives_the_whole_old_row(followed: Followed):
    """
    ``before`` has TOASTed values, too; a comparison finds key changes (A56, A73).
    """
    followed.execute(
        "create table t (id int primary key, a int, big text)",
        "alter table t alter big set storage external",
        "alter table t replica identity full",
    )
    followed.publish("table t")
    followed.execute(
        "insert into t values (1, 1, repeat('x', 9000))",
        "update t set a = 2",
        "update t set id = 3",
        "delete from t",
    )
    _, update, moved_from, _, moved_to, deleted, _ = followed.changes(4)
    befores = [
        json.loads(r.value or b"")["before"] for r in (update, moved_from, deleted)
    ]
    assert ([9000] * 3, 9000, 9000, [], [("position", moved_to.position)]) == (
        [len(before["big"]) for before in befores],
        len(after(update)["big"]),
        len(after(moved_to)["big"]),
        followed.incomplete,
        moved_to.headers[:1],
    )


def test_an_identity_index_is_the_key(followed: Followed):
    """
    Old rows have only the index's columns, so these are the key of every change.
    """
    followed.execute(
        "create table t (id int primary key, b text not null, a int not null)",
        "create unique index t_ab on t (a, b)",
        "alter table t replica identity using index t_ab",
    )
    followed.publish("table t")
    followed.execute(
        "insert into t values (1, 'b', 2)", "update t set id = 5", "delete from t"
    )
    key = {"a": 2, "b": "b"}

    assert [("c", key), ("u", key), ("d", key), (None, key)] == [
        each[:2] for each in summary(followed.changes(3))
    ]


def test_the_key_of_a_table_without_a_primary_key_is_a_unique_index(
    followed: Followed,
):
    """
    The index must identify all rows; otherwise, there is no key (A56, A67).
    """
    followed.execute(
        "create table bare (a int, b int)",
        "create table partial (a int not null, b int)",
        "create unique index on partial (a) where b > 0",
        "create unique index on partial ((a + 1))",
        "create table indexed (a int not null, b int not null, c int)",
        "create unique index on indexed (c)",
        "create unique index on indexed (b, a)",
        "alter table bare replica identity full",
        "alter table indexed replica identity full",
        "alter table partial replica identity nothing",
    )
    followed.publish("table bare, partial, indexed")
    followed.execute(
        "insert into bare values (1, 1)",
        "update bare set b = 2",
        "delete from bare",
        "insert into partial values (1, 1)",
        "insert into indexed values (1, 2, 3)",
        "update indexed set a = 4",
    )
    old, new = {"b": 2, "a": 1}, {"b": 2, "a": 4}

    assert [
        ("c", None),
        ("u", None),
        ("d", None),
        ("c", None),
        ("c", old),
        ("d", old),
        (None, old),
        ("c", new),
    ] == [each[:2] for each in summary(followed.changes(6))]


def test_unchanged_large_values_of_any_type_are_left_out(followed: Followed):
    """
    A header names their columns; a null value always means NULL (A73, A74, A76).
    """
    kinds = {
        "v": "varchar",
        "j": "json",
        "jb": "jsonb",
        "by": "bytea",
        "h": "hstore",
        "ta": "text[]",
        "ia": "int[]",
        "nu": "numeric",
        "no": "text",
    }
    columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    storage = ", ".join(f"alter {name} set storage external" for name in kinds)
    followed.execute(
        "create extension hstore",
        f"create table t (id int primary key, a int, {columns})",
        f"alter table t {storage}",
    )
    followed.publish("table t")
    followed.execute(
        "insert into t select 1, 1, w, to_json(w), to_jsonb(w), w::bytea,"
        " hstore('k', w), array[w], array(select generate_series(1, 5000)),"
        " repeat('123456789', 9000)::numeric, null"
        " from (select repeat('x', 10000) w) q",
        "update t set a = 2",
        "update t set id = 7",
    )
    _, update, _, _, moved_to = followed.changes(3)
    absent = ["v", "j", "jb", "by", "h", "ta", "ia", "nu"]

    assert (
        {"id": 1, "a": 2, "no": None},
        absent,
        {"id": 7, "a": 2, "no": None},
        absent,
        [(b"7",)],
    ) == (
        after(update),
        json.loads(dict(update.headers)["unchanged"] or b""),
        after(moved_to),
        json.loads(dict(moved_to.headers)["unchanged"] or b""),
        followed.incomplete,
    )


def test_column_lists_and_row_filters_apply_to_records(followed: Followed):
    """
    A row that begins to match gives an insert, and one that ceases to, a delete (B70).
    """
    followed.execute("create table t (id int primary key, a int, secret text)")
    followed.publish("table t (id, a) where (id > 10)")
    followed.execute(
        "insert into t values (1, 1, 's'), (20, 2, 's')",
        "update t set id = 21 where id = 20",
        "update t set id = 11 where id = 1",
        "update t set id = 2 where id = 11",
    )
    records = followed.changes(4)

    assert [
        ("c", {"id": 20}, {"id": 20, "a": 2}),
        ("d", {"id": 20}, None),
        (None, {"id": 20}, None),
        ("c", {"id": 21}, {"id": 21, "a": 2}),
        ("c", {"id": 11}, {"id": 11, "a": 1}),
        ("d", {"id": 11}, None),
        (None, {"id": 11}, None),
    ] == summary(records)


def test_names_with_any_characters_are_kept(followed: Followed):
    """
    Names may have quotes, capitals, spaces, percent signs and letters of any script.
    """
    followed.execute(
        'create schema "Šéma %s"',
        'create table "Šéma %s"."Tab ""le"".x"'
        ' ("I d" int primary key, "100 %%" text, "日本" text)',
    )
    followed.publish('table "Šéma %s"."Tab ""le"".x"')
    followed.execute('insert into "Šéma %s"."Tab ""le"".x" values (1, \'%s\', \'本\')')
    (record,) = followed.changes(1)
    source = json.loads(record.value or b"")["source"]

    assert (
        b'{"I d":1}',
        {"I d": 1, "100 %%": "%s", "日本": "本"},
        ("Šéma %s", 'Tab "le".x'),
    ) == (record.key, after(record), (source["schema"], source["table"]))


def test_a_new_attribute_of_a_composite_type_is_not_lost(followed: Followed):
    """
    The value is an object with the new attribute, or the whole value as a string.
    """
    followed.execute(
        "create type pair as (a int)", "create table t (id int primary key, p pair)"
    )
    followed.publish("table t")
    followed.execute("insert into t values (1, row(5))")
    (first,) = followed.changes(1)
    followed.execute(
        "alter type pair add attribute b text",
        "insert into t values (2, row(6, 'new'))",
    )
    (second,) = followed.changes(1)

    assert ({"a": 5}, True) == (
        after(first)["p"],
        after(second)["p"] in ("(6,new)", {"a": 6, "b": "new"}),
    )


class RunningRelay(Rig):
    """A relay process between a database and Kafka."""

    def begin(self, table: str, relay: str) -> None:
        """Prepare the database, and start the relay with one captured table."""
        self.configure(relay, tables=(table,))
        self.init()
        self.start()

    def rows(self, table: str, count: int) -> dict[str, dict[str, Any]]:
        """Read the first changes of a table; return their new rows by operation."""
        documents = [json.loads(m.value()) for m in self.read(table, at_least=count)]
        values = [each.get("payload", each) for each in documents]
        return {value["op"]: value["after"] for value in values}


@pytest.fixture
def running(
    database: str, stack, unique: str, tmp_path: Path
) -> Iterator[RunningRelay]:
    """Provide a relay for a fresh database, neither prepared nor started."""
    relay = RunningRelay(database, stack.kafka, unique, tmp_path)
    yield relay
    relay.close()


@pytest.mark.parametrize("preset", ["towpath", "debezium"])
def test_a_snapshot_and_the_stream_agree_in_kafka(running: RunningRelay, preset: str):
    """
    Equal values have the same form in a snapshot and in the stream (T-54).
    """
    columns = [f"c{at:03d} {one.type}" for at, one in enumerate(LITERALS)]
    values = ", ".join(one.sql for one in LITERALS)
    insert = f"insert into s.every values (%s, {values.replace('%', '%%')})"  # noqa: S608 - ours
    running.connection.execute(TYPES.encode())
    running.connection.execute(
        f"create table s.every (id int primary key, {', '.join(columns)})".encode()
    )
    running.connection.execute(insert.encode(), (1,))
    running.begin("s.every", f'preset = "{preset}"')
    running.connection.execute(insert.encode(), (2,))
    running.connection.execute(
        "insert into towpath.signal (id, type, data) values ('sig', 'execute-snapshot',"
        """ '{"data-collections": ["s.every"], "type": "incremental"}')"""
    )
    found = running.rows("s.every", 2)

    assert (True, found["r"] | {"id": 0}) == (
        len(found["c"]) > 0.8 * len(LITERALS),
        found["c"] | {"id": 0},
    )
