"""
Invariants of the shop: whether money, stock, parcels and orders agree, in any store.

Each store is read as its users read it, independently of the other stores: the database
by SQL, the cache by its keys, the search index by its documents, and the warehouse by
its files. Each store becomes ``StoreContents``, and the same rules apply to all. They
hold once every order is settled and every sink has applied the stream:

- every order is completed, cancelled or returned; an order from before the run may
  still be placed;
- each completed order, and no other, has a captured payment, which equals its total;
- every unit of a product is on hand, reserved or sold; reserved units belong to orders
  that are still placed, and sold units to completed orders;
- a parcel was dispatched for each completed or returned order, and for no other;
- each order of the run has exactly one ``OrderPlaced`` event, and each such event has
  an order; older orders need no event.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple

import psycopg
import redis
from opensearchpy import OpenSearch, helpers
from psycopg.rows import namedtuple_row
from pyiceberg.catalog import Catalog

COMPLETED: Final = "completed"
RETURNED: Final = "returned"
CANCELLED: Final = "cancelled"
PLACED: Final = "placed"
_FINAL: Final = (COMPLETED, CANCELLED, RETURNED)
_CAPTURED: Final = "captured"
_DISPATCHED: Final = "dispatched"

_TIMEOUT_S: Final = 30.0
# The number of keys or documents that are read from a store at a time.
_ROWS_PER_READ: Final = 2_000
# A finding names at most this many of the rows that violate its rule.
_NAMED: Final = 3


class OrderRow(NamedTuple):
    """An order: its status and its total."""

    status: str
    total: Decimal


class Units(NamedTuple):
    """The units of a product; ``received`` is the sum of the others."""

    received: int
    on_hand: int
    reserved: int
    sold: int


class PaymentRow(NamedTuple):
    """A payment: its status and its amount."""

    status: str
    amount: Decimal


@dataclass(slots=True)
class StoreContents:
    """
    The shop as one store shows it.

    Attributes:
        orders: Every order, by its number.
        sold: The units of each product in completed orders.
        held: The units of each product in placed orders.
        products: The units of each product.
        payments: Every payment, by its order.
        shipments: The status of every shipment, by its order.
        placements: The number of ``OrderPlaced`` events of each order, or None if the
            store has no events.
    """

    orders: dict[int, OrderRow] = field(default_factory=dict)
    sold: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    products: dict[str, Units] = field(default_factory=dict)
    payments: dict[int, PaymentRow] = field(default_factory=dict)
    shipments: dict[int, str] = field(default_factory=dict)
    placements: Counter[int] | None = None

    def add_line(self, status: str, product: str, quantity: int) -> None:
        """Count an order line as sold or held, by the status of its order."""
        if status == COMPLETED:
            self.sold[product] += quantity
        elif status == PLACED:
            self.held[product] += quantity

    def add_line_of(self, number: int, product: str, quantity: int) -> None:
        """Count a line by its order's status; skip it if the store lacks the order."""
        order = self.orders.get(number)
        if order is not None:
            self.add_line(order.status, product, quantity)


def findings(contents: StoreContents, first_order: int) -> list[str]:
    """
    Return a sentence for each rule that a store violates.

    Args:
        contents: The shop as the store shows it.
        first_order: The first order of the load; older ones may still be placed, and
            need no event.
    """
    rules = (
        ("orders are not final", _open_orders(contents, first_order)),
        ("payments differ from completed orders", _wrong_payments(contents)),
        ("products have units that do not add up", _wrong_sums(contents)),
        ("products differ in reserved and placed units", _wrong_holds(contents)),
        ("products differ in sold and ordered units", _wrong_sales(contents)),
        ("parcels differ from orders", _wrong_parcels(contents)),
        (
            "orders differ from their OrderPlaced events",
            _wrong_placements(contents, first_order),
        ),
    )
    found = []
    for sentence, wrong in rules:
        named = list(wrong)
        if named:
            first = ", ".join(map(str, named[:_NAMED]))
            found.append(f"{len(named):,} {sentence}: {first}")
    return found


def _open_orders(contents: StoreContents, first_order: int) -> Iterator[str]:
    for number, order in contents.orders.items():
        is_old = number < first_order and order.status == PLACED
        if order.status not in _FINAL and not is_old:
            yield f"order {number} is {order.status}"


def _wrong_payments(contents: StoreContents) -> Iterator[str]:
    captured = {
        number: payment.amount
        for number, payment in contents.payments.items()
        if payment.status == _CAPTURED
    }
    wanted = {
        number: order.total
        for number, order in contents.orders.items()
        if order.status == COMPLETED
    }
    for number in captured.keys() | wanted.keys():
        if captured.get(number) != wanted.get(number):
            yield (
                f"order {number} costs {wanted.get(number, 0)},"
                f" captured {captured.get(number, 0)}"
            )


def _wrong_sums(contents: StoreContents) -> Iterator[str]:
    for product, units in contents.products.items():
        held = (units.on_hand, units.reserved, units.sold)
        if sum(held) != units.received or min(held) < 0:
            yield f"product {product}: {units}"


def _wrong_holds(contents: StoreContents) -> Iterator[str]:
    for product in contents.products.keys() | contents.held.keys():
        units = contents.products.get(product)
        reserved = units.reserved if units else 0
        if reserved != contents.held[product]:
            placed = contents.held[product]
            yield f"product {product}: {reserved} reserved, {placed} placed"


def _wrong_sales(contents: StoreContents) -> Iterator[str]:
    for product in contents.products.keys() | contents.sold.keys():
        units = contents.products.get(product)
        sold = units.sold if units else 0
        if sold != contents.sold[product]:
            yield f"product {product}: {sold} sold, {contents.sold[product]} ordered"


def _wrong_parcels(contents: StoreContents) -> Iterator[str]:
    sent = {n for n, status in contents.shipments.items() if status == _DISPATCHED}
    wanted = {
        n
        for n, order in contents.orders.items()
        if order.status in (COMPLETED, RETURNED)
    }
    for number in sent ^ wanted:
        yield f"order {number}"


def _wrong_placements(contents: StoreContents, first_order: int) -> Iterator[str]:
    if contents.placements is None:
        return
    taken = {number for number in contents.orders if number >= first_order}
    for number in taken | contents.placements.keys():
        found = contents.placements[number]
        # An older order was seeded, without an event, or placed by an earlier load.
        is_older = number < first_order and number in contents.orders
        if found != (1 if number in taken else 0) and not (is_older and found == 1):
            yield f"order {number}: {found} events"


_SOURCE_ORDERS: Final = "select id, status::text, total from shop.orders"
_SOURCE_LINES: Final = """
select status::text, product_id::text, sum(quantity)::bigint
  from shop.order_lines join shop.orders on id = order_id
 where status in ('completed', 'placed')
 group by 1, 2
"""
_SOURCE_PRODUCTS: Final = (
    "select id::text, received, on_hand, reserved, sold from inventory.products"
)
_SOURCE_PAYMENTS: Final = "select order_id, status, amount from payments.payments"
_SOURCE_SHIPMENTS: Final = "select order_id, status from shipping.shipments"


def read_source(dsn: str) -> StoreContents:
    """
    Read the database, in one snapshot.

    Raises:
        psycopg.Error: The database does not answer.
    """
    with psycopg.connect(dsn, row_factory=namedtuple_row) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        read = connection.execute
        contents = StoreContents(
            orders={number: OrderRow(*row) for number, *row in read(_SOURCE_ORDERS)},
            products={id_: Units(*row) for id_, *row in read(_SOURCE_PRODUCTS)},
            payments={
                number: PaymentRow(*row) for number, *row in read(_SOURCE_PAYMENTS)
            },
            shipments=dict(read(_SOURCE_SHIPMENTS).fetchall()),
        )
        for line in read(_SOURCE_LINES):
            contents.add_line(*line)
    return contents


def read_cache(url: str, prefix: str) -> StoreContents:
    """
    Read the hashes of a cache, which are found by the names of their keys.

    Args:
        url: The server.
        prefix: The prefix of the cache's keys, such as ``towpath``.

    Raises:
        redis.RedisError: The server does not answer.
    """
    with redis.Redis.from_url(
        url, decode_responses=True, socket_timeout=_TIMEOUT_S
    ) as client:
        hashes = _Hashes(client, prefix)
        contents = StoreContents(
            orders={
                int(row["id"]): OrderRow(row["status"], Decimal(row["total"]))
                for row in hashes.read("orders", "id", "status", "total")
            },
            products={
                row["id"]: Units(*(int(row[name]) for name in Units._fields))
                for row in hashes.read("products", "id", *Units._fields)
            },
            payments={
                int(row["order_id"]): PaymentRow(row["status"], Decimal(row["amount"]))
                for row in hashes.read("payments", "order_id", "status", "amount")
            },
            shipments={
                int(row["order_id"]): row["status"]
                for row in hashes.read("shipments", "order_id", "status")
            },
        )
        lines = hashes.read("order_lines", "order_id", "product_id", "quantity")
        for row in lines:
            number, quantity = int(row["order_id"]), int(row["quantity"])
            contents.add_line_of(number, row["product_id"], quantity)
    return contents


class _Hashes:
    """The rows of a cache's tables: each row is a hash; an absent field means null."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def read(self, table: str, *columns: str) -> Iterator[dict[str, str]]:
        """Yield the columns of each row; the hash of a deleted row has none of them."""
        keys: list[str] = []
        seen: set[str] = set()
        pattern = f"{self._prefix}:{table}:*"
        for key in self._client.scan_iter(pattern, count=_ROWS_PER_READ):
            # A scan may return a key more than once.
            if key in seen:
                continue
            seen.add(key)
            keys.append(key)
            if len(keys) == _ROWS_PER_READ:
                yield from self._rows(keys, columns)
                keys.clear()
        yield from self._rows(keys, columns)

    def _rows(
        self, keys: list[str], columns: Iterable[str]
    ) -> Iterator[dict[str, str]]:
        names = list(columns)
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.hmget(key, names)
        for values in pipeline.execute():
            if values[0] is not None:
                yield dict(zip(names, values, strict=True))


def read_search(url: str, index: str = "orders") -> StoreContents:
    """
    Read the documents of a search cluster.

    Args:
        url: The server.
        index: The index of orders; other indexes are named after their tables.

    Raises:
        opensearchpy.OpenSearchException: The server does not answer.
    """
    client = OpenSearch(url, timeout=_TIMEOUT_S)
    try:
        contents = StoreContents(
            products={
                row["id"]: Units(*(row[name] for name in Units._fields))
                for row in _documents(client, "products", "id", *Units._fields)
            },
            payments={
                row["order_id"]: PaymentRow(row["status"], Decimal(str(row["amount"])))
                for row in _documents(
                    client, "payments", "order_id", "status", "amount"
                )
            },
            shipments={
                row["order_id"]: row["status"]
                for row in _documents(client, "shipments", "order_id", "status")
            },
        )
        wanted = ("order_id", "status", "total", "lines")
        for row in _documents(client, index, *wanted):
            number = int(row["order_id"])
            contents.orders[number] = OrderRow(
                row["status"], Decimal(str(row["total"]))
            )
            for line in row["lines"]:
                contents.add_line(row["status"], line["product_id"], line["quantity"])
    finally:
        client.close()
    return contents


def _documents(
    client: OpenSearch, index: str, *columns: str
) -> Iterator[Mapping[str, Any]]:
    client.indices.refresh(index=index)
    query = {"_source": list(columns), "query": {"match_all": {}}}
    for hit in helpers.scan(client, query=query, index=index, size=_ROWS_PER_READ):
        yield hit["_source"]


def read_warehouse(catalog: Catalog) -> StoreContents:
    """
    Read the tables of a warehouse, and the log of its events.

    Raises:
        Exception: One of pyiceberg's: the catalog or its storage does not answer.
    """
    tables = _IcebergTables(catalog)
    contents = StoreContents(
        orders={
            row["id"]: OrderRow(row["status"], row["total"])
            for row in tables.read("shop.orders", "id", "status", "total")
        },
        products={
            str(row["id"]): Units(*(row[name] for name in Units._fields))
            for row in tables.read("inventory.products", "id", *Units._fields)
        },
        payments={
            row["order_id"]: PaymentRow(row["status"], row["amount"])
            for row in tables.read("payments.payments", "order_id", "status", "amount")
        },
        shipments={
            row["order_id"]: row["status"]
            for row in tables.read("shipping.shipments", "order_id", "status")
        },
        placements=tables.placements(),
    )
    lines = tables.read("shop.order_lines", "order_id", "product_id", "quantity")
    for row in lines:
        contents.add_line_of(row["order_id"], str(row["product_id"]), row["quantity"])
    return contents


class _IcebergTables:
    """The current rows of a catalog's tables."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def read(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """Return the columns of each row that is not deleted."""
        scan = self._catalog.load_table(table).scan(
            row_filter="_is_deleted = false", selected_fields=columns
        )
        rows: list[dict[str, Any]] = scan.to_arrow().to_pylist()
        return rows

    def placements(self) -> Counter[int]:
        """Count the ``OrderPlaced`` events of each order."""
        scan = self._catalog.load_table("shop.events").scan(
            row_filter="type = 'OrderPlaced'", selected_fields=("payload",)
        )
        payloads = scan.to_arrow().column("payload").to_pylist()
        return Counter(json.loads(payload)["order_id"] for payload in payloads)
