"""The verifier finds every planted defect in a search index that follows events."""

import json

import orjson
import psycopg
import pytest
from opensearchpy import OpenSearch

from support.published import MemoryProgress
from support.waiting import CLOCK
from towpath.schemas.clock import SystemClock
from towpath.settings import load
from towpath.sinks.change import Origin, Record
from towpath.sinks.changes.decode import decode
from towpath.sinks.changes.routing import Routes
from towpath.sinks.fold import newest_per_key
from towpath.sinks.ports import Batch
from towpath.sinks.targets.search.sink import SearchSink
from towpath.sinks.verify import __main__ as verifier
from towpath.sinks.verify.__main__ import VerifyOptions
from towpath.sinks.verify.routes import Tables
from towpath.sinks.verify.source import Source

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

SHOP = """
    create schema shop;
    create table shop.orders (id bigint primary key, status text, total numeric);
    create view shop.order_documents as
    select id as aggregate_id,
           case status when 'gone' then 'OrderDeleted' else 'OrderChanged' end as type,
           case when id <> 13 then
               jsonb_build_object('order_id', id, 'status', status, 'total', total,
                   'lines', jsonb_build_array(jsonb_build_object('no', 1)))
           end as payload
      from shop.orders;
    insert into shop.orders values
        (7, 'placed', 12.50), (10, 'paid', 1.00000000000000000001), (11, null, null),
        (12, 'gone', 1), (13, 'empty', 1);
"""
CONFIGURATION = """
    version = 1
    state_folder = "{folder}"
    [[source]]
    dsn = "{dsn}"
    [kafka]
    bootstrap_servers = "127.0.0.1:1"
    [registry]
    url = "http://x"
    [[relay.outbox.view]]
    aggregate_type = "order"
    view = "shop.order_documents"
    id_form = "integer"
    [[sink]]
    name = "it"
    kind = "search"
    url = "{url}"
    [[sink.route]]
    topic = "outbox.event.{topic}"
    name = "{unique}"
    kind = "aggregate"
    delete_types = ["OrderDeleted"]
    [sink.route.fields]
    order_id = "bigint"
    status = "text"
    total = "numeric"
    "lines[].no" = "integer"
"""
LINES = b'"lines": [{"no": 1}]'
EVENTS = [
    ("7", b'{"order_id": 7, "status": "placed", "total": 12.5, "lines": [{"no": 1}]}'),
    (
        "10",
        b'{"total":1.00000000000000000001,"status":"paid","order_id":10,%b}' % LINES,
    ),
    ("11", b'{"order_id": 11, "status": null, "total": null, "lines": [{"no": 1}]}'),
    ("12", None),
]


class Unannounced:
    """Announces no table, because none is read here."""

    def __init__(self, *_):
        """Ignore the arguments."""

    def close(self):
        """Do nothing, because nothing is open."""


class AtRest:
    """Replaces the wait for the sink, which is already up to date."""

    def __init__(self, *_, **_parts):
        """Ignore the arguments."""

    def wait(self, poll=None):
        """Return at once, because the sink has everything."""

    def wait_until_seen(self):
        """Return at once, because nothing is being written."""


class Rig:
    """An index filled with events, and the means to alter it."""

    def __init__(self, config):
        self.config = config
        self.settings = load(config, {})
        (self.sink,) = self.settings.sink
        (self.route,) = self.sink.route

    def fill(self):
        """Write the events into the index, as a driver's batch does."""
        records = [
            Record(
                Origin(self.route.topic, 0, number),
                key.encode(),
                text,
                {
                    "type": b"OrderChanged",
                    "position": b"%016x.0000000000" % (8 + number),
                },
            )
            for number, (key, text) in enumerate(EVENTS)
        ]
        sink = SearchSink(self.sink.url, self.sink.route, None, SystemClock())
        sink.open()
        decoded = decode(records, Routes(self.sink))
        sink.apply(Batch(0, newest_per_key(decoded.changes).changes))
        refused = sink.flush().refused
        sink.close()

        assert ((), []) == (refused, decoded.unreadable)

    def tamper(self, name, key, **arguments):
        """Change a document with OpenSearch's own client, bypassing the sink."""
        client = OpenSearch(self.sink.url)
        getattr(client, name)(index=self.route.name, id=key, **arguments)
        client.close()


@pytest.fixture
def make(stack, database, unique, tmp_path, monkeypatch):
    """Provide a function that makes a rig with an empty index."""
    monkeypatch.setattr(verifier, "CatchUpWaiter", AtRest)
    monkeypatch.setattr(verifier, "ProgressTopic", lambda *_: MemoryProgress(CLOCK))
    monkeypatch.setattr(verifier, "KafkaRelations", Unannounced)
    with psycopg.connect(database) as connection:
        connection.execute(SHOP)

    def rig(topic="order"):
        config = tmp_path / "towpath.toml"
        text = CONFIGURATION.format(
            folder=tmp_path,
            dsn=database,
            url=stack.opensearch_url,
            unique=unique,
            topic=topic,
        )
        config.write_text(text)
        return Rig(config)

    return rig


@pytest.fixture
def rig(make):
    """Provide a filled rig."""
    made = make()
    made.fill()
    return made


@pytest.fixture
def verify(rig, capsys):
    """
    Provide a function that verifies; it returns the exit code, report and differences.
    """

    def run():
        code = verifier.verify(rig.config, "it", VerifyOptions(as_json=True))
        (route,) = json.loads(capsys.readouterr().out)["routes"]
        found = [tuple(d.values()) for d in route["first"]]
        return code, route, found

    return run


def test_an_index_that_holds_every_document_is_equal(verify):
    """Numbers of any length, nulls, lists and a deleted aggregate compare equal."""
    code, route, found = verify()

    assert (0, [], "shop.order_documents") == (code, found, route["table"])
    assert (3, 3, 1) == (route["source_rows"], route["sink_rows"], route["tombstones"])


def test_a_changed_value_is_found_inside_the_document(rig, verify):
    """
    A changed number in one order line gives exit code 1, with its path and both values.
    """
    rig.tamper("update", "7", body={"doc": {"lines": [{"no": 2}]}})
    code, _, found = verify()

    assert (1, [("changed", "7", "lines[0].no", "1", "2")]) == (code, found)


def test_a_digit_that_no_double_holds_is_found(verify, database):
    """A difference in the twentieth decimal place is found."""
    with psycopg.connect(database) as connection:
        connection.execute(
            "update shop.orders set total = 1.00000000000000000002 where id = 10"
        )
    code, _, found = verify()
    one, two = "1.00000000000000000001", "1.00000000000000000002"

    assert (1, [("changed", "10", "total", two, one)]) == (code, found)


def test_a_missing_document_is_found(rig, verify):
    """A document deleted only in the index gives exit code 1, with its id."""
    rig.tamper("delete", "10")
    code, _, found = verify()

    assert (1, [("missing", "10", None, None, None)]) == (code, found)


def test_an_extra_document_is_found(rig, verify):
    """A document that never existed gives exit code 1, with its id."""
    body = orjson.loads(EVENTS[0][1]) | {"_position": "0000000000000008.0000000000"}
    rig.tamper("index", "77", body=body)
    code, _, found = verify()

    assert (1, [("extra", "77", None, None, None)]) == (code, found)


def test_a_document_that_reappeared_is_found(rig, verify):
    """
    A document that the source's view reports as deleted gives exit code 1, with its id.
    """
    body = orjson.loads(EVENTS[0][1]) | {"_position": "0000000000000008.0000000000"}
    rig.tamper("index", "12", body=body)
    code, _, found = verify()

    assert (1, [("extra", "12", None, None, None)]) == (code, found)


def test_an_aggregate_with_an_unknown_type_is_compared(make):
    """
    A view's row counts unless its type is a delete type; null counts too.

    No list of types decides, because a new type may appear while rows are being read.
    """
    rig = make()
    with Source(rig.settings.database.dsn) as source:
        table = Tables(rig.sink, rig.settings, source, Unannounced()).of(rig.route)
        with psycopg.connect(rig.settings.database.dsn) as connection:
            connection.execute(
                "create or replace view shop.order_documents as select * from (values"
                " (1::bigint, 'Brand New', '{}'::jsonb), (2, null, '{}'),"
                " (3, 'OrderDeleted', '{}')) as v (aggregate_id, type, payload)"
            )
        found = [row[0] for rows in source.rows(table) for row in rows]

    assert ["1", "2"] == found


def test_a_view_may_return_its_documents_as_bytes(rig, verify, database):
    """The bytes are read as UTF-8 text."""
    with psycopg.connect(database) as connection:
        connection.execute("""
            alter view shop.order_documents rename to documents;
            create view shop.order_documents as
            select aggregate_id, type, convert_to(payload::text, 'UTF8') as payload
              from shop.documents
        """)
    rig.tamper("delete", "10")
    code, route, found = verify()

    assert (1, [("missing", "10", None, None, None)]) == (code, found)
    assert (3, None) == (route["source_rows"], route["error"])


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (
            "id, type, payload",
            "lacks the column aggregate_id: it must have aggregate_id, ",
        ),
        (
            "aggregate_id",
            "lacks the columns type, payload: it must have aggregate_id, ",
        ),
        (
            "aggregate_id, type, case aggregate_id when 10 then 'paid' end as payload",
            "returns invalid JSON as the payload of the aggregate 10",
        ),
    ],
)
def test_a_view_with_missing_columns_or_invalid_json_is_reported(
    verify, database, columns, reason
):
    """Only the route has the error; the exit code is 3, and there is no difference."""
    with psycopg.connect(database) as connection:
        connection.execute(f"""
            alter view shop.order_documents rename to documents;
            create view shop.order_documents as select {columns}
              from (select *, aggregate_id as id from shop.documents) documents
        """)  # noqa: S608 - the test's own
    code, route, found = verify()

    assert (3, [], True) == (code, found, reason in route["error"])


def test_a_topic_without_a_view_cannot_be_verified(make, capsys):
    """The error names the route's topic and the setting for its view."""
    rig = make(topic="invoice")
    code = verifier.verify(rig.config, "it", VerifyOptions(as_json=True))
    (route,) = json.loads(capsys.readouterr().out)["routes"]

    assert (3, True) == (code, "outbox.event.invoice" in route["error"])
    assert "relay.outbox.view" in route["error"]
