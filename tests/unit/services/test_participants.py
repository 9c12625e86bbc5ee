"""The rules of inventory, payments and shipping: how each handles an order."""

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest

from towpath.services.inventory.domain import (
    RESERVE,
    TRANSFERS,
    Reservation,
    ReservationStatus,
    ReservedLine,
    StockReleased,
    StockReserved,
    lines_by_product,
)
from towpath.services.payments.domain import (
    OperationKind,
    Payment,
    PaymentAuthorized,
    PaymentDeclined,
    PaymentOperation,
    PaymentStatus,
    ProviderAnswer,
    pause_after,
)
from towpath.services.shipping.domain import (
    NO_ADDRESS,
    SILENT,
    UNDELIVERABLE,
    Shipment,
    ShipmentCancelled,
    ShipmentDispatched,
    ShipmentFailed,
    ShipmentStatus,
    carrier_of,
)

AT = datetime(2026, 1, 2, tzinfo=UTC)
LATER = AT + timedelta(seconds=1)
FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)
LINES = (ReservedLine(FIRST, 2), ReservedLine(SECOND, 1))
ORDER = {"order_id": 7, "customer_id": "ada", "attributes": None}


def test_all_lines_of_an_order_are_reserved():
    """
    It is enough if exactly the ordered units are on hand.
    """
    reservation = Reservation.decide(7, LINES, {FIRST: 2, SECOND: 1}, AT)

    assert (ReservationStatus.RESERVED, LINES) == (
        reservation.status,
        reservation.lines,
    )
    assert [StockReserved] == [type(event) for event in reservation.events]


@pytest.mark.parametrize(
    ("on_hand", "reason"),
    [
        ({FIRST: 2}, f"product {SECOND} is unknown"),
        ({FIRST: 1, SECOND: 1}, f"product {FIRST}: 1 on hand, 2 wanted"),
    ],
)
def test_nothing_is_reserved_if_a_line_cannot_be(on_hand, reason):
    """
    A rejected reservation has no lines, so nothing is ever released for it.
    """
    reservation = Reservation.decide(7, LINES, on_hand, AT)
    released = reservation.move(ReservationStatus.RELEASED, LATER)
    (event,) = reservation.events

    assert (ReservationStatus.REJECTED, (), reason) == (
        event.status,
        reservation.lines,
        event.reason,
    )
    assert released is None


@pytest.mark.parametrize("start", ReservationStatus)
@pytest.mark.parametrize("end", ReservationStatus)
def test_a_reservation_moves_its_units_only_in_allowed_transitions(start, end):
    """
    Every other transition changes and records nothing, even a repeated one.
    """
    reservation = Reservation(7, start, LINES, None, AT)
    transfer = reservation.move(end, LATER)
    is_allowed = (start, end) in TRANSFERS

    assert TRANSFERS.get((start, end)) == transfer
    assert (end if is_allowed else start) is reservation.status
    assert is_allowed == bool(reservation.events)


def test_a_transfer_keeps_the_number_of_units():
    """
    Units are on hand, reserved or sold: none appears, and none is lost.
    """
    assert {0} == {sum(transfer) for transfer in (RESERVE, *TRANSFERS.values())}


def test_an_order_cancelled_before_its_reservation_gets_an_answer():
    """
    The reservation holds nothing, and the order can be settled.
    """
    reservation = Reservation.release_nothing(7, AT)

    assert () == reservation.lines
    assert [StockReleased] == [type(event) for event in reservation.events]


def test_the_lines_of_one_product_are_reserved_together():
    """
    Quantities are added up; a fixed order of products prevents deadlocks.
    """
    lines = [
        {"product_id": str(product), "quantity": quantity}
        for product, quantity in ((SECOND, 1), (FIRST, 2), (SECOND, 3))
    ]

    assert (ReservedLine(FIRST, 2), ReservedLine(SECOND, 4)) == lines_by_product(lines)


def payment(status: PaymentStatus = PaymentStatus.REQUESTED) -> Payment:
    """Make a payment with a status."""
    return Payment(7, Decimal("9.99"), "EUR", "card", status, None, 1, AT)


ANSWERS = {
    PaymentStatus.REQUESTED: {"authorized", "declined", "voided"},
    PaymentStatus.AUTHORIZED: {"captured", "voided"},
    PaymentStatus.CAPTURED: {"refunded"},
}


@pytest.mark.parametrize("start", PaymentStatus)
@pytest.mark.parametrize("answer", PaymentStatus)
def test_a_payment_accepts_only_the_answers_that_follow_its_status(start, answer):
    """
    A repeated or late answer changes and records nothing.
    """
    made = payment(start)
    is_taken = made.apply_answer(ProviderAnswer(answer), LATER)

    assert is_taken == (answer.value in ANSWERS.get(start, set()))
    assert (2, [answer]) == (made.version, [e.status for e in made.events]) or (
        not is_taken and (1, []) == (made.version, made.events)
    )


def test_an_event_of_a_payment_has_the_providers_reason():
    """
    The event of a refusal has the reason; that of an authorization has none.
    """
    refused, authorized = payment(), payment()
    refused.apply_answer(
        ProviderAnswer(PaymentStatus.DECLINED, "the card was declined"), LATER
    )
    authorized.apply_answer(ProviderAnswer(PaymentStatus.AUTHORIZED), LATER)

    assert [(PaymentDeclined, "the card was declined"), (PaymentAuthorized, None)] == [
        (type(event), event.reason) for event in (*refused.events, *authorized.events)
    ]


def test_calls_of_an_operation_have_one_key_and_growing_pauses():
    """
    The provider recognizes a repeated call; pauses grow up to half a minute.
    """
    keys = {
        PaymentOperation(
            operation_id=1,
            order_id=7,
            kind=OperationKind.CAPTURE,
            attempts=attempts,
            amount=Decimal("9.99"),
            currency="EUR",
            method="card",
        ).idempotency_key
        for attempts in (1, 2, 3)
    }
    pauses = [pause_after(attempts) for attempts in range(1, 12)]

    assert {"7-capture"} == keys
    assert all(shorter <= longer for shorter, longer in pairwise(pauses))
    assert (timedelta(seconds=0.2), timedelta(seconds=30)) == (pauses[0], pauses[-1])


def test_a_capture_is_retried_after_any_number_of_attempts():
    """
    A provider that is down for a day misses thousands of calls.
    """
    assert timedelta(seconds=30) == pause_after(10_000)


@pytest.mark.parametrize(
    ("carrier", "status", "event"),
    [
        (None, ShipmentStatus.DISPATCHED, ShipmentDispatched),
        (UNDELIVERABLE, ShipmentStatus.FAILED, ShipmentFailed),
    ],
)
def test_a_parcel_leaves_or_fails_permanently(carrier, status, event):
    """
    A later cancellation and a second handover change nothing.
    """
    shipment = Shipment.prepare(ORDER, AT)
    shipment.hand_over(carrier, AT)
    shipment.cancel(LATER)
    shipment.hand_over(None, LATER)

    assert (status, 2) == (shipment.status, shipment.version)
    assert [event] == [type(each) for each in shipment.events]
    assert (NO_ADDRESS if carrier else None) == shipment.reason
    assert (carrier is None) == (shipment.tracking_number is not None)


def test_a_parcel_that_the_carrier_never_accepted_is_cancelled():
    """
    It waits without an event until then; afterwards it is never handed over.
    """
    shipment = Shipment.prepare(ORDER, AT)
    shipment.hand_over(SILENT, AT)
    waiting = list(shipment.events)
    shipment.cancel(LATER)
    shipment.hand_over(None, LATER)

    assert [] == waiting
    assert [ShipmentCancelled] == [type(each) for each in shipment.events]


def test_one_order_has_one_tracking_number():
    """
    A repeated handover gives the same number; each order has a different one.
    """
    numbers = []
    for order_id in (7, 7, 8):
        shipment = Shipment.prepare(ORDER | {"order_id": order_id}, AT)
        shipment.hand_over(None, AT)
        numbers.append(shipment.tracking_number)

    assert (2, True) == (len(set(numbers)), numbers[0] == numbers[1])


@pytest.mark.parametrize(
    ("attributes", "carrier"),
    [
        (None, None),
        ("{}", None),
        ('{"carrier": "silent"}', "silent"),
        ('{"carrier": 7}', None),
    ],
)
def test_the_carrier_is_an_attribute_of_the_order(attributes, carrier):
    """
    Any value other than a string is ignored.
    """
    assert carrier == carrier_of({"attributes": attributes})


def test_a_change_is_later_than_the_previous_one():
    """
    A change's time is read before the lock, perhaps from a clock that is behind.
    """
    reservation = Reservation.decide(7, LINES, {FIRST: 2, SECOND: 1}, LATER)
    reservation.move(ReservationStatus.RELEASED, AT)
    payment = Payment.request(7, Decimal(9), "EUR", "card", LATER)
    payment.apply_answer(ProviderAnswer(PaymentStatus.AUTHORIZED), AT)
    shipment = Shipment.prepare(ORDER, LATER)
    shipment.cancel(AT)

    for changed in (reservation, payment, shipment):
        times = {changed.updated_at, changed.events[-1].updated_at}
        assert {LATER + timedelta(microseconds=1)} == times
