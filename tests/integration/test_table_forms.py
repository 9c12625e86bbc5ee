"""Row changes of a real Postgres, from its stream and from chunks, in every form."""

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
    """A database whose publication is read by a slot, as the relay reads it."""

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
        """Reads chunks; opened late, so that it meets the database's settings."""
        return self._enter(connect(self.dsn))

    @cached_property
    def catalog(self) -> PostgresCatalog:
        """Tells shapes."""
        return PostgresCatalog(self._enter(connect(self.dsn)))

    @cached_property
    def stream(self) -> SlotStream:
        """Follows the slot."""
        stream = SlotStream(self.dsn, CLOCK, Wakeup())
        self._closing.callback(stream.close)
        stream.start(self.name, (self.name,))
        return stream

    def execute(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        for statement in statements:
            self.source.execute(statement.encode())

    def publish(self, what: str, options: str = "") -> None:
        """Publish tables, and make the slot that begins here."""
        self.execute(f"create publication {self.name} for {what} {options}")
        self.source.execute(
            "select pg_create_logical_replication_slot(%s, 'pgoutput')", (self.name,)
        )

    def configure(self, **relay: object) -> None:
        """Set ``[relay]``. Call order: before the first change is read."""
        self.relay = Relay.model_validate(relay)

    def changes(self, transactions: int) -> list[Record]:
        """Follow so many transactions that have changes, and list their records."""
        deadline = Deadline(CLOCK, TIMEOUT_S)
        found: list[Record] = []
        while transactions > 0 and not deadline.passed():
            for frame in self.stream.read(0.2):
                if frame[0] == WAL_DATA:
                    transactions -= self._follow(frame, found)
        assert transactions == 0
        return found

    def _follow(self, frame: bytes, found: list[Record]) -> bool:
        """Take a message; tell whether a transaction with changes ended."""
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
        """Read a table as a chunk does."""
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
        """Leave nothing behind."""
        self._closing.close()
        drop_slot(self.dsn, self.name)


def after(record: Record) -> dict[str, Any]:
    """Read a record's new row."""
    row: dict[str, Any] = json.loads(record.value or b"{}")["after"]
    return row


def story(records: Sequence[Record]) -> list[tuple[str | None, Any, Any]]:
    """Tell records by operation, key and new row."""
    rows = []
    for record in records:
        value = json.loads(record.value or b"null")
        key = json.loads(record.key or b"null")
        rows.append((value and value["op"], key, value and value["after"]))
    return rows


@pytest.fixture
def followed(database: str, unique: str) -> Iterator[Followed]:
    """Provide a fresh database with a reader of its stream."""
    lent = Followed(database, unique)
    yield lent
    lent.close()


@pytest.mark.parametrize("preset", ["towpath", "debezium"])
def test_stream_and_chunk_write_one_form(followed: Followed, preset: str):
    """
    Every type reads the same both ways, and as its form says (T-54, B67, B68).
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


def test_each_row_has_the_shape_of_its_time(followed: Followed):
    """
    Columns come, go, change names and types, while nobody reads (A62, B60).
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


def test_a_key_that_changed_since_is_not_the_key_of_then(followed: Followed):
    """
    Rows of before a change of the primary key have the key of their time (B60).
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


def test_a_type_that_is_gone_leaves_its_text(followed: Followed):
    """
    Rows of a type that was dropped since are texts, in the stream that still has them.
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
    Stream and chunk agree on what is a row (A69).
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
    As the publication says; either way with their key (A69).
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
    ) == ([each[:2] for each in story(records)], {record.topic for record in records})


def test_full_identity_tells_the_whole_old_row(followed: Followed):
    """
    Before is whole, TOASTed values too; a key change is found by comparing (A56, A73).
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
    _, update, gone, _, came, deleted, _ = followed.changes(4)
    befores = [json.loads(r.value or b"")["before"] for r in (update, gone, deleted)]

    assert ([9000] * 3, 9000, 9000, [], [("position", came.position)]) == (
        [len(before["big"]) for before in befores],
        len(after(update)["big"]),
        len(after(came)["big"]),
        followed.incomplete,
        came.headers[:1],
    )


def test_an_identity_index_is_the_key(followed: Followed):
    """
    Old rows tell that index alone: inserts, updates and deletes have it as their key.
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
        each[:2] for each in story(followed.changes(3))
    ]


def test_a_table_without_a_key_has_none_or_its_unique_index(followed: Followed):
    """
    A unique index counts if it tells all rows apart, of whatever identity (A56, A67).
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
    ] == [each[:2] for each in story(followed.changes(6))]


def test_unchanged_large_values_are_left_out_whatever_their_type(followed: Followed):
    """
    Left out and named, never null and never data; NULL is null (A73, A74, A76).
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
    _, update, _, _, came = followed.changes(3)
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
        after(came),
        json.loads(dict(came.headers)["unchanged"] or b""),
        followed.incomplete,
    )


def test_column_lists_and_row_filters_decide_what_is_a_row(followed: Followed):
    """
    A row that enters a filter is an insert, one that leaves it a delete (B70).
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
    ] == story(records)


def test_names_are_what_they_are(followed: Followed):
    """
    Quotes, capitals, spaces, percent signs and any script in every name.
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


def test_a_composite_that_grew_is_not_guessed_at(followed: Followed):
    """
    The type's new field is unknown to the announced shape: the value is its text.
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


class Running(Rig):
    """A relay process between a database and Kafka."""

    def begin(self, table: str, relay: str) -> None:
        """Prepare the database, and start the relay over one table."""
        self.configure(relay, tables=(table,))
        self.init()
        self.start()

    def rows(self, table: str, count: int) -> dict[str, dict[str, Any]]:
        """Read so many row changes from the beginning, new rows by operation."""
        documents = [json.loads(m.value()) for m in self.read(table, at_least=count)]
        values = [each.get("payload", each) for each in documents]
        return {value["op"]: value["after"] for value in values}


@pytest.fixture
def running(database: str, stack, unique: str, tmp_path: Path) -> Iterator[Running]:
    """Provide a relay over a fresh database; nothing is prepared or started."""
    lent = Running(database, stack.kafka, unique, tmp_path)
    yield lent
    lent.close()


@pytest.mark.parametrize("preset", ["towpath", "debezium"])
def test_a_snapshot_and_the_stream_agree_in_kafka(running: Running, preset: str):
    """
    The same values, read by an incremental snapshot and streamed, are the same (T-54).
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
