"""The shop's event schemas: unchanged released files, and compatible versions."""

from importlib import resources

import pytest

from towpath.schemas.events import installed_schemas
from towpath.schemas.released import check_files, read_lock, unreleased
from towpath.schemas.schema_files import read_files
from towpath.services.inventory import app as inventory
from towpath.services.orders import events as orders
from towpath.services.payments import app as payments
from towpath.services.shipping import app as shipping


@pytest.mark.parametrize(
    ("package", "count"),
    [
        (orders.SCHEMAS, 9),
        (inventory.SCHEMAS, 5),
        (payments.SCHEMAS, 5),
        (shipping.SCHEMAS, 3),
    ],
)
def test_the_schemas_of_each_service_are_frozen_numbered_and_compatible(package, count):
    """
    Each file is in the lock with its digest, so a change needs a new file.
    """
    folder = resources.files(package)
    files, released = read_files(folder), read_lock(folder)

    assert count == len(released)
    assert [] == check_files(files, released) + unreleased(files, released)


def test_the_installed_package_declares_its_schemas():
    """
    Each event type has its own name; its subject is the record's full name.
    """
    expected = {
        "shop": [
            *("CustomerRegistered", "OrderCancellationRequested", "OrderCancelled"),
            *("OrderCompleted", "OrderConfirmed", "OrderPaid"),
            *("OrderPaymentRequested", "OrderPlaced", "OrderReturned"),
        ],
        "inventory": [
            *("StockRejected", "StockReleased", "StockReserved"),
            *("StockReturned", "StockSold"),
        ],
        "payments": [
            *("PaymentAuthorized", "PaymentCaptured", "PaymentDeclined"),
            *("PaymentRefunded", "PaymentVoided"),
        ],
        "shipping": ["ShipmentCancelled", "ShipmentDispatched", "ShipmentFailed"],
    }
    found = installed_schemas().newest

    assert {
        name: f"{namespace}.{name}:1"
        for namespace, names in expected.items()
        for name in names
    } == {name: schema.reference for name, schema in found.items()}
