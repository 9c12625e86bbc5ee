"""The header ``Towpath-Lsn`` of the orders service, compared with the WAL."""

import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event, text

from towpath.schemas import source_tables
from towpath.schemas.position import parse_lsn
from towpath.services.orders.app import create_app, migrate_shop
from towpath.services.plumbing.http import HEADER

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

LINE = {
    "product_id": "0af76519-16cd-43dd-8448-eb211c80319c",
    "quantity": 2,
    "unit_price": "9.99",
}
ORDERS = 24
THREADS = 4


@pytest.fixture
def app(database, unique):
    """Provide the service with a fresh database, whose WAL a slot retains."""
    app = create_app(database, threads=THREADS)
    engine = app.extensions["engine"]
    migrate_shop(engine)
    with engine.begin() as connection:
        connection.execute(text("create schema towpath"))
        connection.execute(text(source_tables.outbox().create_statement()))
    with engine.begin() as connection:
        connection.execute(text("create publication everything for all tables"))
    with engine.begin() as connection:
        make = text("select pg_create_logical_replication_slot(:name, 'pgoutput')")
        connection.execute(make, {"name": unique})
    yield app
    with engine.begin() as connection:
        drop = text("select pg_drop_replication_slot(:name)")
        connection.execute(drop, {"name": unique})
    engine.dispose()


def register(client):
    """Register a customer, and return its id."""
    body = {"name": "Ada", "email": "ada@example.org"}
    return client.post("/customers", json=body).json["customer_id"]


def commit_ends(app, slot):
    """Read the end LSN of each transaction's commit from the WAL, by transaction id."""
    peek = text(
        "select data from pg_logical_slot_peek_binary_changes(:slot, null, null,"
        " 'proto_version', '1', 'publication_names', 'everything')"
    )
    ends, xid = {}, 0
    with app.extensions["engine"].begin() as connection:
        for (data,) in connection.execute(peek, {"slot": slot}):
            message = bytes(data)
            if message[:1] == b"B":
                (xid,) = struct.unpack(">I", message[17:21])
            elif message[:1] == b"C":
                (ends[xid],) = struct.unpack(">Q", message[10:18])
    return ends


def xids(app):
    """Return the id of the transaction that wrote each order."""
    query = text("select id as order_id, xmin::text::bigint as xid from shop.orders")
    with app.extensions["engine"].begin() as connection:
        return {row.order_id: row.xid for row in connection.execute(query)}


def test_the_header_is_at_or_shortly_after_the_end_of_the_commit(app, unique):
    """
    Many orders are placed concurrently, and each of their headers is checked.
    """
    customer_id = register(app.test_client())
    body = {"customer_id": customer_id, "lines": [LINE]}

    def place(_number):
        response = app.test_client().post("/orders", json=body)
        return response.json["order_id"], parse_lsn(response.headers[HEADER])

    with ThreadPoolExecutor(THREADS) as pool:
        found = dict(pool.map(place, range(ORDERS)))
    ends, wrote = commit_ends(app, unique), xids(app)
    ahead = [found[order] - ends[wrote[order]] for order in found]

    assert ORDERS == len(ahead)
    assert 0 <= min(ahead)
    assert max(ahead) < 1_000_000


def test_the_header_is_correct_without_synchronous_commits(app, unique):
    """
    The LSN is the end of the inserted WAL, which may not be flushed yet.
    """
    engine = app.extensions["engine"]

    @event.listens_for(engine, "connect")
    def _asynchronous(connection, _record):
        with connection.cursor() as cursor:
            cursor.execute("set synchronous_commit = off")
        connection.commit()

    engine.dispose()
    client = app.test_client()
    body = {"customer_id": register(client), "lines": [LINE]}
    headers = {}
    for _ in range(ORDERS):
        response = client.post("/orders", json=body)
        headers[response.json["order_id"]] = parse_lsn(response.headers[HEADER])
    with engine.begin() as connection:
        connection.execute(text("set local synchronous_commit = on"))
        connection.execute(text("update shop.orders set note = 'flushed'"))
    wrote, ends = order_xids(app, unique, headers), commit_ends(app, unique)

    assert ORDERS == len(wrote)
    assert 0 <= min(headers[order] - ends[xid] for order, xid in wrote.items())


def order_xids(app, slot, orders):
    """Return the transaction that placed each order, in the order of the WAL."""
    ends = commit_ends(app, slot)
    # The first transaction registered the customer, and the last one flushed the WAL.
    written = sorted(ends, key=ends.__getitem__)[1:-1]
    return dict(zip(sorted(orders), written, strict=True))


def test_a_replayed_response_has_the_header(app):
    """
    The client of a repeated request can wait for the first write, too.
    """
    client = app.test_client()
    body = {"customer_id": register(client), "lines": [LINE]}
    headers = {"Idempotency-Key": "one"}
    first = client.post("/orders", json=body, headers=headers)
    again = client.post("/orders", json=body, headers=headers)

    assert "true" == again.headers["Idempotent-Replayed"]
    assert parse_lsn(first.headers[HEADER]) <= parse_lsn(again.headers[HEADER])


def test_a_refused_or_read_only_request_has_no_header(app):
    """
    Such a request commits nothing, so there is nothing to wait for.
    """
    client = app.test_client()
    customer_id = register(client)
    refused = client.post("/orders", json={"customer_id": customer_id, "lines": []})
    read = client.get(f"/customers/{customer_id}")

    assert (422, 200) == (refused.status_code, read.status_code)
    assert not {HEADER} & (set(refused.headers.keys()) | set(read.headers.keys()))
