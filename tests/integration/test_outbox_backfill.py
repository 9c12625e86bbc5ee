"""Outbox topics filled from aggregate views, with a real source, relay and Kafka."""

import json
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Message

from support.invisible_commits import late_commits, wait_for_standby
from support.snapshots import SnapshotRig
from support.topics import headers_of
from support.writers import RandomWriters

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

NOTHING = b"null"

# Orders with lines record events by inserting and deleting outbox rows; customers emit
# logical messages. Each write raises the aggregate's version, and a recreated order
# gets a higher version than it ever had.
SCHEMA = """
create schema shop;
create sequence shop.made;
create table shop."order" (id bigint primary key, version int not null, status text);
create table shop.line (order_id bigint, number int, sku text,
    primary key (order_id, number));
create table shop.customer (id uuid primary key, version int not null, name text);
create view shop.order_state as
select 'OrderState'::text as type, o.id as aggregate_id,
    jsonb_build_object('version', o.version, 'status', o.status, 'lines', (
        select coalesce(jsonb_agg(l.sku order by l.number), '[]') from shop.line l
        where l.order_id = o.id)) as payload
from shop."order" o;
create view shop.customer_state as
select id as aggregate_id, 'CustomerState'::varchar(20) as type,
    json_build_object('version', version, 'name', name) as payload
from shop.customer;
create function shop.record(type text, kind text, id text, payload jsonb) returns void
language sql as $$
    with recorded as (
        insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload)
        values (gen_random_uuid(), kind, id, type, payload::json) returning 1
    ) select from recorded
$$;
create function shop.record_of_order(type text, order_id bigint, payload jsonb)
returns void
language sql as $$
    select shop.record(type, 'order', order_id::text, payload);
    delete from towpath.outbox where aggregate_id = order_id::text;
$$;
create function shop.record_of_customer(type text, id uuid, payload json) returns void
language sql as $$
    select pg_logical_emit_message(true, 'towpath.outbox', json_build_object(
        'id', gen_random_uuid(), 'aggregate_type', 'customer', 'aggregate_id', id,
        'type', type, 'payload', payload)::text)
$$;
"""
VIEWS = """
[[relay.outbox.view]]
aggregate_type = "order"
view = "shop.order_state"
id_form = "integer"
state_types = ["OrderChanged"]
[[relay.outbox.view]]
aggregate_type = "customer"
view = "shop.customer_state"
id_form = "uuid"
state_types = ["CustomerChanged"]
"""


@dataclass(frozen=True, order=True)
class Event:
    """One record of an outbox topic, ordered by key and position."""

    key: str
    position: str
    type: str
    snapshot: str
    value: bytes

    @property
    def version(self) -> int:
        """The version of the aggregate's state; -1 if the aggregate is deleted."""
        document = json.loads(self.value)
        return -1 if document is None else int(document["version"])


class Shop(SnapshotRig):
    """A database with aggregates, its relay, and the relay's topics."""

    def begin(self, views: str = VIEWS) -> None:
        """Prepare the database, and start the relay."""
        self.configure(
            f"""
{self.outbox}
[relay.snapshot]
chunk_rows = 100
{views}
[[sink]]
name = "search2"
kind = "search"
url = "http://127.0.0.1:1"
[[sink.route]]
topic = "{self.prefix}.shop.order"
name = "a-2"
"""
        )
        self.init()
        self.start()

    def request(self, signal_id: str, *aggregates: str, **data: object) -> None:
        """Request snapshots of aggregates."""
        collections = [f"outbox.{name}" for name in aggregates]
        self.signal(signal_id, **{"data_collections": collections} | data)

    def state(self, view: str) -> dict[str, Any]:
        """Return the documents of a view, which a consumer should end up with."""
        statement = f"select aggregate_id::text, payload from shop.{view}"  # noqa: S608 - the test's own
        return dict(self.connection.execute(statement).fetchall())

    def events(self, aggregate_type: str, target: str = "") -> list[Event]:
        """Read a topic from beginning to end, in the order of delivery."""
        name = f"event.{aggregate_type}"
        records = self.records(f"{name}.backfill.{target}" if target else name)
        return [_event(record) for record in records]


def _event(record: Message) -> Event:
    found_headers = headers_of(record)
    return Event(
        key=record.key().decode(),
        position=found_headers["position"],
        type=found_headers.get("type", ""),
        snapshot=found_headers.get("snapshot", ""),
        value=record.value() or NOTHING,
    )


def fold(events: list[Event]) -> dict[str, Any]:
    """Return the documents of a consumer that applied each key's events in order."""
    documents: dict[str, Any] = {}
    for event in sorted(events):
        document = json.loads(event.value)
        is_whole = event.snapshot or event.type.endswith("Changed")
        if document is None:
            documents.pop(event.key, None)
        elif is_whole:
            documents[event.key] = document
        elif event.key in documents:
            documents[event.key] |= document
    return documents


def stale(events: list[Event]) -> list[str]:
    """
    Return the keys with a READ event whose state is older than a preceding event's.
    """
    found = []
    for key, group in groupby(sorted(events), key=lambda event: event.key):
        versions = [e.version for e in group if e.version >= 0 or not e.snapshot]
        known = [version for version in versions if version >= 0]
        found += [key for before, after in pairwise(known) if after < before]
    return found


def overtaken(delivered: list[Event]) -> list[str]:
    """
    Return the keys of READ events delivered after an event with a higher position.
    """
    highest: dict[str, str] = {}
    found = []
    for event in delivered:
        if event.snapshot and event.position < highest.get(event.key, ""):
            found.append(event.key)
        highest[event.key] = max(event.position, highest.get(event.key, ""))
    return found


@pytest.fixture
def shop(stack, database: str, unique: str, tmp_path: Path) -> Iterator[Shop]:
    """Provide a shop with orders and customers."""
    stack.up("postgres", "kafka")
    shop = Shop(database, stack.kafka, unique, tmp_path)
    # The functions use the outbox, which is created when the relay is prepared.
    shop.connection.execute("set check_function_bodies = off")
    shop.connection.execute(SCHEMA)
    yield shop
    shop.close()


def fill(shop: Shop, count: int) -> None:
    """Insert aggregates before the slot exists, so that they have no events."""
    shop.connection.execute(
        "insert into shop.\"order\" select g, 1, 'old' from generate_series(1, %s) g",
        (count,),
    )
    shop.connection.execute(
        "insert into shop.line select g, n, 'sku-' || n from generate_series(1, %s) g,"
        " generate_series(1, 2) n",
        (count,),
    )
    shop.connection.execute(
        "insert into shop.customer select md5(g::text)::uuid, 1, 'old' from"
        " generate_series(1, %s) g",
        (count // 2,),
    )


# Each write is a transaction that locks the aggregate's row and records an event.
ORDER_WRITES = (
    """
    update shop."order" set version = version + 1, status = 'new' where id = %(id)s;
    insert into shop.line select id, version + 100, 'more' from shop."order"
        where id = %(id)s;
    select shop.record_of_order('OrderChanged', aggregate_id, payload)
        from shop.order_state where aggregate_id = %(id)s
    """,
    """
    update shop."order" set version = version + 1, status = 'paid' where id = %(id)s;
    select shop.record_of_order('OrderPaid', id, jsonb_build_object(
        'version', version, 'status', status)) from shop."order" where id = %(id)s
    """,
    """
    with gone as (delete from shop."order" where id = %(id)s returning id)
    select shop.record_of_order('OrderDropped', id, null) from gone;
    delete from shop.line where order_id = %(id)s
        and not exists (select from shop."order" where id = %(id)s)
    """,
    """
    with made as (insert into shop."order"
        values (%(id)s, 10000 * nextval('shop.made'), 'made')
        on conflict do nothing returning id, version)
    select shop.record_of_order('OrderChanged', id, jsonb_build_object(
        'version', version, 'status', 'made', 'lines', '[]'::jsonb)) from made
    """,
)
CUSTOMER_WRITES = (
    """
    with new as (update shop.customer set version = version + 1, name = 'new'
        where id = md5(%(id)s::text)::uuid returning *)
    select shop.record_of_customer('CustomerChanged', id, json_build_object(
        'version', version, 'name', name)) from new
    """,
    """
    with new as (update shop.customer set version = version + 1, name = 'seen'
        where id = md5(%(id)s::text)::uuid returning *)
    select shop.record_of_customer('CustomerSeen', id, json_build_object(
        'version', version, 'name', name)) from new
    """,
)


class Writers(RandomWriters):
    """Sessions that make random writes until they are stopped."""

    def change(self, connection: psycopg.Connection, rng: random.Random) -> None:
        order = rng.choice([*ORDER_WRITES[:2] * 3, *ORDER_WRITES])
        for statements in (order, rng.choice(CUSTOMER_WRITES)):
            key = {"id": rng.randint(1, self.highest)}
            with connection.transaction():
                for statement in statements.split(";"):
                    connection.execute(statement, key)


@pytest.mark.parametrize("target", ["", "search2"])
def test_topics_that_are_filled_during_writes_converge_to_their_views(
    shop: Shop, target: str
):
    """
    No state is stale, lost or resurrected, even if the relay is killed (I5).
    """
    fill(shop, 2_000)
    shop.begin()
    options = {"target": target} if target else {}
    with Writers(shop.dsn, 2_000) as writers:
        shop.wait_for(lambda: writers.writes > 30)
        shop.request("s1", "order", "customer", max_rows_per_second=1_000, **options)
        shop.wait_for(lambda: shop.handled_rows() >= 500)
        shop.kill()
        shop.start()
        detail = shop.wait_for_answer("s1")
    shop.confirm()
    events = {name: shop.events(name) for name in ("order", "customer")}
    reads = {name: shop.events(name, target) for name in events} if target else {}
    both = {name: [*events[name], *reads.get(name, [])] for name in events}

    assert detail["rows"] > 1_000
    assert ([], []) == (stale(both["order"]), stale(both["customer"]))
    assert ([], []) == (overtaken(events["order"]), overtaken(events["customer"]))
    assert bool(target) is not any(event.snapshot for event in events["order"])
    assert shop.state("customer_state") == fold(both["customer"])

    assert shop.state("order_state") == fold(both["order"])


def test_listed_aggregates_are_read_and_missing_ones_get_tombstones(shop: Shop):
    """
    The server normalizes the keys; a missing aggregate gets a tombstone.
    """
    fill(shop, 100)
    shop.begin()
    shop.request("s1", "order", keys=[["007"], ["9000"], ["12"]])
    shop.wait_for_answer("s1")
    events = {event.key: event for event in shop.events("order")}

    assert {"7", "9000", "12"} == events.keys()
    assert ("", NOTHING) == (events["9000"].type, events["9000"].value)
    assert {"s1"} == {event.snapshot for event in events.values()}

    assert shop.state("order_state")["7"] == json.loads(events["7"].value)


@pytest.fixture
def late(shop: Shop) -> Iterator[Callable[[str], None]]:
    """Provide a function whose commits are in the WAL, but not yet visible."""
    with late_commits(shop) as commit:
        yield commit


def begin_slowly(shop: Shop, count: int) -> None:
    """Begin to fill the orders' topic; the last order is read only seconds later."""
    fill(shop, count)
    shop.begin()
    shop.request("s1", "order", max_rows_per_second=400)
    shop.wait_for(lambda: shop.handled_rows() > 100)


def wait_for_events(shop: Shop, count: int) -> None:
    """Wait until the orders' topic has at least ``count`` streamed events."""
    shop.wait_for(
        lambda: count <= sum(not event.snapshot for event in shop.events("order"))
    )


def test_outdated_states_of_invisible_commits_are_dropped(
    shop: Shop, late: Callable[[str], None]
):
    """
    A state is dropped if the commit of a streamed event is not visible in it (B17).
    """
    begin_slowly(shop, 2_000)
    late(
        'update shop."order" set version = 2 where id = 1995;'
        "select shop.record_of_order('OrderChanged', 1995, '{\"version\": 2}')"
    )
    late(
        'delete from shop."order" where id = 1996;'
        "select shop.record('OrderChanged', 'order', '1996', null)"
    )
    wait_for_events(shop, 2)
    [outdated] = shop.connection.execute(
        "select count(*) from shop.order_state where aggregate_id in (1995, 1996)"
        " and payload ->> 'version' = '1'"
    ).fetchone()
    detail = shop.wait_for_answer("s1")
    events = [event for event in shop.events("order") if event.key in {"1995", "1996"}]

    assert (2, 2) == (outdated, detail["dropped"])

    assert ["OrderChanged", "OrderChanged"] == [event.type for event in events]


def test_a_state_dropped_for_a_partial_event_is_read_once_it_is_visible(
    shop: Shop, late: Callable[[str], None]
):
    """
    The snapshot waits for the row, as the event does not have the whole aggregate.
    """
    begin_slowly(shop, 2_000)
    late(
        "update shop.\"order\" set version = 2, status = 'paid' where id = 1995;"
        "select shop.record_of_order('OrderPaid', 1995, '{\"version\": 2}')"
    )
    wait_for_events(shop, 1)
    shop.wait_for(lambda: shop.handled_rows() >= 2_000)
    wait_for_standby(shop, "")
    shop.wait_for_answer("s1")
    events = [event for event in shop.events("order") if event.key == "1995"]

    assert ["OrderPaid", "OrderState"] == [event.type for event in events]

    assert shop.state("order_state")["1995"] == fold(events)["1995"]


def test_an_id_with_a_different_spelling_means_the_same_aggregate(
    shop: Shop, late: Callable[[str], None]
):
    """
    The event keeps its key, but it still drops the outdated state.
    """
    begin_slowly(shop, 2_000)
    late(
        'update shop."order" set version = 2 where id = 1995;'
        "select shop.record('OrderChanged', 'order', '+01995', '{\"version\": 2}')"
    )
    wait_for_events(shop, 1)
    shop.wait_for(lambda: shop.handled_rows() >= 2_000)
    wait_for_standby(shop, "")
    shop.wait_for_answer("s1")
    events = [e for e in shop.events("order") if e.key in {"1995", "+01995"}]

    assert [("+01995", 2), ("1995", 2)] == [(e.key, e.version) for e in sorted(events)]


def claim_states(dsn: str, highest: int, is_over: threading.Event) -> None:
    """Emit states that no row ever has, in non-transactional messages."""
    rng = random.Random(7)  # noqa: S311 - no secret
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not is_over.is_set():
            values = {
                "id": str(uuid.uuid4()),
                "aggregate_type": "order",
                "aggregate_id": rng.randint(1, highest),
                "type": "OrderChanged",
                "payload": {"version": 1, "status": "never"},
            }
            connection.execute(
                "select pg_logical_emit_message(false, 'towpath.outbox', %s)",
                (json.dumps(values),),
            )


def test_a_non_transactional_message_never_counts_as_a_whole_state(shop: Shop):
    """
    Its writer may roll back, so states that were read in its window are read again.
    """
    fill(shop, 2_000)
    shop.begin()
    is_over = threading.Event()
    arguments = (shop.dsn, 2_000, is_over)
    claiming = threading.Thread(target=claim_states, args=arguments)
    claiming.start()
    try:
        shop.request("s1", "order", max_rows_per_second=1_000)
        shop.wait_for(lambda: shop.handled_rows() >= 2_000)
    finally:
        is_over.set()
        claiming.join()
    detail = shop.wait_for_answer("s1")
    shop.confirm()
    delivered = shop.events("order")

    assert [] == overtaken(delivered)
    assert detail["dropped"] > 0

    assert {str(key) for key in range(1, 2_001)} == {
        event.key for event in delivered if event.snapshot
    }


ODD = (
    "select {id} as aggregate_id, {type}::text as type, {payload}::json as payload"
    ' from shop."order"'
)
SOUND = {"id": "id", "type": "'S'", "payload": "'1'"}
REFUSED = {
    "two rows": ("{} union all select 7, 'S', '2'", {}, "two rows with the key ['7']"),
    "two rows at a chunk's end": (
        "{} union all select 100, 'S', '2'",
        {},
        "two rows with the key ['100']",
    ),
    "a null id": ("{}", {"id": "nullif(id, 7)"}, "a row has no key"),
    "a volatile function": (
        "{}",
        {"payload": "to_json(random())"},
        "it calls random(), which is volatile",
    ),
    "too slow": ("{}", {"type": "shop.wait()"}, "even the smallest chunk takes longer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_ambiguous_view_is_refused_with_its_reason(shop: Shop, name: str):
    """
    The snapshot fails on duplicate or missing keys, volatile functions and timeouts.
    """
    statement, parts, reason = REFUSED[name]
    fill(shop, 200)
    shop.connection.execute(
        "create function shop.wait() returns text stable language plpgsql as"
        " $$ begin raise query_canceled; end $$"
    )
    state = statement.format(ODD.format(**SOUND | parts))
    shop.connection.execute(f"create view shop.odd as {state}")
    shop.begin(VIEWS.replace("shop.order_state", "shop.odd"))
    shop.request("s1", "order")
    detail = shop.wait_for_answer("s1", "failed", "rejected")
    found = detail.get("refused") or {
        name: table["reason"] for name, table in detail["tables"].items()
    }

    assert reason in found["outbox.order"]


def test_an_undeclared_view_is_refused(shop: Shop):
    """
    The other views of the same signal are still read.
    """
    fill(shop, 20)
    shop.begin()
    shop.request("s1", "invoice", "order")
    shop.wait_for_answer("s1", "failed")

    assert 20 == len(shop.events("order"))
