"""The verifier against a search index that follows events: every planted defect."""

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
           case status when 'gone' then 'OrderDeleted' else 'OrderSaid' end as type,
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
    """No table is announced: none is read here."""

    def __init__(self, *_):
        """Know nothing."""

    def close(self):
        """Nothing is open."""


class AtRest:
    """Nothing is on its way: nobody is waited for."""

    def __init__(self, *_, **_parts):
        """Look at nothing."""

    def wait(self, poll=None):
        """The sink has everything."""

    def wait_until_seen(self):
        """Return at once: there is no writer."""


class Place:
    """An index filled by events, and the hand that alters it."""

    def __init__(self, config):
        self.config = config
        self.settings = load(config, {})
        (self.sink,) = self.settings.sink
        (self.route,) = self.sink.route

    def fill(self):
        """Carry the events into the index, as a batch does."""
        records = [
            Record(
                Origin(self.route.topic, 0, number),
                key.encode(),
                text,
                {"type": b"OrderSaid", "position": b"%016x.0000000000" % (8 + number)},
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

    def hand(self, name, key, **arguments):
        """Do something to a document behind the sink's back."""
        client = OpenSearch(self.sink.url)
        getattr(client, name)(index=self.route.name, id=key, **arguments)
        client.close()


@pytest.fixture
def make(stack, database, unique, tmp_path, monkeypatch):
    """Give a function that makes a place, at rest."""
    monkeypatch.setattr(verifier, "CatchUpWaiter", AtRest)
    monkeypatch.setattr(verifier, "ProgressTopic", lambda *_: MemoryProgress(CLOCK))
    monkeypatch.setattr(verifier, "KafkaRelations", Unannounced)
    with psycopg.connect(database) as connection:
        connection.execute(SHOP)

    def place(topic="order"):
        config = tmp_path / "towpath.toml"
        text = CONFIGURATION.format(
            folder=tmp_path,
            dsn=database,
            url=stack.opensearch_url,
            unique=unique,
            topic=topic,
        )
        config.write_text(text)
        return Place(config)

    return place


@pytest.fixture
def place(make):
    """Provide a filled place."""
    made = make()
    made.fill()
    return made


@pytest.fixture
def verify(place, capsys):
    """Verify the place; return the exit code, the route's report and differences."""

    def run():
        code = verifier.verify(place.config, "it", VerifyOptions(as_json=True))
        (route,) = json.loads(capsys.readouterr().out)["routes"]
        found = [tuple(d.values()) for d in route["first"]]
        return code, route, found

    return run


def test_an_index_that_holds_every_document_is_equal(verify):
    """Numbers of any length, nulls, lists and a deleted aggregate compare equal."""
    code, route, found = verify()

    assert (0, [], "shop.order_documents") == (code, found, route["table"])
    assert (3, 3, 1) == (route["source_rows"], route["sink_rows"], route["tombstones"])


def test_a_changed_value_is_found_inside_the_document(place, verify):
    """One line's number altered by hand: exit 1, with its path and both values."""
    place.hand("update", "7", body={"doc": {"lines": [{"no": 2}]}})
    code, _, found = verify()

    assert (1, [("changed", "7", "lines[0].no", "1", "2")]) == (code, found)


def test_a_digit_that_no_double_holds_is_found(verify, database):
    """The source's twentieth digit counts."""
    with psycopg.connect(database) as connection:
        connection.execute(
            "update shop.orders set total = 1.00000000000000000002 where id = 10"
        )
    code, _, found = verify()
    one, two = "1.00000000000000000001", "1.00000000000000000002"

    assert (1, [("changed", "10", "total", two, one)]) == (code, found)


def test_a_missing_document_is_found(place, verify):
    """A document taken out by hand: exit 1, with its id."""
    place.hand("delete", "10")
    code, _, found = verify()

    assert (1, [("missing", "10", None, None, None)]) == (code, found)


def test_an_extra_document_is_found(place, verify):
    """A document that never was: exit 1, with its id."""
    body = orjson.loads(EVENTS[0][1]) | {"_position": "0000000000000008.0000000000"}
    place.hand("index", "77", body=body)
    code, _, found = verify()

    assert (1, [("extra", "77", None, None, None)]) == (code, found)


def test_a_document_that_came_back_is_found(place, verify):
    """The source's view says that it is deleted: exit 1, with its id."""
    body = orjson.loads(EVENTS[0][1]) | {"_position": "0000000000000008.0000000000"}
    place.hand("index", "12", body=body)
    code, _, found = verify()

    assert (1, [("extra", "12", None, None, None)]) == (code, found)


def test_an_aggregate_whose_type_was_never_seen_is_compared(make):
    """
    A view's row counts by what its type is not, null too, and not by a list of types.

    The first of a type may come while the rest is being read.
    """
    place = make()
    with Source(place.settings.database.dsn) as source:
        table = Tables(place.sink, place.settings, source, Unannounced()).of(
            place.route
        )
        with psycopg.connect(place.settings.database.dsn) as connection:
            connection.execute(
                "create or replace view shop.order_documents as select * from (values"
                " (1::bigint, 'Brand New', '{}'::jsonb), (2, null, '{}'),"
                " (3, 'OrderDeleted', '{}')) as v (aggregate_id, type, payload)"
            )
        found = [row[0] for rows in source.rows(table) for row in rows]

    assert ["1", "2"] == found


def test_a_view_may_give_its_documents_as_bytes(place, verify, database):
    """They are the text that the bytes hold."""
    with psycopg.connect(database) as connection:
        connection.execute("""
            alter view shop.order_documents rename to documents;
            create view shop.order_documents as
            select aggregate_id, type, convert_to(payload::text, 'UTF8') as payload
              from shop.documents
        """)
    place.hand("delete", "10")
    code, route, found = verify()

    assert (1, [("missing", "10", None, None, None)]) == (code, found)
    assert (3, None) == (route["source_rows"], route["error"])


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (
            "id, type, payload",
            "has no column aggregate_id: it must have aggregate_id, ",
        ),
        ("aggregate_id", "has no column type, payload: it must have aggregate_id, "),
        (
            "aggregate_id, type, case aggregate_id when 10 then 'paid' end as payload",
            "returns invalid JSON as the payload of the aggregate 10",
        ),
    ],
)
def test_a_view_that_gives_no_documents_is_reported(verify, database, columns, reason):
    """With the cure, as an error of the one route: exit 3, and no difference."""
    with psycopg.connect(database) as connection:
        connection.execute(f"""
            alter view shop.order_documents rename to documents;
            create view shop.order_documents as select {columns}
              from (select *, aggregate_id as id from shop.documents) documents
        """)  # noqa: S608 - the test's own
    code, route, found = verify()

    assert (3, [], True) == (code, found, reason in route["error"])


def test_a_topic_without_a_view_cannot_be_verified(make, capsys):
    """The route's topic is named, and where its view belongs."""
    place = make(topic="invoice")
    code = verifier.verify(place.config, "it", VerifyOptions(as_json=True))
    (route,) = json.loads(capsys.readouterr().out)["routes"]

    assert (3, True) == (code, "outbox.event.invoice" in route["error"])
    assert "relay.outbox.view" in route["error"]
