"""
The shop's four services without a database or broker; their rules use dictionaries.

The handlers are the services' own. The topics keep the order of each key's events,
and no other: a consumer takes the next event of any topic and any order, and may take
all events of a key again. There is no inbox that would hide a repetition.
"""

import contextlib
import dataclasses
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

from towpath.outbox import plain
from towpath.services.inventory import handlers as inventory
from towpath.services.orders import handlers as orders
from towpath.services.orders.app import consuming
from towpath.services.orders.commands import CancelOrder, PayOrder, ReturnOrder
from towpath.services.orders.domain import (
    DEFAULT_WINDOWS,
    Line,
    Order,
    OrderState,
    OrderStatus,
    deadline_of,
    is_settled,
)
from towpath.services.orders.events import shop_events
from towpath.services.payments import handlers as payments
from towpath.services.payments.domain import (
    LEASE,
    OperationKind,
    PaymentOperation,
    PaymentStatus,
    ProviderAnswer,
)
from towpath.services.payments.provider import (
    DECLINED,
    REPEATS,
    SILENT,
    TIMEOUT,
    UNREACHABLE,
    ProviderTimeoutError,
)
from towpath.services.plumbing.http import ConflictError
from towpath.services.shipping import app as shipping
from towpath.services.shipping.domain import CARRIER

START = datetime(2026, 1, 2, tzinfo=UTC)
PRODUCT = uuid.UUID(int=1)
PRICE = Decimal("2.50")
METHODS = ("card", DECLINED, TIMEOUT, UNREACHABLE, SILENT, REPEATS)
LONGEST_WAIT = timedelta(minutes=16)

# The transitions that the rules of orders allow.
_S = OrderStatus
LEGAL = {
    _S.PLACED: {_S.PAYING, _S.CANCELLED},
    _S.PAYING: {_S.CONFIRMED, _S.CANCELLED},
    _S.CONFIRMED: {_S.PAID, _S.CANCELLING},
    _S.PAID: {_S.COMPLETED, _S.CANCELLING, _S.CANCELLED},
    _S.CANCELLING: {_S.COMPLETED, _S.CANCELLED},
    _S.COMPLETED: {_S.RETURNED},
    _S.CANCELLED: set(),
    _S.RETURNED: set(),
}


class Checkout(NamedTuple):
    """An order as its customer places it."""

    method: str | None
    quantity: int
    carrier: str | None


class Source(NamedTuple):
    """The events of one key of a topic, as one consumer reads them."""

    consumer: str
    topic: str
    order_id: int


class Topics:
    """The events of each topic and key, and how far each consumer has read them."""

    def __init__(self) -> None:
        self.events: dict[tuple[str, int], list[tuple[str, Any]]] = defaultdict(list)
        self.offsets: Counter[Source] = Counter()

    def publish(self, topic: str, order_id: int, type_: str, payload: Any) -> None:
        """Publish an event; fail if its key already has an event of this type."""
        log = self.events[topic, order_id]
        assert type_ not in dict(log), f"{type_} of order {order_id} is published twice"
        log.append((type_, payload))

    def types(self, topic: str, order_id: int) -> set[str]:
        """Return the types of the events of a key."""
        return set(dict(self.events[topic, order_id]))


class MemoryOrders:
    """Implements the part of ``OrderRepository`` that the handlers of orders need."""

    def __init__(self, topics: Topics) -> None:
        self.rows: dict[int, tuple[OrderState, dict[Any, Any]]] = {}
        self._topics = topics

    def add(self, order: Order) -> None:
        self.rows[order.state.order_id] = order.state, {}
        self._publish(order)

    def lock(self, order_id: int) -> Order:
        state, steps = self.rows[order_id]
        return Order(state, dict(steps), state.version)

    def save(self, order: Order) -> None:
        before, steps = self.rows[order.state.order_id]
        assert before.version == order.stored_version
        assert before.version < order.state.version
        path = [before.status, *(event.order.status for event in order.events)]
        for start, end in pairwise(path):
            assert end in LEGAL[start], f"illegal transition from {start} to {end}"
        self.rows[order.state.order_id] = order.state, steps
        self._publish(order)

    def add_step(self, order_id: int, step: Any, record: Any) -> None:
        self.rows[order_id][1][step] = record

    def overdue(self, at: datetime, *, of_order: int | None = None) -> list[int]:
        deadlines = {
            number: deadline_of(state, DEFAULT_WINDOWS)
            for number, (state, _) in self.rows.items()
            if of_order in (None, number)
        }
        return [number for number, end in deadlines.items() if end and end < at]

    def _publish(self, order: Order) -> None:
        for event in order.events:
            payload = plain(shop_events().convert(event).payload)
            name = type(event).__name__
            self._topics.publish("order", order.state.order_id, name, payload)


class MemoryStore:
    """The aggregates of a service that reacts to orders, one for each order."""

    def __init__(self, topic: str, topics: Topics) -> None:
        self.rows: dict[int, Any] = {}
        self._topic = topic
        self._topics = topics

    def lock(self, order_id: int) -> Any:
        found = self.rows.get(order_id)
        return None if found is None else dataclasses.replace(found, events=[])

    def save(self, aggregate: Any) -> None:
        self.rows[aggregate.order_id] = aggregate
        for event in aggregate.events:
            payload = plain(dataclasses.asdict(event))
            name = type(event).__name__
            self._topics.publish(self._topic, aggregate.order_id, name, payload)

    add = save


class MemoryInventory(MemoryStore):
    """
    Implements the part of ``InventoryRepository`` that handlers need, for one product.
    """

    def __init__(self, topics: Topics, on_hand: int) -> None:
        super().__init__("reservation", topics)
        self.units = Counter(on_hand=on_hand)
        self.lock_reservation = self.find_reservation = self.lock
        self.add_reservation = self.save_reservation = self.save

    def lock_on_hand(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
        return dict.fromkeys(ids, self.units["on_hand"])

    def transfer(self, lines: Sequence[Any], transfer: Any, _at: datetime) -> None:
        for line in lines:
            for name, units in transfer._asdict().items():
                self.units[name] += units * line.quantity
                assert self.units[name] >= 0, name


@dataclasses.dataclass
class OperationRow:
    """An operation as the table of operations stores it."""

    order_id: int
    kind: OperationKind
    due_at: datetime
    attempts: int = 0
    is_answered: bool = False


class MemoryPayments(MemoryStore):
    """Implements the part of ``PaymentRepository`` that handlers and worker need."""

    def __init__(self, topics: Topics) -> None:
        super().__init__("payment", topics)
        self.operations: list[OperationRow] = []

    def add(self, payment: Any) -> bool:
        return self.rows.setdefault(payment.order_id, payment) is payment

    def add_operation(self, order_id: int, kind: OperationKind, at: datetime) -> None:
        if all((one.order_id, one.kind) != (order_id, kind) for one in self.operations):
            self.operations.append(OperationRow(order_id, kind, at))

    def claim_operations(self, at: datetime, _limit: int) -> list[PaymentOperation]:
        claimed, seen = [], set()
        for number, row in enumerate(self.operations):
            if row.is_answered or row.order_id in seen:
                continue
            seen.add(row.order_id)
            if row.due_at <= at:
                row.attempts, row.due_at = row.attempts + 1, at + LEASE
                claimed.append(self._operation(number, row))
        return claimed

    def answer_operation(self, operation: PaymentOperation, _at: datetime) -> None:
        self.operations[operation.operation_id].is_answered = True

    def postpone_operation(self, operation: PaymentOperation, due_at: datetime) -> None:
        self.operations[operation.operation_id].due_at = due_at

    def _operation(self, number: int, row: OperationRow) -> PaymentOperation:
        payment = self.rows[row.order_id]
        return PaymentOperation(
            operation_id=number,
            order_id=row.order_id,
            kind=row.kind,
            attempts=row.attempts,
            amount=payment.amount,
            currency=payment.currency,
            method=payment.method,
        )


class MemoryProvider:
    """Behaves like the simulated provider; ``held`` has each order's payment status."""

    def __init__(self, topics: Topics) -> None:
        self.held: dict[int, PaymentStatus] = {}
        self._answers: dict[str, ProviderAnswer] = {}
        self._topics = topics

    def perform(self, operation: PaymentOperation) -> Sequence[ProviderAnswer]:
        is_authorization = operation.kind is OperationKind.AUTHORIZE
        if is_authorization and operation.method == UNREACHABLE:
            raise ProviderTimeoutError(operation.idempotency_key)
        is_first = operation.idempotency_key not in self._answers
        if is_first:
            self._answers[operation.idempotency_key] = self._carry_out(operation)
        is_lost = is_first and operation.method == TIMEOUT
        if is_lost or (is_authorization and operation.method == SILENT):
            raise ProviderTimeoutError(operation.idempotency_key)
        answer = self._answers[operation.idempotency_key]
        return [answer] * (2 if operation.method == REPEATS else 1)

    def _carry_out(self, operation: PaymentOperation) -> ProviderAnswer:
        number, status = operation.order_id, PaymentStatus.AUTHORIZED
        if operation.kind is OperationKind.CAPTURE:
            assert "OrderConfirmed" in self._topics.types("order", number)
            assert self.held[number] is PaymentStatus.AUTHORIZED
            status = PaymentStatus.CAPTURED
        elif operation.kind is OperationKind.REVERSE:
            is_captured = self.held.get(number) is PaymentStatus.CAPTURED
            status = PaymentStatus.REFUNDED if is_captured else PaymentStatus.VOIDED
        elif operation.method == DECLINED:
            status = PaymentStatus.DECLINED
        self.held[number] = status
        return ProviderAnswer(status)


class SagaModel:
    """All four services, and everything that may happen next."""

    def __init__(self, checkouts: Sequence[Checkout], on_hand: int) -> None:
        """
        Place the orders.

        Args:
            checkouts: The orders, numbered from 1.
            on_hand: The units of the only product.
        """
        self.at = START
        self.topics = Topics()
        self.on_hand = on_hand
        self.checkouts = dict(enumerate(checkouts, 1))
        self.orders = MemoryOrders(self.topics)
        self.inventory = MemoryInventory(self.topics, on_hand)
        self.payments = MemoryPayments(self.topics)
        self.shipments = MemoryStore("shipment", self.topics)
        self.provider = MemoryProvider(self.topics)
        self._store: Any = SimpleNamespace(orders=self.orders)
        self._worker = payments.ProviderWorker(
            _no_transaction,  # type: ignore[arg-type]
            self.provider,
            self,  # type: ignore[arg-type]
            lambda _session: self.payments,  # type: ignore[arg-type,return-value]
        )
        self._consumers: dict[str, tuple[Sequence[str], Any, Any]] = {
            "inventory": (("order",), inventory.ORDER_EVENTS, self.inventory),
            "payments": (("order",), payments.ORDER_EVENTS, self.payments),
            "shipping": (("order",), shipping.ORDER_EVENTS, self.shipments),
            "orders": (
                ("reservation", "payment", "shipment"),
                consuming().consumer.handlers,
                self._store,
            ),
        }
        for number, checkout in self.checkouts.items():
            self._place(number, checkout)

    def now(self) -> datetime:
        """Return the time, as a clock does."""
        return self.at

    def progress(self) -> list[Any]:
        """Return the steps that the services can take next, as functions."""
        unread = [partial(self._deliver, source) for source in self._unread()]
        return [*unread, self._worker.run_due]

    def commands(self) -> list[Any]:
        """Return the commands of customers, as functions."""
        cancel, back = CancelOrder(reason="late"), ReturnOrder(reason="broken")
        found = []
        for number, checkout in self.checkouts.items():
            pay = PayOrder(payment_method=checkout.method or "card")
            found += [
                partial(self._command, orders.pay_order, number, pay),
                partial(self._command, orders.cancel_order, number, cancel),
                partial(self._command, orders.return_order, number, back),
            ]
        return found

    def disturbances(self) -> list[Any]:
        """Return repetitions, pauses, and a worker that dies, as functions."""
        read = [source for source, offset in self.topics.offsets.items() if offset]
        return [
            *(partial(self._rewind, source) for source in read),
            partial(self.payments.claim_operations, self.at, 1),
            partial(self._wait, timedelta(seconds=20)),
            partial(self._wait, LONGEST_WAIT),
            self._expire,
        ]

    def settle(self) -> None:
        """Run all services by their own rules until all orders are settled."""
        for _ in range(60):
            while unread := list(self._unread()):
                self._deliver(unread[0])
            self._worker.run_due()
            if not self._unsettled() and not list(self._unread()):
                return
            self._wait(timedelta(minutes=1))
            self._expire()
        message = f"never settled: {self._unsettled()}"
        raise AssertionError(message)

    def findings(self) -> list[str]:
        """Return the inconsistencies of settled orders and of the stock."""
        found = []
        for number in self.checkouts:
            is_sent = self.orders.lock(number).state.status in (
                OrderStatus.COMPLETED,
                OrderStatus.RETURNED,
            )
            if self._traces(number) not in self._expected(number):
                found.append(f"order {number}: {self._traces(number)}")
            if is_sent != (
                "ShipmentDispatched" in self.topics.types("shipment", number)
            ):
                found.append(f"order {number}: its parcel contradicts its status")
        sold = sum(
            checkout.quantity
            for number, checkout in self.checkouts.items()
            if self.orders.lock(number).state.status is OrderStatus.COMPLETED
        )
        units = self.inventory.units
        wanted = {"on_hand": self.on_hand - sold, "reserved": 0, "sold": sold}
        if wanted != {name: units[name] for name in wanted}:
            found.append(f"units: {dict(units)} instead of {wanted}")
        return found

    def _traces(self, number: int) -> tuple[str, Any]:
        reservation = self.inventory.rows[number].status.value
        return reservation, self.provider.held.get(number)

    def _expected(self, number: int) -> set[tuple[str, Any]]:
        match self.orders.lock(number).state.status:
            case OrderStatus.COMPLETED:
                return {("sold", PaymentStatus.CAPTURED)}
            case OrderStatus.RETURNED:
                return {("returned", PaymentStatus.REFUNDED)}
        cancelled_payments = (
            *(None, PaymentStatus.DECLINED),
            *(PaymentStatus.VOIDED, PaymentStatus.REFUNDED),
        )
        return {
            (end, money)
            for end in ("rejected", "released")
            for money in cancelled_payments
        }

    def _place(self, number: int, checkout: Checkout) -> None:
        line = Line(
            line_no=1,
            product_id=PRODUCT,
            quantity=checkout.quantity,
            unit_price=PRICE,
        )
        state = OrderState(
            order_id=number,
            customer_id=uuid.UUID(int=2),
            status=OrderStatus.PLACED,
            total=checkout.quantity * PRICE,
            currency="EUR",
            lines=(line,),
            note=None,
            attributes={CARRIER: checkout.carrier},
            placed_at=self.at,
            updated_at=self.at,
        )
        order = Order.place(state)
        if checkout.method is not None:
            order.request_payment(checkout.method, self.at)
        self.orders.add(order)

    def _unread(self) -> Iterator[Source]:
        for name, (topics, _, _) in self._consumers.items():
            for topic in topics:
                for number in self.checkouts:
                    source = Source(name, topic, number)
                    log = self.topics.events[topic, number]
                    if self.topics.offsets[source] < len(log):
                        yield source

    def _deliver(self, source: Source) -> None:
        log = self.topics.events[source.topic, source.order_id]
        type_, payload = log[self.topics.offsets[source]]
        self.topics.offsets[source] += 1
        _, handlers, store = self._consumers[source.consumer]
        if type_ in handlers:
            handlers[type_](payload, store, self.at)

    def _rewind(self, source: Source) -> None:
        self.topics.offsets[source] = 0

    def _command(self, handler: Any, number: int, command: Any) -> None:
        with contextlib.suppress(ConflictError):
            handler(number, command, self._store, self.at)

    def _wait(self, time: timedelta) -> None:
        self.at += time

    def _expire(self) -> None:
        for number in self.orders.overdue(self.at):
            orders.expire_order(number, self._store, self.at)

    def _unsettled(self) -> list[str]:
        locked = map(self.orders.lock, self.checkouts)
        return [
            f"order {order.state.order_id} is {order.state.status}"
            for order in locked
            if not is_settled(order)
        ]


@contextlib.contextmanager
def _no_transaction() -> Iterator[None]:
    yield
