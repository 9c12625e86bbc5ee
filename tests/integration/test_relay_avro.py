"""Row changes with schemas: a relay process, a real registry and a stock reader."""

import base64
import contextlib
import datetime as dt
import json
import socket
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from support.registry import registry_client
from support.rig import Rig
from support.topics import headers_of, position_of
from support.waiting import until
from towpath.deploy.local.stack import LazyStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

TABLES = """
create schema s;
create type s.mood as enum ('sad', 'ok');
create type s.part as ("n o" int, note text);
create table s.kinds (
    id int, code text, flag boolean, small smallint, big bigint not null,
    price numeric(12, 2), ratio double precision, note text, data bytea, doc jsonb,
    at timestamptz, day date, uid uuid, tags text[], mood s.mood, part s.part,
    primary key (code, id)
);
create table s.plain (id int primary key, n int, note text);
create table s.other (id int primary key);
"""
INSERT = """
insert into s.kinds values (
    7, 'A', true, -3, 9223372036854775807, 2.50, 0.1, 'Zoë', '\\x00ff', '{"a": null}',
    '2026-01-02 03:04:05.6+00', '2026-01-02', '6f1c1a3e-0000-4000-8000-0123456789ab',
    '{a,NULL,"b c"}', 'ok', '(1,"x y")'
)
"""
ROW = {
    "id": 7,
    "code": "A",
    "flag": True,
    "small": -3,
    "big": 9223372036854775807,
    "price": Decimal("2.50"),
    "ratio": 0.1,
    "note": "Zoë",
    "data": b"\x00\xff",
    "doc": '{"a": null}',
    "at": "2026-01-02T03:04:05.600000Z",
    "day": "2026-01-02",
    "uid": "6f1c1a3e-0000-4000-8000-0123456789ab",
    "tags": ["a", None, "b c"],
    "mood": "ok",
    "part": {"n_o": 1, "note": "x y"},
}


class Source(Rig):
    """A database with three tables, the relay that captures it, and its topics."""

    def __init__(self, stack: LazyStack, dsn: str, prefix: str, folder: Path) -> None:
        super().__init__(dsn, stack.kafka, prefix, folder)
        self.registry_url = stack.registry_url
        self.registry = registry_client(self.registry_url)

    def begin(self, rows: str, *, relay: str = "", registry_url: str = "") -> None:
        """Prepare the database, and start a relay with the given settings."""
        self.configure(
            f"{relay}\n[relay.rows]\n{rows}",
            tables=("s.kinds", "s.plain", "s.other"),
            partitions=2,
            registry_url=registry_url or self.registry_url,
        )
        self.init()
        self.start()

    def run(self, *statements: str) -> None:
        """Run statements on the source, each in its own transaction."""
        for statement in statements:
            self.connection.execute(statement)

    def in_order(self, name: str, *, at_least: int) -> list[Message]:
        """Read a topic until it has enough records; return them in position order."""
        return sorted(self.read(name, at_least=at_least), key=position_of)

    def decode(self, message: Message, field: str) -> Any:
        """Decode a key or a value with the registry's stock deserializer."""
        reader = AvroDeserializer(self.registry)
        data = message.key() if field == MessageField.KEY else message.value()
        return reader(data, SerializationContext(message.topic(), field))

    def values(self, table: str, *, at_least: int) -> list[Any]:
        """Return a topic's decoded values, None for a tombstone."""
        messages = self.in_order(f"s.{table}", at_least=at_least)
        return [self.decode(message, MessageField.VALUE) for message in messages]

    def close(self) -> None:
        self.registry.__exit__()
        super().close()


@pytest.fixture
def source(database: str, stack, unique: str, tmp_path: Path) -> Iterator[Source]:
    """Provide a database with tables, and no relay yet."""
    source = Source(stack, database, unique, tmp_path)
    source.execute(TABLES)
    yield source
    source.close()


def test_a_stock_reader_reads_the_rows_back(source: Source):
    """
    Decoded from Avro, keys and rows equal the table's, which the source block names.
    """
    source.begin('format = "avro"\ndecimals = "precise"')
    source.run(INSERT, "update s.kinds set small = 4", "delete from s.kinds")
    messages = source.in_order("s.kinds", at_least=4)
    values = [source.decode(message, MessageField.VALUE) for message in messages]
    keys = [source.decode(message, MessageField.KEY) for message in messages]
    absent = dict.fromkeys(ROW) | {"id": 7, "code": "A"}

    assert (
        [("c", None, ROW), ("u", None, ROW | {"small": 4}), ("d", absent, None), None],
        [{"code": "A", "id": 7}] * 4,
        (source.prefix, "s", "kinds", "false"),
    ) == (
        [value and (value["op"], value["before"], value["after"]) for value in values],
        keys,
        tuple(
            values[0]["source"][name]
            for name in ("name", "schema", "table", "snapshot")
        ),
    )


@pytest.mark.parametrize("placeholder", [None, "left out"])
def test_an_unchanged_toasted_value_cannot_be_mistaken_for_null(
    source: Source, placeholder
):
    """
    The Avro value has null or the placeholder instead, but a header names the column.
    """
    text = "" if placeholder is None else f'placeholder = "{placeholder}"'
    source.begin(f'format = "avro"\n{text}')
    source.run(
        "alter table s.plain alter note set storage external",
        "insert into s.plain values (1, 1, repeat('x', 10000))",
        "update s.plain set n = 2",
        "update s.plain set note = null",
    )
    messages = source.in_order("s.plain", at_least=3)
    values = [source.decode(message, MessageField.VALUE) for message in messages]

    assert (
        ["x" * 10000, placeholder, None],
        [None, '["note"]', None],
    ) == (
        [value["after"]["note"] for value in values],
        [headers_of(message).get("unchanged") for message in messages],
    )


def test_ddl_between_changes_registers_a_second_version(source: Source):
    """
    Each change has the columns that its table had; the key's subject has one version.
    """
    source.begin('format = "avro"')
    source.run(
        "insert into s.plain values (1, 1, 'a')",
        "alter table s.plain add column more text default 'm', drop column n",
        "insert into s.plain values (2, 'b')",
    )
    values = source.values("plain", at_least=2)
    subject = source.topic("s.plain")

    assert (
        [{"id": 1, "n": 1, "note": "a"}, {"id": 2, "note": "b", "more": "m"}],
        [1, 2],
        [1],
    ) == (
        [value["after"] for value in values],
        source.registry.get_versions(f"{subject}-value"),
        source.registry.get_versions(f"{subject}-key"),
    )


def refuse(source: Source, rows: str) -> None:
    """Publish a row, then change a type in a way that the subject does not allow."""
    source.begin(rows)
    source.run("insert into s.plain values (1, 1, 'a')")
    source.values("plain", at_least=1)
    source.registry.set_compatibility(f"{source.topic('s.plain')}-value", "BACKWARD")
    source.run(
        "alter table s.plain alter n type text",
        "insert into s.plain values (2, 'two', 'b')",
        "update s.plain set note = 'c' where id = 2",
        "delete from s.plain where id = 1",
    )


def test_a_refused_schema_halts_the_relay_with_a_remedy(source: Source):
    """
    The error names the subject; once its compatibility is relaxed, the relay continues.
    """
    refuse(source, 'format = "avro"')
    code = source.ended()
    subject = f"{source.topic('s.plain')}-value"
    source.registry.set_compatibility(subject, "NONE")
    source.begin('format = "avro"')
    after = [value and value["after"] for value in source.values("plain", at_least=5)]

    assert (
        3,
        True,
        True,
        [
            {"id": 1, "n": 1, "note": "a"},
            {"id": 2, "n": "two", "note": "b"},
            {"id": 2, "n": "two", "note": "c"},
            None,
            None,
        ],
    ) == (
        code,
        f"refuses a schema for the subject {subject}: 409" in source.printed(),
        "Relax the compatibility of the subject that the message names"
        in source.printed(),
        after,
    )


def test_with_park_the_changes_of_a_refused_schema_are_dead_letters(source: Source):
    """
    Their order is kept; changes to other tables or with the next schema are published.
    """
    refuse(source, 'format = "avro"\non_refused_schema = "park"')
    source.run(
        "truncate s.plain",
        "insert into s.other values (5)",
        "alter table s.plain alter n type int using 2",
        "insert into s.plain values (3, 3, 'd')",
    )
    others = source.values("other", at_least=1)
    plain = source.values("plain", at_least=2)
    dead = source.in_order("dead.relay", at_least=4)
    found_headers = [headers_of(message) for message in dead]

    assert (
        [{"id": 5}],
        [{"id": 1, "n": 1, "note": "a"}, {"id": 3, "n": 3, "note": "d"}],
        [
            ("c", {"id": "2", "n": "two", "note": "b"}),
            ("u", {"id": "2", "n": "two", "note": "c"}),
            ("d", {"id": "1", "n": None, "note": None}),
            ("t", {"id": None, "n": None, "note": None}),
        ],
        ["409"] * 4,
    ) == (
        [value["after"] for value in others],
        [value["after"] for value in plain],
        [
            (headers["op"], json.loads(message.value()))
            for headers, message in zip(found_headers, dead, strict=True)
        ],
        [
            headers["__connect.errors.exception.message"].split()[10]
            for headers in found_headers
        ],
    )


def test_an_unreachable_registry_is_retried(source: Source):
    """
    No row is lost, and the relay continues once the registry is back.
    """
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    source.begin('format = "avro"', registry_url=f"http://127.0.0.1:{port}")
    source.run("insert into s.other values (1)")
    until(
        lambda: "schema registry cannot be reached" in source.printed(),
        "the failure is logged",
    )
    with serving_one_id(port):
        (message,) = source.in_order("s.other", at_least=1)

    assert b"\x00\x00\x00\x00\x07\x02" == message.key()


@contextlib.contextmanager
def serving_one_id(port: int) -> Iterator[None]:
    """Serve a registry that gives every schema the same id."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = b'{"id": 7}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield
        server.shutdown()
        thread.join()


def connect_value(schema: dict[str, Any], value: Any) -> Any:
    """Read JSON as Kafka Connect's converter does; fail if the converter would."""
    kind, name = schema["type"], schema.get("name", "")
    if value is None:
        assert schema["optional"] or "default" in schema, schema
        return schema.get("default")
    if kind == "struct":
        return {
            field["field"]: connect_value(field, value.get(field["field"]))
            for field in schema["fields"]
        }
    if kind == "array":
        return [connect_value(schema["items"], entry) for entry in value]
    if kind == "bytes":
        return read_bytes(schema, base64.b64decode(value, validate=True))
    expected = {"boolean": bool, "string": str, "double": float}.get(kind, int)
    assert type(value) is expected, (schema, value)
    if name == "io.debezium.time.Date":
        return str(dt.date(1970, 1, 1) + dt.timedelta(value))
    return value


def read_bytes(schema: dict[str, Any], data: bytes) -> bytes | Decimal:
    """Read bytes according to their semantic type."""
    if schema.get("name") != "org.apache.kafka.connect.data.Decimal":
        return data
    unscaled = int.from_bytes(data, "big", signed=True)
    return Decimal(unscaled).scaleb(-int(schema["parameters"]["scale"]))


@pytest.mark.parametrize("preset", ["towpath", "debezium"])
def test_json_with_schemas_can_be_read_with_its_schema(source: Source, preset: str):
    """
    A reader that uses only the schema reads every key and value, with both presets.
    """
    rows = 'format = "json-schema"\ndecimals = "precise"'
    source.begin(rows, relay=f'preset = "{preset}"')
    source.run(INSERT, "delete from s.kinds")
    created, deleted, tombstone = source.in_order("s.kinds", at_least=3)
    read = [
        connect_value(document["schema"], document["payload"])
        for document in (
            json.loads(data)
            for data in (created.key(), created.value(), deleted.value())
        )
    ]
    after = read[1]["after"]

    assert (
        {"code": "A", "id": 7},
        ROW | {"part": {"n o": 1, "note": "x y"}, "at": after["at"]},
        {"code": "A", "id": 7},
        None,
    ) == (
        read[0],
        after,
        {name: value for name, value in read[2]["before"].items() if value is not None},
        tombstone.value(),
    )
