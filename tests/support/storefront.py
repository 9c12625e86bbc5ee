"""The storefront on the shop's services, with sinks that start faster than Spark."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import requests
from confluent_kafka import Consumer
from flask import Flask
from opensearchpy import OpenSearch
from werkzeug.serving import BaseWSGIServer, make_server

from support.forked import Forked
from support.orders_service import Service
from support.published import SinkRun
from support.rig import Rig
from support.saga import Saga
from support.stopping import stop
from support.topics import sink_record
from support.waiting import CLOCK
from towpath.deploy.local import ports
from towpath.deploy.local.configuration import order_documents
from towpath.deploy.local.ports import LOOPBACK
from towpath.deploy.local.stack import LazyStack
from towpath.services.inventory.app import create_app as create_inventory
from towpath.settings import Sink, load
from towpath.sinks.change import Record
from towpath.sinks.changes.decode import decode
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.changes.routing import Routes
from towpath.sinks.fold import newest_per_key
from towpath.sinks.ports import Batch
from towpath.sinks.state.progress import Progress, State
from towpath.sinks.targets.cache.sink import CacheSink
from towpath.sinks.targets.search.sink import SearchSink

TABLES = ("shop.orders", "inventory.products")
SINKS = """
[[sink]]
name = "cache"
kind = "cache"
url = "{redis}"
[[sink.route]]
topic = "{prefix}.shop.orders"
name = "orders"

[[sink]]
name = "search"
kind = "search"
url = "{opensearch}"
[[sink.route]]
topic = "{prefix}.inventory.products"
name = "products"
"""
_PRODUCT = {"id": "uuid", "name": "text", "unit_price": "numeric"} | dict.fromkeys(
    ("received", "on_hand", "reserved", "sold", "version"), "bigint"
)


class ProductShape:
    """The shape of the products table, which the relay announces to real sinks."""

    def shape(self, _topic: str) -> RelationShape:
        """Return the shape of the products table."""
        columns = (*_PRODUCT.items(), ("updated_at", "timestamp with time zone"))
        described = tuple(Column(name, kind) for name, kind in columns)
        return RelationShape("inventory", "products", described, ("id",), "")

    def refresh(self) -> None:
        """Do nothing: the shape is known."""


def target_of(sink: Sink, prefix: str) -> CacheSink | SearchSink:
    """Make a sink's target, of the class that a driver uses."""
    if sink.kind == "cache":
        return CacheSink(sink.url, prefix, 3600)
    return SearchSink(sink.url, sink.route, ProductShape(), CLOCK)


class LightweightSink:
    """A sink in a thread: it writes to its target, and then publishes its progress."""

    def __init__(self, rig: Rig, name: str) -> None:
        settings = load(rig.config, {})
        (self._sink,) = (sink for sink in settings.sink if sink.name == name)
        self._driver = SinkRun.in_kafka(settings, name)
        self._target = target_of(self._sink, rig.prefix)
        self._routes = Routes(self._sink)
        self._applied: dict[str, dict[str, int]] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": rig.kafka,
                "group.id": f"{rig.prefix}.{name}",
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 200,
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([route.topic for route in self._sink.route])
        self._stop = threading.Event()
        self._may_apply = threading.Event()
        self._may_apply.set()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Open the target, and begin to follow the topics."""
        self._target.open()
        self._thread.start()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Apply records that arrive during the block only after the block ends."""
        self._may_apply.clear()
        try:
            yield
        finally:
            self._may_apply.set()

    def close(self) -> None:
        """Stop the sink, and close its connections."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()
        self._target.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            messages = self._consumer.consume(500, 0.05)
            found = [message for message in messages if message.error() is None]
            self._may_apply.wait()
            if found:
                apply(self._target, self._routes, [sink_record(one) for one in found])
            for one in found:
                partitions = self._applied.setdefault(one.topic(), {})
                partitions[str(one.partition())] = one.offset() + 1
            progress = Progress(self._sink.name, State.RUNNING, self._applied)
            self._driver.publish(progress)


def apply(
    target: CacheSink | SearchSink, routes: Routes, records: list[Record]
) -> None:
    """Apply records as one batch."""
    decoded = decode(records, routes)
    target.apply(Batch(0, newest_per_key(decoded.changes).changes))
    refused = target.flush().refused
    assert ((), []) == (refused, decoded.unreadable)


@contextmanager
def served(app: Flask) -> Iterator[str]:
    """Serve an application in a thread; yield its address."""
    server: BaseWSGIServer = make_server(LOOPBACK, 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def without_indexes(url: str) -> Iterator[None]:
    """Drop the indexes of orders and products, before and after the block."""
    names = ["orders-1", "products-1"]
    with closing(OpenSearch(url)) as client:
        client.indices.delete(index=names, params={"ignore_unavailable": "true"})
        try:
            yield
        finally:
            client.indices.delete(index=names, params={"ignore_unavailable": "true"})


def configure(rig: Rig, stack: LazyStack) -> None:
    """Write the configuration of a relay and two of the shop's sinks."""
    rig.configure(rig.outbox, tables=TABLES)
    text = SINKS.format(
        redis=stack.redis_url, opensearch=stack.opensearch_url, prefix=rig.prefix
    )
    # The demo's own search route, on the topics of this relay.
    orders = order_documents("orders").replace("outbox.event.", rig.topic("event."))
    rig.config.write_text(rig.config.read_text(encoding="utf-8") + text + orders)


@contextmanager
def storefront(options: dict[str, Any], log: Path) -> Iterator[Service]:
    """Run the storefront as a process."""
    port = ports.any_free()
    given = {"--port": port, "--drain-seconds": 0, **options}
    arguments = [str(one) for option in given.items() for one in option]
    log.unlink(missing_ok=True)
    process = Forked(["-m", "towpath.services.storefront", "serve", *arguments], log)
    service = Service(f"http://{LOOPBACK}:{port}", process, log)
    try:
        service.wait_until_live()
        yield service
    finally:
        stop(process, 30.0)


class Store:
    """
    The whole shop: services, relay, two sinks, and the storefront as a process.

    Attributes:
        saga: The services.
        sinks: The sinks, by name.
        address: The storefront's address.
    """

    def __init__(
        self, saga: Saga, sinks: dict[str, LightweightSink], address: str
    ) -> None:
        self.saga = saga
        self.sinks = sinks
        self.address = address

    def get(self, path: str, lsn: str | None = None, **query: Any) -> requests.Response:
        """Read a route of the read side, as of an LSN or later."""
        headers = {} if lsn is None else {"Towpath-Lsn": lsn}
        return requests.get(
            self.address + path, params=query, headers=headers, timeout=30
        )


GOODS = (
    *("Brass lantern", "Lock key", "Canal chart", "Wool blanket", "Tin kettle"),
    *("Oak tiller", "Rain hat", "Mooring rope"),
)


def add_products(rig: Rig, count: int) -> None:
    """Register products with names, prices and stock; the last two are sold out."""
    rows = [
        (
            str(uuid.UUID(int=100 + number)),
            f"{GOODS[number % len(GOODS)]} No. {number + 1}",
            f"{4 + number}.50",
            max(0, 10 * (count - 2 - number)),
        )
        for number in range(count)
    ]
    for product, name, price, units in rows:
        rig.execute(
            "insert into inventory.products (id, name, unit_price, received, on_hand)"
            " values (%s, %s, %s, %s, %s)",
            *(product, name, price, units, units),
        )


@contextmanager
def whole_store(rig: Rig, stack: LazyStack, **options: str) -> Iterator[Store]:
    """Provide the shop on an empty database; the options are the storefront's."""
    saga = Saga(rig, {})
    for name in ("orders", "inventory"):
        saga.run(name, "migrate", "--admin-dsn", rig.dsn)
    configure(rig, stack)
    rig.init()
    inventory = create_inventory(rig.dsn, threads=4)
    with (
        without_indexes(stack.opensearch_url),
        closing(saga),
        served(saga.app) as orders_url,
        served(inventory) as inventory_url,
    ):
        saga.start()
        sinks = {name: LightweightSink(rig, name) for name in ("cache", "search")}
        given = {
            "--orders": orders_url,
            "--inventory": inventory_url,
            "--search": stack.opensearch_url,
            "--cache": stack.redis_url,
            "--cache-prefix": rig.prefix,
            "--config": str(rig.config),
            "--wait-seconds": "10",
        }
        for sink in sinks.values():
            sink.start()
        try:
            with storefront(given | options, rig.folder / "storefront.log") as made:
                yield Store(saga, sinks, made.url)
        finally:
            for sink in sinks.values():
                sink.close()
            # The last requests have ended, and their connections are back in the pool.
            inventory.extensions["engine"].dispose()
