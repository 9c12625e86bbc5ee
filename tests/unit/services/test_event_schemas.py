"""The shop's event schemas: released files are not edited, versions are compatible."""

from importlib import resources

from towpath.schemas.events import installed_schemas
from towpath.schemas.released import check_files, read_lock, unreleased
from towpath.schemas.schema_files import read_files
from towpath.services.orders.events import SCHEMAS

FOLDER = resources.files(SCHEMAS)


def test_the_shops_schemas_are_frozen_numbered_and_compatible():
    """
    Each file is in the lock with its digest: a change is a new file.
    """
    files, released = read_files(FOLDER), read_lock(FOLDER)

    assert 4 == len(released)
    assert [] == check_files(files, released) + unreleased(files, released)


def test_the_installed_package_declares_its_schemas():
    """
    Each event type stands under its own name, its subject is the record's full name.
    """
    expected = {
        "CustomerRegistered": "shop.CustomerRegistered:1",
        "OrderCancelled": "shop.OrderCancelled:1",
        "OrderPaid": "shop.OrderPaid:1",
        "OrderPlaced": "shop.OrderPlaced:1",
    }
    found = installed_schemas().newest

    assert expected == {name: schema.reference for name, schema in found.items()}
