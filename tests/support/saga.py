"""The shop's four services on one database, one broker and one relay."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from psycopg.conninfo import make_conninfo

from support.forked import Forked
from support.rig import Rig
from support.waiting import TIMEOUT_S, until
from towpath.loadtests.load.invariants import findings, read_source
from towpath.services.orders.app import create_app

SERVICES = ("orders", "inventory", "payments", "shipping")
PRODUCT = uuid.UUID(int=1)
SCARCE = uuid.UUID(int=2)
PRICE = "12.50"


class Saga:
    """
    The services: orders serves requests in this process, and all four consume.

    Each has a database role with the service's name.

    Attributes:
        rig: The source and its relay.
        processes: The processes that consume, by service.
        log_file: Receives their output.
    """

    def __init__(self, rig: Rig, options: Mapping[str, Iterable[str]]) -> None:
        """
        Store the parameters; nothing is started.

        Args:
            rig: The source and its relay, which is not started.
            options: Further options of a service's ``consume``, by service.
        """
        self.rig = rig
        self.processes: dict[str, Forked] = {}
        self.log_file = rig.folder / "services.log"
        self._options = options
        self.app = create_app(self.dsn_of("orders"), threads=4)
        self.client = self.app.test_client()
        self.customer = ""

    def start(self) -> None:
        """Create all tables and two products, and start relay and consumers."""
        for name in SERVICES:
            self.run(name, "migrate", "--admin-dsn", self.rig.dsn)
        self.rig.start()
        for name in SERVICES:
            self.start_consumer(name)
        for product, units in ((PRODUCT, 100_000), (SCARCE, 3)):
            self.rig.execute(
                "insert into inventory.products (id, name, unit_price, received,"
                " on_hand) values (%s, 'A product', 12.50, %s, %s)",
                *(product, units, units),
            )
        body = {"name": "Ada", "email": "ada@example.org"}
        self.customer = self.post("/customers", body)["customer_id"]

    def dsn_of(self, name: str) -> str:
        """Return the address of the source for a service's role."""
        return make_conninfo(self.rig.dsn, user=name)

    def run(self, name: str, command: str, *options: str) -> None:
        """Run a command of a service to its end."""
        arguments = self._arguments(name, command, *options)
        code = Forked(arguments, self.log_file).wait(TIMEOUT_S)
        assert 0 == code, self.log_file.read_text()

    def start_consumer(self, name: str) -> None:
        """Start the process that consumes for a service."""
        brokers = ("--kafka", self.rig.kafka)
        topics = ("--topic-prefix", self.rig.topic("event."))
        groups = ("--group-prefix", f"{self.rig.prefix}.")
        more = self._options.get(name, ())
        arguments = self._arguments(name, "consume", *brokers, *topics, *groups, *more)
        self.processes[name] = Forked(arguments, self.log_file)

    def kill_consumer(self, name: str) -> None:
        """Kill the process that consumes for a service."""
        process = self.processes.pop(name)
        assert process.poll() is None, self.log_file.read_text()
        process.kill()
        process.wait()

    def _arguments(self, name: str, command: str, *options: str) -> list[str]:
        module = f"towpath.services.{name}"
        given = ("--dsn", self.dsn_of(name), *options)
        return ["-m", module, command, *given]

    def close(self) -> None:
        """End all processes and connections."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.app.extensions["engine"].dispose()

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post a document to orders, and return the document of the response."""
        response = self.client.post(path, json=body)
        assert response.status_code < 300, response.text
        document: dict[str, Any] = response.get_json()
        return document

    def order(self, order_id: int) -> dict[str, Any]:
        """Read an order."""
        document: dict[str, Any] = self.client.get(f"/orders/{order_id}").get_json()
        return document

    def check_out(
        self,
        method: str | None = "card",
        *,
        product: uuid.UUID = PRODUCT,
        quantity: int = 1,
        carrier: str | None = None,
    ) -> int:
        """Place an order of one product, and return its number."""
        line = {
            "product_id": str(product),
            "quantity": quantity,
            "unit_price": PRICE,
        }
        body = {
            "customer_id": self.customer,
            "payment_method": method,
            "lines": [line],
            "attributes": None if carrier is None else {"carrier": carrier},
        }
        number: int = self.post("/orders", body)["order_id"]
        return number

    def settled(self, order_id: int, status: str) -> dict[str, Any]:
        """Wait until an order is settled with a status, and return it."""
        return self.reached(
            order_id, lambda o: o["status"] == status and o["saga"]["is_settled"]
        )

    def reached(
        self, order_id: int, holds: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """Wait until a condition holds for an order, and return the order."""
        self.rig.wait_for(lambda: holds(self.order(order_id)))
        return self.order(order_id)

    def steps(self, order_id: int) -> set[str]:
        """Return the steps of an order."""
        return {one["step"] for one in self.order(order_id)["saga"]["steps"]}

    def wait_until_all_settled(self) -> None:
        """Wait until every order is settled."""
        until(lambda: not self.unsettled(), lambda: str(self.unsettled()))

    def unsettled(self) -> list[int]:
        """Return the orders that are not settled."""
        rows = self.rig.execute("select order_id from shop.unsettled_orders")
        return [row[0] for row in rows]

    def findings(self, first_order: int = 1) -> list[str]:
        """Return the violations of the business invariants."""
        found = findings(read_source(self.rig.dsn), first_order)
        for text, query in PROVIDER_AND_INBOXES.items():
            wrong = self.rig.execute(query)
            if wrong:
                found.append(f"{text}: {wrong[:5]}")
        return found


# These rules are checked in addition to those of the load tests. Once all orders are
# settled, each query returns the rows that violate its rule.
PROVIDER_AND_INBOXES = {
    "the provider has captured the totals of completed orders": """
        select coalesce(o.id, a.order_id), o.status, a.status
        from (select * from shop.orders where status = 'completed') o
        full join (select * from payment_provider.accounts where status = 'captured') a
             on a.order_id = o.id and a.amount = o.total and a.currency = o.currency
        where o.id is null or a.order_id is null""",
    "each payment has the provider's status": """
        select p.order_id, p.status, a.status
        from payments.payments p
        left join payment_provider.accounts a on a.order_id = p.order_id
        where p.status <> coalesce(a.status, 'declined')
          and not (p.status = 'declined' and a.status = 'voided')""",
    "nothing is parked": """
        select 'orders' from shop.inbox_parked
        union all select 'inventory' from inventory.inbox_parked
        union all select 'payments' from payments.inbox_parked
        union all select 'shipping' from shipping.inbox_parked""",
}
